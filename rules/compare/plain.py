"""Comparisons that need nothing but the two values."""

from __future__ import annotations

from kvgate.rules.attention import replicas_divide_attention
from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change
from kvgate.rules.compare.maps import normal_config
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest


def compare_exact(dimension: Dimension, sides: Sides) -> list[Change]:
    """Every path equal and known, or a change (kinds: ``differs``, ``unverified``)."""
    changes = []
    for path in dimension.paths:
        match sides.same(path):
            case None:
                changes.append(sides.unverified(dimension, path, sides.unknown_sides(path)))
            case _ if dimension.never_unset and None in (sides.old.value(path), sides.new.value(path)):
                changes.append(sides.unverified(dimension, path, "null names none, and there is one"))
            case False if dimension.default_of and None in (sides.old.value(path), sides.new.value(path)):
                detail = "left to the engine's default on one side, which may be the other side's very value"
                changes.append(sides.unverified(dimension, path, detail))
            case False:
                changes.append(sides.change(dimension, "differs", path))
            case True if sides.both_null(path) and not sides.defaults_known_equal(dimension):
                changes.append(sides.default_unverified(dimension, path))
            case True:
                pass
    return changes


def compare_roles(dimension: Dimension, sides: Sides) -> list[Change]:
    """Pools (kinds: ``differs``, ``unverified``); what is unknown of the new side is judged where it is alone."""
    return [] if sides.judged_alone(dimension.paths[0]) else compare_exact(dimension, sides)


