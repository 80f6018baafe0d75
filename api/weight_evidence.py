"""What the tensor maps beside two manifests say about each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvgate.evidence import NAMED, about
from kvgate.rules.evidence import Coverage, Evidence
from kvgate.rules.manifest import Manifest

if TYPE_CHECKING:
    from kvgate.weights.tensor_map import TensorMap


def weight_evidence(
    old: Manifest, new: Manifest, old_map: TensorMap | None, new_map: TensorMap | None
) -> list[Evidence]:
    """Compare two tensor maps.

    Args:
        old: the old deployment.
        new: the new one.
        old_map: the old side's map, ``None``: there is none (:func:`kvgate.weight_maps.tensor_map`).
        new_map: the new side's.

    Returns:
        ``weights-identity`` evidence; nothing where the digests are equal or a map is missing.
    """
    if old_map is None or new_map is None or old_map.digest == new_map.digest:
        return []
    from kvgate.weights.opaque import RULE
    from kvgate.weights.tensor_map import compare_maps

    rule = [side.value("weights.checkpoint.kv_rule") for side in (old, new)]
    if RULE in rule:  # files that nobody looked into say nothing about tensors
        return []

    difference = compare_maps(old_map, new_map)
    lists: dict[str, Sequence[str | tuple[str, str]]] = {
        "added": difference.added,
        "removed": difference.removed,
        "changed": difference.changed,
        "renamed": difference.renamed,
    }
    figures: dict[str, Any] = {
        name: {"count": len(found), "first": [_named(item) for item in found[:NAMED]]}
        for name, found in lists.items()
        if found
    }
    kv = [side.value("weights.checkpoint.kv_digest") for side in (old, new)]
    tail_only = kv[0] is not None and kv[0] == kv[1] and rule[0] is not None and rule[0] == rule[1]
    counts = [f"{len(found)} {name}" for name, found in lists.items() if found]
    first = next((_named(found[0]) for found in lists.values() if found), None)
    reason = ", ".join([*counts, f"{difference.equal} equal"]) + (f"; first: {first}" if first else "")
    coverage = Coverage(examined={"tensors": difference.equal + sum(len(found) for found in lists.values())})
    return [
        about(
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
