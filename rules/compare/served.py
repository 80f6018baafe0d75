"""Served weights: what running engines hold, compared in the form in which they hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest

PATH = "weights.served"
_FORM = ("engine", "engine_version", "architecture", "tensor", "pipeline")


def compare_served(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare what the ranks of two engines hold (kinds: ``differs``, ``unverified``).

    Where the ranks together hold their checkpoint, every byte of it and the same beside it, the checkpoints say how
    they differ, and served forms need not be the same. Nothing can be said where only one engine was asked, and
    it is not shown to hold its checkpoint alone: buffers of its own are compared with those of the other one.
    """
    if (equal := sides.same(PATH)) is None:
        return [sides.unverified(dimension, PATH, sides.unknown_sides(PATH))]
    if sides.both_null(PATH):
        return []  # nobody was asked: the checkpoints speak for what is served
    asked = [side for side in (sides.old, sides.new) if not side.unset(PATH)]
    if not all(measured(side.get(PATH)) for side in asked):
        return [sides.unverified(dimension, PATH, "only declared: no engine was asked")]
    shown = all(holds_checkpoint(side) and measured(side.get("weights.checkpoint.digest")) for side in asked)
    if len(asked) == 1:
        detail = "one engine was asked, and what it holds is not shown to be its checkpoint; ask the other one as well"
        if shown and beside(asked[0]) == frozenset({None}):
            return []
        if shown:
            detail = "one engine was asked, and it holds buffers beside its checkpoint; ask the other one as well"
        return [sides.unverified(dimension, PATH, detail)]
    old, new = (side.value(PATH) for side in asked)
    if equal or _of("digest", old) == _of("digest", new):
        return []
    if shown and beside(sides.old) == beside(sides.new) is not None:
        return []
    if any(_of(name, old) != _of(name, new) for name in _FORM) or any(
        entry.get(name) is None for entry in old.values() for name in _FORM
    ):
        detail = "not known to be of one served form (engine, version, model class, ranks), so they do not compare"
        return [sides.unverified(dimension, PATH, detail)]
    others = sorted((rank for rank in old if old[rank]["digest"] != new[rank]["digest"]), key=int)
    detail = f"rank{'s' * (len(others) > 1)} {', '.join(others)} of {len(old)} hold{'s' * (len(others) == 1)} others"
    return [sides.change(dimension, "differs", PATH, detail=detail)]  # whole: a waiver of one rank is none of others


def holds_checkpoint(side: Manifest) -> bool:
    """Whether the ranks of an engine that was asked hold the checkpoint that the manifest names, and all of it."""
    served, checkpoint = side.value(PATH), side.value("weights.checkpoint.digest")
    return bool(served) and checkpoint is not None and set(_of("checkpoint", served).values()) == {checkpoint}


def beside(side: Manifest) -> frozenset[str | None] | None:
    """Return what the ranks hold beside their checkpoint; ``None`` where that is not known of each of them."""
    entries = (side.value(PATH) or {}).values()
    return frozenset(entry["own"] for entry in entries) if all("own" in entry for entry in entries) else None


def _of(name: str, served: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one field of every rank."""
    return {rank: entry.get(name) for rank, entry in served.items()}
