"""Complete maps whose entries are classified by data: the effective config and the launch flags without a path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import Field

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, alike
from kvgate.rules.compare.sides import Sides
from kvgate.rules.packaged import DataModel, packaged_bytes, parse_data
from kvgate.rules.values import Known

_MISSING = object()
_NOT_SET = Known("<not set>")


class _ConfigFields(DataModel):
    source: str
    checked: str
    harmless: dict[str, str]
    counts: list[str]
    length_limits: list[str]
    aliases: dict[str, str]
    spellings: dict[str, dict[str, str]]


class _EngineArgs(DataModel):
    source: str
    checked: str
    harmless: dict[str, list[str]] = Field(description="engine to flags")


@cache
def config_fields() -> _ConfigFields:
    """Return the classification of config fields."""
    return parse_data(packaged_bytes("data", "config_fields.yaml"), "config_fields.yaml", _ConfigFields)


@cache
def _engine_args() -> _EngineArgs:
    return parse_data(packaged_bytes("data", "engine_args.yaml"), "engine_args.yaml", _EngineArgs)


def compare_config(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare effective configs leaf by leaf (kinds: ``counts``, ``harmless``, ``unclassified``, ``unverified``).

    The map is complete: a field on one side only was not set on the other.
    """
    path = dimension.paths[0]
    equal = sides.same(path)
    if equal is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    if not sides.old.value(path) or not sides.new.value(path):
        return [sides.unverified(dimension, path, "an empty config says nothing of the model")]
    if equal:
        return []
    old, new = (normal_config(side.value(path)) for side in (sides.old, sides.new))
    rope_fixed = _length_limit_is_inert(old) and _length_limit_is_inert(new)
    defaults = _other_defaults(sides)
    changes = []
    for keys, before, after in _leaf_differences(old, new):
        kind = _classify(keys, rope_fixed)
        # A field that one library has no default for, or that nobody listed: a release may have brought it.
        by_default = kind != "harmless" and (kind == "unclassified" or _NOT_SET in (before, after))
        detail = defaults if by_default else ""
        changes.append(Change(dimension.id, kind, ".".join((path, *keys)), before, after, detail=detail))
    if not changes:
        changes.append(sides.change(dimension, "harmless", path, detail="other spellings of the same values"))
    return changes


def _other_defaults(sides: Sides) -> str:
    """Say that two libraries filled in the defaults of the two configs; empty where that is not known."""
    old, new = (side.value("model.config_class.transformers") for side in (sides.old, sides.new))
    if old is None or new is None or old == new:
        return ""
    return f"the defaults were filled in by transformers {old} and {new}: capture both with one version"


def _classify(keys: tuple[str, ...], rope_fixed: bool) -> str:
    fields = config_fields()
    # Only the language model's own fields are classified: the same name in a vision tower means something else.
    own = keys[1:] if keys[0] == "text_config" and len(keys) > 1 else keys
    if own and own[0] in fields.harmless:  # with what lies below it: id2label is a map
        return "harmless"
    if len(own) == 1 and own[0] in fields.length_limits:
        return "harmless" if rope_fixed else "counts"
    return "counts" if own and own[0] in fields.counts else "unclassified"


def _length_limit_is_inert(config: Mapping[str, Any]) -> bool:
    """Whether ``max_position_embeddings`` leaves K alone: RoPE default, linear, llama3, yarn with its original.

    Found by perturbing transformers 5.24.0 models; dynamic, longrope and yarn without
    ``original_max_position_embeddings`` do read it. No RoPE at all (learned positions) counts.
    """
    text = config.get("text_config")
    rope = (text if isinstance(text, Mapping) else config).get("rope_parameters")
    if not isinstance(rope, Mapping):
        return False
    for item in [value for value in rope.values() if isinstance(value, Mapping)] or [rope]:
        kind = item.get("rope_type")
        if kind == "yarn" and item.get("original_max_position_embeddings") is not None:
            continue
        if kind not in ("default", "linear", "llama3"):
            return False
    return True


def normal_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Bring a config to one spelling: renamed fields under their current names, RoPE in ``rope_parameters``.

    transformers 5 reads ``rope_theta`` and ``rope_scaling`` into ``rope_parameters`` (and prefers
    ``rope_scaling`` where both stand), ``torch_dtype`` into ``dtype``, ``type`` into ``rope_type``.
    """
    fields = config_fields()
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key in fields.aliases and fields.aliases[key] in config:
            continue  # the current name wins where both stand
        name = fields.aliases.get(key, key)
        spelling = fields.spellings.get(name, {})
        result[name] = spelling.get(value, value) if isinstance(value, str) else value
    for part in ("text_config",):
        if isinstance(result.get(part), Mapping):
            result[part] = normal_config(result[part])
    return _normal_rope(result)


def _normal_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Put RoPE's old fields into ``rope_parameters``, where that says nothing yet.

    Where both stand, which of them counts depends on the library, so every one of them stays and counts.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, Mapping):
        scaling = config.get("rope_scaling")
        if scaling is None or isinstance(scaling, Mapping):
            old = {name: config.pop(name) for name in ("rope_theta",) if name in config}
            config.pop("rope_scaling", None)
            rope = {**old, **(scaling or {})} or rope
    elif config.get("rope_scaling", _MISSING) is None:
        del config["rope_scaling"]
    if isinstance(rope, Mapping):
        rope = dict(rope)
        if config.get("rope_theta", _MISSING) == rope.get("rope_theta", _MISSING):
            config.pop("rope_theta", None)
        if "type" in rope:
            rope.setdefault("rope_type", rope["type"])
            del rope["type"]
        if not any(isinstance(value, Mapping) for value in rope.values()):
            rope.setdefault("rope_type", "default")
        config["rope_parameters"] = rope
    return config


def counting_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in its normal spelling without the fields that no persisted state depends on."""
    normal = normal_config(config)
    fixed = _length_limit_is_inert(normal)

    def kept(part: Mapping[str, Any], prefix: tuple[str, ...]) -> dict[str, Any]:
        return {
            key: kept(value, (key,)) if key == "text_config" and isinstance(value, Mapping) else value
            for key, value in part.items()
            if _classify((*prefix, key), fixed) != "harmless"
        }

    return kept(normal, ())


def counting_args(args: Mapping[str, Any], engine: str | None) -> dict[str, Any]:
    """Return the launch flags without those that cannot change KV under that engine."""
    harmless = _engine_args().harmless.get(engine or "", ())
    return {flag: value for flag, value in args.items() if flag not in harmless}


def compare_args(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare launch flags flag by flag (kinds: ``harmless``, ``unclassified``, ``unverified``).

    ``null`` is none, as ``{}`` is.
    """
    path = dimension.paths[0]
    if sides.same(path) is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    harmless = _engine_args().harmless
    engines = {sides.old.value("engine.name"), sides.new.value("engine.name")}
    listed = set(harmless.get(engines.pop() or "", ())) if len(engines) == 1 else set()
    changes = []
    for keys, before, after in _leaf_differences(sides.old.value(path) or {}, sides.new.value(path) or {}):
        kind = "harmless" if keys[0] in listed else "unclassified"
        changes.append(Change(dimension.id, kind, ".".join((path, *keys)), before, after))
    return changes


def _leaf_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Known, Known]]:
    for key in sorted({*old, *new}):
        before, after = old.get(key, _MISSING), new.get(key, _MISSING)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _leaf_differences(before, after, (*prefix, key))
        elif not alike(before, after):
            yield (*prefix, key), _side(before), _side(after)


def _side(value: Any) -> Known:
    return _NOT_SET if value is _MISSING else Known(value)
