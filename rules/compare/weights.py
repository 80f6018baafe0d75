"""Weights: digests decide; where a side says that none was taken, a pinned commit or the hub's file digests may."""

from __future__ import annotations

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured
from kvgate.rules.compare.maps import counting_args
from kvgate.rules.compare.published import compare_published, floating
from kvgate.rules.compare.sides import Sides
from kvgate.rules.values import Known

_RULE = "weights.checkpoint.kv_rule"
_OPAQUE = "opaque"  # kv_rule of files that were hashed without a look at their tensors (kvgate.weights.opaque)


def compare_weights(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare tensor digests (kinds: ``kv-tensors``, ``tail-only``, ``layout``, ``unverified``).

    ``tail-only``: every difference lies in tensors that no persisted state depends on. It needs equal
    ``kv_digest`` computed under the same list, the same engine, no quantization, and speculation known to
    be off (a draft model feeds on the last layer's output and persists KV of its own).
    """
    checkpoint, digest = "weights.checkpoint", "weights.checkpoint.digest"
    if sides.old.unset(checkpoint) or sides.new.unset(checkpoint):
        return compare_published(dimension, sides)
    if (equal := sides.same(digest)) is None:
        return [sides.unverified(dimension, digest, sides.unknown_sides(digest) + floating(sides))]
    if equal:
        if not measured(sides.old.get(digest)) or not measured(sides.new.get(digest)):
            return [sides.unverified(dimension, digest, "equal, but only declared: nobody computed them")]
        layout = "weights.checkpoint.layout"
        if sides.same(layout) is False:
            return [sides.change(dimension, "layout", layout, detail="the same tensors in other files")]
        return []
    if _OPAQUE in (sides.old.value(_RULE), sides.new.value(_RULE)) or sides.same(_RULE) is None:
        detail = "files were hashed without a look at their tensors, and other files may hold the same ones"
        if sides.same(_RULE) is None:
            detail = f"{_RULE}: {sides.unknown_sides(_RULE)}, so the digests may be of files, not of tensors"
        return [sides.unverified(dimension, digest, detail)]
    if (why := _not_tail_only(sides)) is None:
        return [
            sides.change(
                dimension,
                "tail-only",
                digest,
                detail=f"only tensors that no persisted state depends on differ (list {sides.new.value(_RULE)})",
            )
        ]
    return [sides.change(dimension, "kv-tensors", digest, detail=why)]


def _not_tail_only(sides: Sides) -> str | None:
    kv, rule = "weights.checkpoint.kv_digest", _RULE
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
    for side in (sides.old, sides.new):
        args = side.get("engine.args")
        if not isinstance(args, Known):
            return "the launch flags are not known, so every tensor counts"
        if flags := sorted(counting_args(args.value or {}, side.value("engine.name"))):
            # It may quantize, or put another class in the place of the one that the list was proved with.
            return f"what --{flags[0]} does to the model is not known, so every tensor counts"
    if not sides.both_null("engine.speculative"):
        return "speculative decoding is not known to be off, and a draft model depends on every layer"
    return None
