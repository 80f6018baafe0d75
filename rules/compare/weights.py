"""Weights: digests decide; where a side says that none was taken, a pinned commit or the hub's file digests may."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured, same
from kvgate.rules.compare.sides import Sides

_RULE = "weights.checkpoint.kv_rule"
_OPAQUE = "opaque"  # kv_rule of files that were hashed without a look at their tensors (kvgate.weights.opaque)
_FILES = "weights.hub.files"
_TENSORS = ".safetensors"
_INDEX = ".index.json"


def compare_weights(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare tensor digests (kinds: ``kv-tensors``, ``tail-only``, ``layout``, ``unverified``).

    ``tail-only``: every difference lies in tensors that no persisted state depends on. It needs equal
    ``kv_digest`` computed under the same list, the same engine, no quantization, and speculation known to
    be off (a draft model feeds on the last layer's output and persists KV of its own).
    """
    checkpoint, digest = "weights.checkpoint", "weights.checkpoint.digest"
    if sides.old.unset(checkpoint) or sides.new.unset(checkpoint):
        return _published(dimension, sides)
    if (equal := sides.same(digest)) is None:
        return [sides.unverified(dimension, digest, sides.unknown_sides(digest) + _floating(sides))]
    if equal:
        if not measured(sides.old.get(digest)) or not measured(sides.new.get(digest)):
            return [sides.unverified(dimension, digest, "equal, but only declared: nobody computed them")]
        layout = "weights.checkpoint.layout"
        if sides.same(layout) is False:
            return [sides.change(dimension, "layout", layout, detail="the same tensors in other files")]
        return []
    if _OPAQUE in (sides.old.value(_RULE), sides.new.value(_RULE)):
        detail = "files were hashed without a look at their tensors, and other files may hold the same ones"
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
    if not sides.both_null("engine.speculative"):
        return "speculative decoding is not known to be off, and a draft model depends on every layer"
    return None


def _published(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare by what the hub says, where a side says that no digest was taken.

    Files whose published SHA-256 are equal are equal, and so is what loaders make of them. Files that differ can still
    hold the same tensors.
    """
    checkpoint = "weights.checkpoint"
    old, new = (_commit(side.value("weights.hub")) for side in (sides.old, sides.new))
    null = sides.both_null(checkpoint)
    if not _one_set(sides):
        detail = "a repository may hold several sets of weights, and model.id names another one of them"
        return [sides.unverified(dimension, checkpoint, detail)]
    if null and old is not None and old == new:
        return []
    if not sides.old.knows(checkpoint) or not sides.new.knows(checkpoint):
        return [sides.unverified(dimension, checkpoint, sides.unknown_sides(checkpoint))]
    files = [_weight_files(side.value(_FILES)) for side in (sides.old, sides.new)]
    if files[0] is None or files[1] is None:
        if null and old is not None and new is not None:
            path = "weights.hub"
            return [sides.change(dimension, "kv-tensors", path, detail="another commit, and no digests to compare")]
        what = "no digest and no pinned hub commit" if null else "a digest was taken on one side only"
        return [sides.unverified(dimension, checkpoint, what + _floating(sides))]
    if files[0] != files[1]:
        names = sorted(name for name in files[0].keys() | files[1].keys() if files[0].get(name) != files[1].get(name))
        detail = f"{names[0]} and {len(names) - 1} more files" if len(names) > 1 else names[0]
        return [sides.unverified(dimension, _FILES, f"{detail} differ; only the tensors in them say what that means")]
    if not measured(sides.old.get(_FILES)) or not measured(sides.new.get(_FILES)):
        return [sides.unverified(dimension, _FILES, "equal, but only declared: nobody asked the hub")]
    return []


def _one_set(sides: Sides) -> bool:
    """Whether both sides load the same of what a repository holds; ``org/model:Q4_K_M`` is one file of several."""
    ids = [side.value("model.id") for side in (sides.old, sides.new)]
    return ids[0] == ids[1] or not any(":" in name or name.endswith(".gguf") for name in map(str, ids))


def _weight_files(files: object) -> dict[str, str] | None:
    """Return the published digests of the files that a loader takes tensors from; ``None``: they do not say enough.

    A file outside Git LFS is known by its SHA-1 alone: enough for an index, as for a commit, and not for tensors.
    """
    if not isinstance(files, Mapping):
        return None
    found = {name: str(digest) for name, digest in files.items() if name.endswith((_TENSORS, _INDEX))}
    tensors = [digest for name, digest in found.items() if name.endswith(_TENSORS)]
    return found if tensors and all(digest.startswith("sha256:") for digest in tensors) else None


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
