"""Served weights: what running engines hold, compared in the form in which they hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest

PATH = "weights.served"
_PLACES = ("tensor", "pipeline")
_FORM = ("engine", "engine_version", "architecture", *_PLACES)
EVERY = "every"  # rank


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
    if not all(is_whole(side) for side in asked):
        detail = (
            "not known to be all ranks of one engine (engine, version, model class, each place once); capture again"
        )
        return [sides.unverified(dimension, PATH, detail)]
    shown = all(holds_checkpoint(side) and measured(side.get("weights.checkpoint.digest")) for side in asked)
    if len(asked) == 1:
        detail = "one engine was asked, and what it holds is not shown to be its checkpoint; ask the other one as well"
        if shown and beside(asked[0]) == {EVERY: None}:
            return []
        if shown:
            detail = "one engine was asked, and it holds buffers beside its checkpoint; ask the other one as well"
        return [sides.unverified(dimension, PATH, detail)]
    old, new = (side.value(PATH) for side in asked)
    other = [name for name in _FORM if _of(name, old) != _of(name, new)]
    if equal or (not other and _of("digest", old) == _of("digest", new)):
        return []
    own = beside(sides.old)
    if shown and own is not None and own == beside(sides.new) and (EVERY in own or not {*_PLACES} & {*other}):
        return []
    if other:
        detail = "not known to be of one served form (engine, version, model class, ranks), so they do not compare"
        return [sides.unverified(dimension, PATH, detail)]
    others = sorted((rank for rank in old if old[rank]["digest"] != new[rank]["digest"]), key=int)
    detail = f"rank{'s' * (len(others) > 1)} {', '.join(others)} of {len(old)} hold{'s' * (len(others) == 1)} others"
    return [sides.change(dimension, "differs", PATH, detail=detail)]  # whole: a waiver of one rank is none of others


def is_whole(side: Manifest) -> bool:
    """Whether the ranks are known to be all of one engine: its form is known, and each place is there once."""
    served = side.value(PATH) or {}
    forms = {
        tuple(entry.get(name) for name in ("engine", "engine_version", "architecture")) for entry in served.values()
    }
    if len(forms) != 1 or None in next(iter(forms)):
        return False
    places = [tuple(entry.get(name) for name in _PLACES) for entry in served.values()]
    if any(None in place for place in places):
        return False
    sizes = {tuple(place["size"] for place in both) for both in places}
    ranks = [tuple(place["rank"] for place in both) for both in places]
    if len(sizes) != 1 or any(rank >= size for one in ranks for rank, size in zip(one, next(iter(sizes)), strict=True)):
        return False
    return len({*ranks}) == math.prod(next(iter(sizes))) and {*served} == {str(number) for number in range(len(served))}


def holds_checkpoint(side: Manifest) -> bool:
    """Whether the ranks of an engine that was asked hold the checkpoint that the manifest names, and all of it."""
    served, checkpoint = side.value(PATH), side.value("weights.checkpoint.digest")
    return is_whole(side) and checkpoint is not None and set(_of("checkpoint", served).values()) == {checkpoint}


def beside(side: Manifest) -> dict[str, str | None] | None:
    """Return what the ranks hold beside their checkpoint; ``None`` where that is not known of each of them.

    By rank, because a scale that another rank has is another scale; under ``EVERY`` where all hold the same.
    """
    served = side.value(PATH) or {}
    if not all("own" in entry for entry in served.values()):
        return None
    own = _of("own", served)
    return {EVERY: next(iter(own.values()))} if len({*own.values()}) == 1 else own


def _of(name: str, served: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one field of every rank."""
    return {rank: entry.get(name) for rank, entry in served.items()}
