"""``kvgate.check``: gather, decide, record. The command line is one caller of it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.gathering import gather
from kvgate.inputs import ManifestInput, load_evidence, load_manifest, load_pack, load_waivers
from kvgate.renderings import Renderings
from kvgate.rules.case import VERDICTS, Case, Options, Strategy, Verdict
from kvgate.rules.credentials import refuse_credentials
from kvgate.rules.decide import Decision, decide
from kvgate.rules.errors import UsageError
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress, silent
from kvgate.rules.record import Sources, record_bytes, record_of
from kvgate.token_evidence import SWEEPS, Asked, Sweep

if TYPE_CHECKING:
    from kvgate.corpora.conversations.corpus import Corpus


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        decision: verdict, findings, boundary, exit code.
        record: the decision record, an in-toto Statement v1 as plain data.

    """

    decision: Decision
    record: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """The verdict word."""
        return self.decision.verdict

    @property
    def accepted(self) -> bool:
        """Whether the rollout may go ahead."""
        return self.decision.accepted

    def record_bytes(self) -> bytes:
        """The record as canonical JSON, as it is signed and attached."""
        return record_bytes(self.record)


def check(
    old: ManifestInput | Sequence[ManifestInput],
    new: ManifestInput,
    *,
    evidence: str | Path | Evidence | Iterable[str | Path | Evidence] = (),
    corpora: str | Path | Iterable[str | Path] = (),
    sweep: Sweep = "auto",
    rules: str | Path = "default",
    strategy: Strategy = "rolling",
    declare_clear: bool = False,
    accept: Verdict | Iterable[Verdict] = (),
    waivers: str | Path | None = None,
    as_of: str | None = None,
    advisory: bool = False,
    progress: Progress = silent,
) -> Checked:
    """Decide whether a new deployment may reach what old ones stored.

    Args:
        old: one old deployment or several (everything that wrote into the namespace): paths of manifests,
            plain data, or manifests. An empty sequence: this is the first deployment.
        new: the deployment to be rolled out.
        evidence: evidence, or files and folders that hold it; one or several.
        corpora: further corpora (JSONL, OpenAI chat format) to render on both sides; one or several.
        sweep: whether strings made from both tokenizers are encoded with both: ``auto``: where they differ and no
            conversation shows it; ``always``, ``never``.
        rules: a shipped rule pack, or the path of one.
        strategy: ``recreate`` if old workers are drained before new ones start.
        declare_clear: the old deployments' entries are deleted as part of this change.
        accept: verdicts, or one, that are accepted although an obligation is open.
        waivers: a waivers file.
        as_of: the date (``YYYY-MM-DD``) against which waivers expire; today in UTC where ``None``.
        advisory: report only; the exit code is 0 and the record says that nothing was enforced.
        progress: told how far long work is.

    Raises:
        InputError: an input is unreadable, hostile, holds a credential or contradicts another: no verdict.
        UsageError: an argument is not one of those that there are.

    """
    accepted: frozenset[Any] = frozenset([accept] if isinstance(accept, str) else accept)
    if unknown := sorted(accepted - set(VERDICTS)):
        raise UsageError(f"there is no verdict {unknown[0]!r}", hint=f"verdicts: {', '.join(VERDICTS)}")
    if strategy not in ("rolling", "recreate"):
        raise UsageError(f"there is no strategy {strategy!r}", hint="rolling or recreate")
    if sweep not in SWEEPS:
        raise UsageError(f"there is no way to sweep called {sweep!r}", hint=", ".join(SWEEPS))
    olds = tuple(load_manifest(one) for one in _listed(old))
    newest = load_manifest(new)
    pack, pack_source = load_pack(rules)
    waived, waivers_source = load_waivers(waivers)
    given = [evidence] if isinstance(evidence, (str, Path, Evidence)) else list(evidence)
    for item in given:
        if isinstance(item, Evidence):
            refuse_credentials(item.as_data(), "<data>")
    read = load_evidence(item for item in given if not isinstance(item, Evidence))
    corpus_paths = [str(path) for path in ([corpora] if isinstance(corpora, (str, Path)) else corpora)]
    loaded = _corpora(corpus_paths, progress)
    with Renderings(progress) as renderings:
        gathered = gather(olds, newest, Asked(loaded, renderings, sweep, progress))
    case = Case(
        old=olds,
        new=newest,
        pack=pack,
        evidence=(*(item for item in given if isinstance(item, Evidence)), *(item for item, _, _ in read), *gathered),
        waivers=waived,
        options=Options(
            strategy=strategy, declare_clear=declare_clear, accept=accepted, advisory=advisory, as_of=_date(as_of)
        ),
    )
    decision = decide(case)
    sources = Sources(
        evidence=[(path, content) for _, path, content in read],
        rules=pack_source,
        waivers=waivers_source,
        sweep=sweep,
        corpora=[(path, corpus.digest) for path, corpus in zip(corpus_paths, loaded, strict=True)],
    )
    from kvgate import __version__

    return Checked(decision, record_of(decision, __version__, sources))


def _listed(old: ManifestInput | Sequence[ManifestInput]) -> Sequence[ManifestInput]:
    if isinstance(old, (Manifest, Mapping, str, Path)):
        return [old]
    return old


def _corpora(paths: Sequence[str], progress: Progress) -> list[Corpus]:
    if not paths:
        return []
    from kvgate.corpora.conversations.corpus import load_corpus

    return [load_corpus(path, progress) for path in paths]


def _date(as_of: str | None) -> str:
    if as_of is None:
        return datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    try:
        return datetime.date.fromisoformat(as_of).isoformat()
    except ValueError:
        raise UsageError(f"{as_of!r} is not a date", hint="write YYYY-MM-DD") from None
