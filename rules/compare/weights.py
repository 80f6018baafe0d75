"""Weights: digests decide; a pinned commit stands in only where both sides say that no digest was taken."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured, same
from kvgate.rules.compare.sides import Sides


def compare_weights(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare tensor digests (kinds: ``kv-tensors``, ``tail-only``, ``layout``, ``unverified``).

    ``tail-only``: every difference lies in tensors that no persisted state depends on. It needs equal
    ``kv_digest`` computed under the same list, the same engine, no quantization, and speculation known to
    be off (a draft model feeds on the last layer's output and persists KV of its own).
    """
    checkpoint, digest = "weights.checkpoint", "weights.checkpoint.digest"
    if sides.both_null(checkpoint):
        return _pinned(dimension, sides)
    if sides.old.unset(checkpoint) or sides.new.unset(checkpoint):
        return [sides.unverified(dimension, checkpoint, "a digest was taken on one side only")]
    if (equal := sides.same(digest)) is None:
        return [sides.unverified(dimension, digest, sides.unknown_sides(digest) + _floating(sides))]
    if equal:
        if not measured(sides.old.get(digest)) or not measured(sides.new.get(digest)):
            return [sides.unverified(dimension, digest, "equal, but only declared: nobody computed them")]
        layout = "weights.checkpoint.layout"
        if sides.same(layout) is False:
            return [sides.change(dimension, "layout", layout, detail="the same tensors in other files")]
        return []
    if (why := _not_tail_only(sides)) is None:
        return [
            sides.change(
                dimension,
                "tail-only",
                digest,
                detail="only tensors that no persisted state depends on differ (list "
                f"{sides.new.value('weights.checkpoint.kv_rule')})",
            )
        ]
    return [sides.change(dimension, "kv-tensors", digest, detail=why)]


def _not_tail_only(sides: Sides) -> str | None:
    kv, rule = "weights.checkpoint.kv_digest", "weights.checkpoint.kv_rule"
    for path in (kv, rule):
        if sides.both_null(path) or sides.same(path) is None:
            return f"{path} is not known on both sides, so every tensor counts"
    if not sides.same(rule):
        return "kv_digest was computed under different lists, so every tensor counts"
    if not sides.same(kv):
        return "tensors that K or V depend on differ"
    if not measured(sides.old.get(kv)) or not measured(sides.new.get(kv)):
        return "kv_digest is only declared, so every tensor counts"
    if sides.same("engine.name") is not True:
        return "the engines are not known to be the same, so every tensor counts"
    if not sides.both_null("model.quantization"):
        # An engine that quantizes fused QKV with one scale lets q_proj change K.
        return "the weights are not known to be unquantized, so every tensor counts"
    if not sides.both_null("engine.speculative"):
        return "speculative decoding is not known to be off, and a draft model depends on every layer"
    return None


def _pinned(dimension: Dimension, sides: Sides) -> list[Change]:
    path = "weights.hub"
    old, new = (_commit(side.value(path)) for side in (sides.old, sides.new))
    if old is None or new is None:
        return [
            sides.unverified(dimension, "weights.checkpoint", "no digest and no pinned hub commit" + _floating(sides))
        ]
    if old != new:
        return [sides.change(dimension, "kv-tensors", path, detail="another commit, and no digests to compare")]
    return []


def _commit(hub: object) -> tuple[str, str] | None:
    if not isinstance(hub, Mapping) or not isinstance(hub.get("repo"), str) or not isinstance(hub.get("commit"), str):
        return None
    return hub["repo"], hub["commit"]


def _floating(sides: Sides) -> str:
    revision = "model.revision"
    if same(sides.old.get(revision), sides.new.get(revision)) and isinstance(sides.new.value(revision), str):
        value = sides.new.value(revision)
        if len(value) != 40:
            return f"; the revision {value!r} on both sides is a name that can move, not evidence"
    return ""