def compare_replicas(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare the number of replicas (kinds: ``differs``, ``sharded``, ``unverified``).

    Replicas compute the same blocks, so a difference is worth a line (``differs``) and not knowing is fine, except
    where their number divides the ranks of attention (``sharded``).
    """
    path = dimension.paths[0]
    divides = any(replicas_divide_attention(side) for side in (sides.old, sides.new))
    match sides.same(path):
        case None if divides:
            return [sides.unverified(dimension, path, sides.unknown_sides(path))]
        case False if divides:
            detail = "attention may be data parallel, so its ranks hold other heads"
            return [sides.change(dimension, "sharded", path, detail=detail)]
        case False:
            return [sides.change(dimension, "differs", path)]
        case _:
            return []


def compare_label(_dimension: Dimension, _sides: Sides) -> list[Change]:
    """Labels are never identity: no changes."""
    return []


def compare_scales(dimension: Dimension, sides: Sides) -> list[Change]:
    """KV scales (kinds: ``differs``, ``dynamic``, ``unverified``): those made while running compare to nothing."""
    path = dimension.paths[0]
    if sides.judged_alone(path):
        return []
    if "dynamic" in (sides.old.value(path), sides.new.value(path)):
        return [
            sides.change(dimension, "dynamic", path, detail="scales calibrated at run time differ between processes")
        ]
    return compare_exact(dimension, sides)


def compare_mutable(dimension: Dimension, sides: Sides) -> list[Change]:
    """Weights updated in place (kinds: ``was-mutable``, ``unverified``); the new side's own is a self-fault."""
    path = dimension.paths[0]
    if sides.judged_alone(path):
        return []
    if sides.old.value(path) is True:
        return [sides.change(dimension, "was-mutable", path, detail="old entries may come from any weights it held")]
    if sides.same(path) is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    return [] if sides.same(path) else [sides.change(dimension, "now-mutable", path)]


def compare_build(dimension: Dimension, sides: Sides) -> list[Change]:
    """Image and package set (kinds: ``rebuilt``, ``differs``, ``unverified``).

    Equal packages in another image are a rebuild. Where neither side is containerised nor its packages
    listed (both ``null``), engine name and version stand for the build.
    """
    image, packages = (sides.same(path) for path in dimension.paths)
    image_path, packages_path = dimension.paths
    if image is None or packages is None:
        path = image_path if image is None else packages_path
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    if packages and not sides.both_null(packages_path):
        return (
            []
            if image
            else [sides.change(dimension, "rebuilt", image_path, detail="the same packages in another image")]
        )
    if (
        image
        and not sides.both_null(image_path)
        and None in (sides.old.value(packages_path), sides.new.value(packages_path))
    ):
        return []  # the same image holds the same packages; one side did not list them
    if not packages:
        # The same image holds the same packages, so this is a contradiction; the difference counts.
        return [sides.change(dimension, "differs", packages_path)]
    if not image:
        return [sides.change(dimension, "differs", image_path, detail="and no package digest to compare")]
    if sides.both_null(image_path) and not (sides.same("engine.name") and sides.same("engine.version")):
        return [
            sides.unverified(
                dimension, image_path, "no image, no package digest, and the engine's version is not known to be equal"
            )
        ]
    return []


def compare_connector_version(dimension: Dimension, sides: Sides) -> list[Change]:
    """The connector's version (kinds: ``differs``, ``unverified``).

    Where it is left to what is installed (both ``null``), the same packages or the same image hold the same
    connector, and a connector that is part of its engine has the engine's version.
    """
    path = dimension.paths[0]
    equal = sides.same(path)
    if equal is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    if not equal:
        return [sides.change(dimension, "differs", path)]
    if not sides.both_null(path):
        return []
    profiles = {
        cover.profile.versions.path
        for cover in (sides.old_cover, sides.new_cover)
        if cover.profile and cover.profile.versions
    }
    part_of_the_engine = profiles == {"engine.version"} and sides.same("engine.version") is True
    installed = any(sides.same(one) is True and not sides.both_null(one) for one in ("engine.packages", "engine.image"))
    return [] if part_of_the_engine or installed else [sides.default_unverified(dimension, path)]


def compare_max_model_len(dimension: Dimension, sides: Sides) -> list[Change]:
    """The longest sequence (kinds: ``rope-dependent``, ``inert``, ``unverified``).

    Only length-dependent RoPE reads it: vLLM 0.32 switches longrope's factors where ``max_model_len``
    exceeds ``original_max_position_embeddings``; dynamic NTK depends on it in any case.
    """
    path = dimension.paths[0]
    equal = sides.same(path)
    if equal and not (sides.both_null(path) and not sides.defaults_known_equal(dimension)):
        return []
    if equal is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    old_rope, new_rope = (_rope(side) for side in (sides.old, sides.new))
    if old_rope is None or new_rope is None:
        return [sides.unverified(dimension, path, "whether the model's RoPE depends on it is not known")]
    kinds = {old_rope[0], new_rope[0]}
    if equal:  # both unset, and what sets the default may differ
        inert = not kinds & {"dynamic", "longrope"}
        return [] if inert else [sides.unverified(dimension, path, "unset on both sides, and the default may differ")]
    if "dynamic" in kinds:
        return [sides.change(dimension, "rope-dependent", path, detail="dynamic RoPE depends on the length limit")]
    if "longrope" in kinds:
        crossing = {_exceeds(side, rope[1]) for side, rope in ((sides.old, old_rope), (sides.new, new_rope))}
        if None in crossing:
            return [
                sides.unverified(
                    dimension, path, "longrope's original_max_position_embeddings or the limit is not known"
                )
            ]
        if len(crossing) == 2:
            return [
                sides.change(
                    dimension, "rope-dependent", path, detail="crosses longrope's original_max_position_embeddings"
                )
            ]
    return [sides.change(dimension, "inert", path, detail="this model's RoPE does not depend on it")]


def _exceeds(side: Manifest, limit: object) -> bool | None:
    length = side.value("engine.max_model_len")
    return length > limit if isinstance(length, int) and isinstance(limit, int) else None


def rope_reads_length(side: Manifest) -> bool | None:
    """Whether this model's RoPE depends on the engine's length limit; ``None`` where that is not known."""
    rope = _rope(side)
    return None if rope is None else rope[0] in ("dynamic", "longrope")


_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn", "mrope", "none"})


def _rope(side: Manifest) -> tuple[str, object] | None:
    """Return the RoPE type that depends most on the length, and longrope's original limit; ``None``: not known."""
    written = side.value("model.config")
    if not isinstance(written, dict):
        return None
    config = normal_config(written)
    found: list[tuple[str, object]] = []
    for part, as_written in ((config, written), (config.get("text_config"), written.get("text_config"))):
        if not isinstance(part, dict) or not isinstance(as_written, dict):
            continue
        rope = part.get("rope_parameters")
        original = part.get("original_max_position_embeddings")
        if part.get("rope_scaling") is not None:
            return None  # nothing that can be read as RoPE settings
        if rope is None:
            said = "rope_parameters" in as_written or "rope_scaling" in as_written
            found.append(("default", None) if said else ("", None))
        elif isinstance(rope, dict):
            nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
            for item in nested:
                kind = item.get("rope_type", item.get("type", "default"))
                found.append((str(kind), item.get("original_max_position_embeddings", original)))
    known = [entry for entry in found if entry[0]]
    for kind in ("dynamic", "longrope", "su"):
        for entry in known:
            if entry[0] == kind:
                return ("longrope", entry[1]) if kind == "su" else entry
    if not known or any(entry[0] not in _FIXED_ROPE for entry in known):
        return None
    return known[0]
