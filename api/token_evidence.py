"""What two renderers made of the same conversations, as evidence."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.evidence import about
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Coverage, Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress

if TYPE_CHECKING:
    from kvgate.corpora.comparison import SnapshotComparison
    from kvgate.corpora.corpus import Corpus
    from kvgate.corpora.snapshot import SnapshotFile

_TOKEN_PATHS = (
    "tokenizer.effective",
    "tokenizer.vocabulary",
    "tokenizer.special_tokens",
    "tokenizer.renderer",
    "tokenizer.options",
    "chat_template",
)


def token_evidence(
    old: Manifest,
    new: Manifest,
    old_file: tuple[Path, str] | None,
    new_file: tuple[Path, str] | None,
    corpora: Sequence[Corpus],
    progress: Progress,
) -> list[Evidence]:
    """Compare what two renderers made of the same conversations.

    Args:
        old: the old deployment.
        new: the new one.
        old_file: the old side's snapshot and the ``sha256:...`` it must have; ``None``: there is none.
        new_file: the new side's.
        corpora: further corpora to render on both sides.
        progress: told how far rendering is.

    Returns:
        ``token-identity`` evidence; nothing where there is nothing to compare.

    Raises:
        InputError: a snapshot is exchanged, or contradicts its manifest or the other side's.
    """
    differ = any(
        not old.knows(path) or not new.knows(path) or old.value(path) != new.value(path) for path in _TOKEN_PATHS
    )
    exchanged = old_file is not None and new_file is not None and old_file[1] != new_file[1]
    if not differ and not exchanged and not corpora:
        return []
    with tempfile.TemporaryDirectory(prefix="kvgate-") as scratch:
        return [_compare(old, new, old_file, new_file, corpora, Path(scratch), progress, differ=differ)]


def _compare(
    old: Manifest,
    new: Manifest,
    old_file: tuple[Path, str] | None,
    new_file: tuple[Path, str] | None,
    corpora: Sequence[Corpus],
    scratch: Path,
    progress: Progress,
    *,
    differ: bool,
) -> Evidence:
    comparisons, missing = [], {}
    before = _saved(old, old_file, scratch / "old", progress)
    after = _saved(new, new_file, scratch / "new", progress)
    if isinstance(before, str) or isinstance(after, str):
        missing["diagnostic corpus"] = before if isinstance(before, str) else str(after)
    else:
        comparisons.append(_compared(before, after, new, progress))
        if not differ and comparisons[0].divergent and comparisons[0].same_renderer:
            first = comparisons[0].divergences.first[0].id
            raise InputError(
                f"tokenizer.snapshot: the tokens of {first} are not those beside {old.source}, "
                "although tokenizer, template, options and renderer are the same",
                where=new.where("tokenizer.snapshot"),
                hint="one of the snapshots was exchanged or edited; capture again",
            )
    for corpus in corpora:
        rendered = [_rendered(side, corpus, scratch / name, progress) for side, name in ((old, "old"), (new, "new"))]
        failed = [item for item in rendered if isinstance(item, str)]
        if failed:
            missing[corpus.id] = failed[0]
        else:
            before, after = (item for item in rendered if not isinstance(item, str))
            comparisons.append(_compared(before, after, new, progress))
    return _token_evidence(old, new, comparisons, missing)


def _compared(before: SnapshotFile, after: SnapshotFile, new: Manifest, progress: Progress) -> SnapshotComparison:
    from kvgate.corpora.comparison import compare_snapshots

    block = new.value("cache.chunk_size") or new.value("engine.block_size")
    return compare_snapshots(before, after, block_size=block if isinstance(block, int) else None, progress=progress)


def _saved(
    manifest: Manifest, file: tuple[Path, str] | None, snapshot_to: Path, progress: Progress
) -> SnapshotFile | str:
    """Return the snapshot beside a manifest, or one rendered now from the files at hand, or why there is none."""
    if file is not None:
        from kvgate.corpora.snapshot import open_snapshot

        return open_snapshot(*file)
    from kvgate.corpora.corpus import load_corpus

    return _rendered(manifest, load_corpus("diagnostic"), snapshot_to, progress)


def _rendered(manifest: Manifest, corpus: Corpus, snapshot_to: Path, progress: Progress) -> SnapshotFile | str:
    folder = manifest.value("tokenizer.path")
    if folder is None or not Path(folder).is_dir():
        return f"{manifest.source}: no snapshot, and no tokenizer files at hand"
    from kvgate.corpora.examine import examine

    options = manifest.value("tokenizer.options") or {}
    facts, snapshot = examine(Path(folder), corpus=corpus, options=options, snapshot_to=snapshot_to, progress=progress)
    template = None if facts.template is None else facts.template.digest
    if facts.effective != manifest.value("tokenizer.effective") or template != manifest.value("chat_template.digest"):
        return f"{manifest.source}: the files in {folder} are not those that were captured"
    if snapshot is None:
        return f"{manifest.source}: no tokenizer can be built from {folder} here"
    return snapshot


def _token_evidence(
    old: Manifest, new: Manifest, comparisons: Sequence[SnapshotComparison], missing: dict[str, str]
) -> Evidence:
    from kvgate.corpora.divergence.figures import evidence_figures

    examined = sum(one.examined for one in comparisons)
    divergent = sum(one.divergent for one in comparisons)
    for one in comparisons:
        if one.unexamined.count:
            missing[f"{one.unexamined.count} conversations"] = "a side could not render them"
        if apart := one.only_old.count + one.only_new.count:
            missing[f"{apart} conversations of one side"] = "the other did not render them"
    figures = evidence_figures(comparisons, redact=None)
    coverage = Coverage(examined={"conversations": examined}, missing=missing)
    if divergent:
        first = next(one.divergences.first[0] for one in comparisons if one.divergent)
        reason = f"{divergent} of {examined} conversations diverge; first: {first.id} at token {first.token}" + (
            " (equal text, so the tokenizer parts them)" if first.same_text else ""
        )
        return about("token-identity", "refuted", old, new, reason, figures, coverage)
    if not comparisons:
        return about("token-identity", "not-run", old, new, next(iter(missing.values())), figures, coverage)
    return about("token-identity", "inconclusive", old, new, _why_not_proved(old, new, comparisons), figures, coverage)


def _why_not_proved(old: Manifest, new: Manifest, comparisons: Sequence[SnapshotComparison]) -> str:
    renderers = [side.value("tokenizer.renderer") for side in (old, new)]
    if renderers[0] != renderers[1] and all(one.same_renderer for one in comparisons):
        return (
            "no divergence, but one library rendered both sides although different ones serve: take each side's "
            "snapshot inside its own image (kvgate corpus snapshot)"
        )
    return "no divergence on the corpus; sampling proves no tokenizer or template equal"
