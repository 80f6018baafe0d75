"""What two renderers made of the same conversations, as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kvgate.evidence import about
from kvgate.renderings import Renderings
from kvgate.rules.change import Change
from kvgate.rules.discharge import TOKEN_DIMENSIONS
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Coverage, Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress
from kvgate.token_proof import what_differs, why_not_proved
from kvgate.token_sweep import Swept, sweep

if TYPE_CHECKING:
    from kvgate.corpora.conversations.corpus import Corpus
    from kvgate.corpora.snapshots.comparison import SnapshotComparison
    from kvgate.corpora.snapshots.snapshot import SnapshotFile

Sweep = Literal["auto", "always", "never"]
SWEEPS: tuple[Sweep, ...] = get_args(Sweep)


@dataclass(frozen=True)
class Asked:
    """What there is to compare beside the manifests.

    Attributes:
        corpora: further corpora, beside what the snapshots hold.
        renderings: what the deployments make of them.
        sweep: whether strings made from both tokenizers are encoded: ``auto``: where they differ and no conversation
            diverges.
        progress: told how far the work is.
    """

    corpora: Sequence[Corpus]
    renderings: Renderings
    sweep: Sweep
    progress: Progress


def token_evidence(
    old: Manifest,
    new: Manifest,
    old_file: tuple[Path, str] | None,
    new_file: tuple[Path, str] | None,
    asked: Asked,
) -> list[Evidence]:
    """Compare what two renderers made of the same conversations.

    Args:
        old: the old deployment.
        new: the new one.
        old_file: the old side's snapshot and the ``sha256:...`` it must have; ``None``: there is none.
        new_file: the new side's.
        asked: what else there is to compare.

    Returns:
        ``token-identity`` evidence.

    Raises:
        InputError: a snapshot is exchanged, or contradicts its manifest or the other side's; the manifests
            contradict each other.
    """
    differing = what_differs(old, new)
    exchanged = old_file is not None and new_file is not None and old_file[1] != new_file[1]
    if not differing and not exchanged and not asked.corpora:
        return [_equal(old, new, {}, Coverage())]
    return [_compare(old, new, differing, (old_file, new_file), asked)]


def _equal(old: Manifest, new: Manifest, figures: dict[str, Any], coverage: Coverage) -> Evidence:
    examined = {**coverage.examined, **dict.fromkeys(TOKEN_DIMENSIONS, 1)}
    return about(
        "token-identity",
        "proved",
        old,
        new,
        "tokenizer, chat template, rendering options and renderer are equal in all that token ids depend on",
        figures,
        coverage.model_copy(update={"examined": examined}),
    )


def _compare(
    old: Manifest,
    new: Manifest,
    differing: Sequence[Change],
    files: tuple[tuple[Path, str] | None, tuple[Path, str] | None],
    asked: Asked,
) -> Evidence:
    comparisons: list[SnapshotComparison] = []
    missing: dict[str, str] = {}
    before, after = (asked.renderings.diagnostic(side, file) for side, file in zip((old, new), files, strict=True))
    if isinstance(before, str) or isinstance(after, str):
        missing["diagnostic corpus"] = before if isinstance(before, str) else str(after)
    else:
        comparisons.append(_compared(before, after, new, asked.progress))
        if not differing and comparisons[0].divergent and comparisons[0].same_renderer and _dated(before, after):
            first = comparisons[0].divergences.first[0].id
            raise InputError(
                f"tokenizer.snapshot: the tokens of {first} are not those beside {old.source}, "
                "although tokenizer, template, options and renderer are the same",
                where=new.where("tokenizer.snapshot"),
                hint="one of the snapshots was exchanged or edited; capture again",
            )
    for corpus in asked.corpora:
        rendered = [asked.renderings.of(side, corpus) for side in (old, new)]
        failed = [item for item in rendered if isinstance(item, str)]
        if failed:
            missing[corpus.id] = failed[0]
        else:
            before, after = (item for item in rendered if not isinstance(item, str))
            comparisons.append(_compared(before, after, new, asked.progress))
    diverges = any(one.divergent for one in comparisons)
    swept = None
    if asked.sweep == "always" or (asked.sweep == "auto" and not diverges):
        swept = sweep(old, new, asked.progress)
    return _judged(old, new, differing, comparisons, swept, missing)


def _compared(before: SnapshotFile, after: SnapshotFile, new: Manifest, progress: Progress) -> SnapshotComparison:
    from kvgate.corpora.snapshots.comparison import compare_snapshots

    block = new.value("cache.chunk_size") or new.value("engine.block_size")
    return compare_snapshots(before, after, block_size=block if isinstance(block, int) else None, progress=progress)


def _dated(before: SnapshotFile, after: SnapshotFile) -> bool:
    """Whether both were rendered on known dates: a running server's template may read its clock."""
    return bool(before.header.clocks) and bool(after.header.clocks)


def _judged(
    old: Manifest,
    new: Manifest,
    differing: Sequence[Change],
    comparisons: Sequence[SnapshotComparison],
    swept: Swept | None,
    missing: dict[str, str],
) -> Evidence:
    figures = _figures(comparisons, swept)
    coverage = _coverage(comparisons, swept, missing)
    if refuted := _refuted(comparisons, swept):
        return about("token-identity", "refuted", old, new, refuted, figures, coverage)
    if not differing:
        return _equal(old, new, figures, coverage)
    if not comparisons and (swept is None or swept.missing is not None):
        why = next(iter(missing.values()))
        return about("token-identity", "not-run", old, new, why, figures, coverage)
    doubt = next(iter(missing.values()), None) or why_not_proved(old, new, differing, comparisons)
    if doubt is None:
        proved = (
            f"the chat template alone differs: equal ids in {comparisons[0].examined} renderings, and every changed "
            "branch ran and is shown to print the same"
        )
        return about("token-identity", "proved", old, new, proved, figures, coverage)
    return about("token-identity", "inconclusive", old, new, doubt, figures, coverage)


def _refuted(comparisons: Sequence[SnapshotComparison], swept: Swept | None) -> str | None:
    examined = sum(one.examined for one in comparisons)
    if divergent := sum(one.divergent for one in comparisons):
        first = next(one.divergences.first[0] for one in comparisons if one.divergent)
        return f"{divergent} of {examined} conversations diverge; first: {first.id} at token {first.token}" + (
            " (equal text, so the tokenizer parts them)" if first.same_text else ""
        )
    return None if swept is None else swept.found


def _figures(comparisons: Sequence[SnapshotComparison], swept: Swept | None) -> dict[str, Any]:
    from kvgate.corpora.divergence.figures import evidence_figures

    figures = evidence_figures(comparisons, redact=None)
    return figures if swept is None or swept.figures is None else {**figures, "sweep": swept.figures}


def _coverage(comparisons: Sequence[SnapshotComparison], swept: Swept | None, missing: dict[str, str]) -> Coverage:
    examined = {"conversations": sum(one.examined for one in comparisons)}
    missing = dict(missing)
    for one in comparisons:
        if one.unexamined.count:
            missing[f"{one.unexamined.count} conversations"] = "a side could not render them"
        if apart := one.only_old.count + one.only_new.count:
            missing[f"{apart} conversations of one side"] = "the other did not render them"
        if one.coverage is not None and one.coverage.open and not one.by_template:
            missing[f"{len(one.coverage.open)} changes of the chat template"] = str(one.coverage.open[0])
    if swept is not None:
        if swept.missing is not None:
            missing["sweep"] = swept.missing
        else:
            examined["swept strings"] = swept.strings
    return Coverage(examined=examined, missing=missing)
