"""Gathering: what the files at hand say about a pair of deployments, as evidence. Impure; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.inputs import sidecar_path
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Coverage, Evidence, Kind, State, subject_of
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress

if TYPE_CHECKING:
    from kvgate.corpora.comparison import SnapshotComparison
    from kvgate.corpora.corpus import Corpus
    from kvgate.corpora.snapshot import Snapshot
    from kvgate.weights.tensor_map import TensorMap

_NAMED = 20
"""How many tensors or conversations are named in figures; all are counted."""

_TOKEN_PATHS = (
    "tokenizer.effective",
    "tokenizer.vocabulary",
    "tokenizer.special_tokens",
    "tokenizer.renderer",
    "tokenizer.options",
    "chat_template",
)


def gather(old: Sequence[Manifest], new: Manifest, corpora: Sequence[Corpus], progress: Progress) -> list[Evidence]:
    """Compare what lies beside the manifests, or where their tokenizers can be loaded from.

    Args:
        old: the old deployments.
        new: the new one.
        corpora: further corpora to render on both sides.
        progress: told what is being compared.

    Returns:
        ``weights-identity`` and ``token-identity`` evidence for each old deployment, where there was
        something to compare; what could not be compared is said in its coverage.

    Raises:
        InputError: a sidecar that is missing, exchanged, or contradicts its manifest or the other side's.

    """
    maps = {manifest.source: sidecar_path(manifest, "weights.checkpoint.map") for manifest in (*old, new)}
    snapshots = {manifest.source: sidecar_path(manifest, "tokenizer.snapshot") for manifest in (*old, new)}
    evidence: list[Evidence] = []
    for number, one in enumerate(old):
        progress("comparing deployments", number, len(old), "deployments")
        evidence += _weights(one, new, maps[one.source], maps[new.source])
        evidence += _tokens(one, new, snapshots[one.source], snapshots[new.source], corpora, progress)
    return evidence


def _evidence(
    kind: Kind, state: State, old: Manifest, new: Manifest, reason: str, figures: dict[str, Any], coverage: Coverage
) -> Evidence:
    from kvgate import __version__

    return Evidence(
        schema="kvgate/evidence/v1",
        kind=kind,
        state=state,
        old=subject_of(old, kind),
        new=subject_of(new, kind),
        coverage=coverage,
        tools={"kvgate": __version__},
        figures=figures,
        reason=reason,
    )


# ---- weights ----


def _weights(
    old: Manifest, new: Manifest, old_map: tuple[Path, str] | None, new_map: tuple[Path, str] | None
) -> list[Evidence]:
    digests = [side.value("weights.checkpoint.digest") for side in (old, new)]
    if old_map is None or new_map is None or None in digests or digests[0] == digests[1]:
        return []
    from kvgate.weights.tensor_map import compare_maps

    difference = compare_maps(_map(old, *old_map), _map(new, *new_map))
    lists: dict[str, Sequence[str | tuple[str, str]]] = {
        "added": difference.added,
        "removed": difference.removed,
        "changed": difference.changed,
        "renamed": difference.renamed,
    }
    figures: dict[str, Any] = {
        name: {"count": len(found), "first": [_named(item) for item in found[:_NAMED]]}
        for name, found in lists.items()
        if found
    }
    kv = [side.value("weights.checkpoint.kv_digest") for side in (old, new)]
    rule = [side.value("weights.checkpoint.kv_rule") for side in (old, new)]
    tail_only = kv[0] is not None and kv[0] == kv[1] and rule[0] is not None and rule[0] == rule[1]
    counts = [f"{len(found)} {name}" for name, found in lists.items() if found]
    first = next((_named(found[0]) for found in lists.values() if found), None)
    reason = ", ".join([*counts, f"{difference.equal} equal"]) + (f"; first: {first}" if first else "")
    coverage = Coverage(examined={"tensors": difference.equal + sum(len(found) for found in lists.values())})
    return [
        _evidence(
            "weights-identity",
            "inconclusive" if tail_only else "refuted",
            old,
            new,
            reason,
            {**figures, "equal": difference.equal},
            coverage,
        )
    ]


def _named(item: str | tuple[str, str]) -> str:
    return item if isinstance(item, str) else f"{item[0]} -> {item[1]}"


def _map(manifest: Manifest, path: Path, sha256: str) -> TensorMap:
    from kvgate.weights.tensor_map import kv_digest_of, read_map

    found = read_map(path, sha256)
    where = manifest.where("weights.checkpoint.digest")
    if found.digest != manifest.value("weights.checkpoint.digest"):
        raise InputError("weights.checkpoint.digest is not that of the tensor map beside it", where=where)
    config = manifest.value("model.config")
    claimed = manifest.value("weights.checkpoint.kv_digest")
    if claimed is not None and config is not None:
        digest, rule = kv_digest_of(found, config)
        # A list of another version cannot be checked here; the comparison of kv_rule takes care of that.
        if rule == manifest.value("weights.checkpoint.kv_rule") and digest != claimed:
            raise InputError("weights.checkpoint.kv_digest is not that of the tensor map beside it", where=where)
    return found


# ---- tokens ----


def _tokens(
    old: Manifest,
    new: Manifest,
    old_file: tuple[Path, str] | None,
    new_file: tuple[Path, str] | None,
    corpora: Sequence[Corpus],
    progress: Progress,
) -> list[Evidence]:
    differ = any(
        not old.knows(path) or not new.knows(path) or old.value(path) != new.value(path) for path in _TOKEN_PATHS
    )
    exchanged = old_file is not None and new_file is not None and old_file[1] != new_file[1]
    if not differ and not exchanged and not corpora:
        return []
    comparisons, missing = [], {}
    before = _saved(old, old_file, progress)
    after = _saved(new, new_file, progress)
    if isinstance(before, str) or isinstance(after, str):
        missing["diagnostic corpus"] = before if isinstance(before, str) else str(after)
    else:
        comparisons.append(_compared(before, after))
        if not differ and comparisons[0].divergent and comparisons[0].same_renderer:
            first = comparisons[0].divergent[0].id
            raise InputError(
                f"tokenizer.snapshot: the tokens of {first} are not those beside {old.source}, "
                "although tokenizer, template, options and renderer are the same",
                where=new.where("tokenizer.snapshot"),
                hint="one of the snapshots was exchanged or edited; capture again",
            )
    for corpus in corpora:
        rendered = [_rendered(side, corpus, progress) for side in (old, new)]
        failed = [item for item in rendered if isinstance(item, str)]
        if failed:
            missing[corpus.id] = failed[0]
        else:
            comparisons.append(_compared(*(item for item in rendered if not isinstance(item, str))))
    return [_token_evidence(old, new, comparisons, missing)]


def _compared(before: Snapshot, after: Snapshot) -> SnapshotComparison:
    from kvgate.corpora.comparison import compare_snapshots

    return compare_snapshots(before, after)


def _saved(manifest: Manifest, file: tuple[Path, str] | None, progress: Progress) -> Snapshot | str:
    """Return the snapshot beside a manifest, or one rendered now from the files at hand, or why there is none."""
    if file is not None:
        from kvgate.corpora.snapshot import read_snapshot

        return read_snapshot(*file)
    from kvgate.corpora.corpus import load_corpus

    return _rendered(manifest, load_corpus("diagnostic"), progress)


def _rendered(manifest: Manifest, corpus: Corpus, progress: Progress) -> Snapshot | str:
    folder = manifest.value("tokenizer.path")
    if folder is None or not Path(folder).is_dir():
        return f"{manifest.source}: no snapshot, and no tokenizer files at hand"
    from kvgate.corpora.examine import examine

    options = manifest.value("tokenizer.options") or {}
    facts, snapshot = examine(Path(folder), corpus=corpus, options=options, progress=progress)
    template = None if facts.template is None else facts.template.digest
    if facts.effective != manifest.value("tokenizer.effective") or template != manifest.value("chat_template.digest"):
        return f"{manifest.source}: the files in {folder} are not those that were captured"
    if snapshot is None:
        return f"{manifest.source}: no tokenizer can be built from {folder} here"
    return snapshot


def _token_evidence(
    old: Manifest, new: Manifest, comparisons: Sequence[SnapshotComparison], missing: dict[str, str]
) -> Evidence:
    from kvgate.corpora.comparison import shared_blocks

    examined = sum(len(one.examined) for one in comparisons)
    divergent = [item for one in comparisons for item in one.divergent]
    for one in comparisons:
        if one.unexamined:
            missing[f"{len(one.unexamined)} conversations"] = "a side could not render them"
        if one.only_old or one.only_new:
            missing[f"{len(one.only_old) + len(one.only_new)} conversations of one side"] = (
                "the other did not render them"
            )
    block = new.value("cache.chunk_size") or new.value("engine.block_size")
    figures: dict[str, Any] = {
        "conversations": examined,
        "divergent": len(divergent),
        "first": [
            {
                "conversation": item.id,
                "token": item.shared,
                "oldTokens": item.old_tokens,
                "newTokens": item.new_tokens,
                "sameText": item.same_text,
            }
            for item in divergent[:_NAMED]
        ],
    }
    if isinstance(block, int) and comparisons:
        counted = [shared_blocks(one, block) for one in comparisons]
        figures["blocks"] = {
            "size": block,
            "old": sum(one.old for one in counted),
            "shared": sum(one.shared for one in counted),
        }
    coverage = Coverage(examined={"conversations": examined}, missing=missing)
    if divergent:
        first = divergent[0]
        reason = f"{len(divergent)} of {examined} conversations diverge; first: {first.id} at token {first.shared}" + (
            " (equal text, so the tokenizer parts them)" if first.same_text else ""
        )
        return _evidence("token-identity", "refuted", old, new, reason, figures, coverage)
    if not comparisons:
        return _evidence("token-identity", "not-run", old, new, next(iter(missing.values())), figures, coverage)
    return _evidence(
        "token-identity", "inconclusive", old, new, _why_not_proved(old, new, comparisons), figures, coverage
    )


def _why_not_proved(old: Manifest, new: Manifest, comparisons: Sequence[SnapshotComparison]) -> str:
    renderers = [side.value("tokenizer.renderer") for side in (old, new)]
    if renderers[0] != renderers[1] and all(one.same_renderer for one in comparisons):
        return (
            "no divergence, but one library rendered both sides although different ones serve: take each side's "
            "snapshot inside its own image (kvgate corpus snapshot)"
        )
    return "no divergence on the corpus; sampling proves no tokenizer or template equal"
