"""Tiny models that stand in for a pair of deployments, with what is known to differ between them planted in both.

Sizes are scaled down alike on both sides; what decides how KV is computed (RoPE, norms, kinds of attention, windows)
stays as the manifests have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.rules.change import alike, same
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known

_LAYERS = 3
_HIDDEN = 64
_WINDOW = 48
_SIZES: Mapping[str, int] = {
    "hidden_size": _HIDDEN,
    "n_embd": _HIDDEN,
    "d_model": _HIDDEN,
    "intermediate_size": 128,
    "n_inner": 128,
    "ffn_hidden_size": 128,
    "ffn_dim": 128,
    "word_embed_proj_dim": _HIDDEN,
    "intermediate_size_mlp": 128,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "num_hidden_layers": _LAYERS,
    "n_layer": _LAYERS,
    "n_layers": _LAYERS,
    "num_kv_shared_layers": 1,
    "rotary_dim": 8,
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_head_dim": 32,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "max_window_layers": 2,
}
"""What is made small, where it is set and larger: nothing of it decides what a key or value is, only how many."""

VOCABULARY = 512
_DROPPED = frozenset({"quantization_config", "auto_map", "torch_dtype", "dtype"})
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FLOATS = frozenset({"float32", "float16", "bfloat16"})
_SAVED = frozenset({*_FLOATS, "fp8_e4m3", "fp8_e5m2"})
_DIGEST, _REVISION = "weights.checkpoint.digest", "model.revision"
_COMMIT_LENGTH = 40  # hex digits; a branch or tag says nothing
_GENERIC: Mapping[str, Any] = {"model_type": "llama", "hidden_size": _HIDDEN, "num_hidden_layers": _LAYERS}


@dataclass(frozen=True)
class Side:
    """What stands in for one deployment.

    Attributes:
        config: a whole config.
        seed: of its weights.
        tail_seed: of what no cached key or value depends on.
        dtype: in which it computes.
        saved: in which KV is stored.
        adapters: what is known of each, for :func:`kvgate.probes.embedded.models.build`.

    """

    config: Mapping[str, Any]
    seed: int
    tail_seed: int
    dtype: str
    saved: str
    adapters: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Pair:
    """What stands in for two deployments, what of their differences is planted, and what is not and why."""

    old: Side
    new: Side
    staged: Mapping[str, str]
    missing: Mapping[str, str]


def stand_in(old: Manifest, new: Manifest) -> Pair:
    """Return what stands in for a pair.

    A difference is planted only where both sides are known: a model made up for something that nobody knows would
    prove, or refute, nothing.
    """
    staged: dict[str, str] = {}
    missing: dict[str, str] = {}
    configs = _configs(old, new, staged, missing)
    seeds = _seeds(old, new, staged, missing)
    formats = _formats(old, new, staged, missing)
    adapters = _adapters(old, new, staged, missing)
    first, second = (
        Side(config, seed, tail, *kinds, made)
        for config, (seed, tail), kinds, made in zip(configs, seeds, formats, adapters, strict=True)
    )
    return Pair(first, second, staged, missing)


def seed_of(text: str) -> int:
    """Return a seed that is another one for another text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big")


def _configs(old: Manifest, new: Manifest, staged: dict[str, str], missing: dict[str, str]) -> list[dict[str, Any]]:
    known = [_text(side.value("model.config")) for side in (old, new)]
    if not all(isinstance(config, Mapping) and config.get("model_type") for config in known):
        missing["model.config"] = "not known on both sides: a generic Llama stands in for both"
        return [_scaled(_GENERIC, _WINDOW)] * 2
    widest = max((config.get("sliding_window") or 0 for config in known), default=0) or _WINDOW
    scaled = [_scaled(config, widest) for config in known]
    windows = [config.get("sliding_window") for config in known]
    if windows[0] != windows[1] and scaled[0].get("sliding_window") == scaled[1].get("sliding_window"):
        scaled[0]["sliding_window"] += 8  # two that scale to one and the same
    differing = sorted(
        name
        for name in known[0].keys() | known[1].keys()
        if name not in _DROPPED and not alike(known[0].get(name), known[1].get(name))
    )
    lost = [name for name in differing if alike(scaled[0].get(name), scaled[1].get(name))]
    if kept := [name for name in differing if name not in lost]:
        staged["model.config"] = f"as the manifests have it: {', '.join(kept)}"
    if lost:
        missing["model.config"] = f"the stand-in is too small for what differs: {', '.join(lost)}"
    return scaled


def _text(config: Any) -> Any:
    """The part that describes the language model."""
    inner = config.get("text_config") if isinstance(config, Mapping) else None
    return inner if isinstance(inner, Mapping) else config


def _scaled(config: Mapping[str, Any], widest: int) -> dict[str, Any]:
    small = {name: value for name, value in config.items() if name not in _DROPPED}
    small |= {name: _at_most(small[name], size) for name, size in _SIZES.items() if name in small}
    if "num_experts_per_tok" in small and small["num_experts_per_tok"] is None:
        small["num_experts_per_tok"] = _SIZES["num_experts_per_tok"]  # unset in a class: every release sets it
    heads = small.get("num_attention_heads")
    for shared in ("num_key_value_heads", "num_kv_heads"):
        if type(heads) is int and config.get(shared) == config.get("num_attention_heads"):
            small[shared] = heads  # MLA, and models without groups
    if window := small.get("sliding_window"):
        small["sliding_window"] = max(8, window * _WINDOW // widest)
    layers = config.get("num_hidden_layers")
    for name, value in small.items():
        if isinstance(value, list) and value and len(value) == layers:
            small[name] = value[:_LAYERS]
            if isinstance(value[0], str):
                small[name] = _kinds(value, _LAYERS, small.get("num_kv_shared_layers") or 0)
    small.pop("per_layer_config", None)  # sizes of single layers, which the class makes anew
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := small.get(name), Mapping):
            small[name] = _rope(rope, float(config.get("partial_rotary_factor") or 1))
    small["vocab_size"] = VOCABULARY
    return {**small, **dict.fromkeys(_IDS)}


def _rope(rope: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Cut what longrope lists for each pair of a head's dimensions."""
    pairs = int(_SIZES["head_dim"] * float(rope.get("partial_rotary_factor") or part)) // 2
    return {name: value[:pairs] if isinstance(value, list) else value for name, value in rope.items()}


def _at_most(value: Any, size: int) -> Any:
    """Make a size small, or each layer's."""
    if isinstance(value, list) and all(type(one) is int for one in value):
        return [min(one, size) for one in value]
    return min(value, size) if type(value) is int else value


def _kinds(kinds: list[Any], layers: int, sharing: int) -> list[Any]:
    """The kinds of so many layers, each kind among them: all but the last as they begin, then what was left out.

    The last ones, where layers share the KV of an earlier one of their kind, are of kinds that were there before.
    """
    wanted = list(dict.fromkeys(map(str, kinds)))
    own = layers - sharing
    first = list(map(str, kinds[:own]))
    if lacking := [kind for kind in wanted if kind not in first]:
        first = first[: own - len(lacking)] + lacking
    return first + first[-sharing:] if sharing else first


def _seeds(old: Manifest, new: Manifest, staged: dict[str, str], missing: dict[str, str]) -> list[tuple[int, int]]:
    """Seeds of the weights: equal where they are known to be equal, and other ones where they are known to differ."""
    wholes = [str(side.value(_DIGEST)) for side in (old, new)]
    if None in (old.value(_DIGEST), new.value(_DIGEST)):
        if not any(_commit(old, path) == _commit(new, path) is not None for path in ("weights.hub.commit", _REVISION)):
            missing["weights"] = "no digests on both sides: the same random weights stand in for both"
        return [(1, 1), (1, 1)]
    stored = [side.value("weights.checkpoint.kv_digest") for side in (old, new)]
    rules = same(old.get("weights.checkpoint.kv_rule"), new.get("weights.checkpoint.kv_rule"))
    bodies = [str(one) for one in stored] if None not in stored and rules else wholes
    if wholes[0] != wholes[1]:
        alike_enough = bodies[0] == bodies[1]
        what = "in what no cached key or value depends on" if alike_enough else "from the digests as seeds"
        staged["weights"] = f"other random weights, {what}"
    return [(seed_of(body), seed_of(f"tail {whole}")) for body, whole in zip(bodies, wholes, strict=True)]


def _commit(side: Manifest, path: str) -> str | None:
    """A commit: an equal one is equal weights, while another may hold the same ones."""
    value = side.value(path)
    return value if isinstance(value, str) and len(value) == _COMMIT_LENGTH else None


def _formats(old: Manifest, new: Manifest, staged: dict[str, str], missing: dict[str, str]) -> list[tuple[str, str]]:
    found = []
    for path, known in (("precision.compute", _FLOATS), ("precision.kv_cache", _SAVED)):
        values = [side.value(path) for side in (old, new)]
        if all(value in known for value in values):
            if values[0] != values[1]:
                staged[path] = f"{values[0]} and {values[1]}"
        else:
            missing[path] = "not known on both sides, or in a format that does not run here"
            values = [None, None]
        found.append(values)
    computes, saves = found
    return [(compute or "float32", save or compute or "float32") for compute, save in zip(computes, saves, strict=True)]


def _adapters(
    old: Manifest, new: Manifest, staged: dict[str, str], missing: dict[str, str]
) -> list[dict[str, dict[str, Any]]]:
    sides: list[dict[str, dict[str, Any]]] = []
    for side in (old, new):
        made = {}
        for name, entry in (side.value("adapters") or {}).items():
            if entry.get("removed") is True:
                continue
            if not isinstance(side.get(f"adapters.{name}.digest"), Known):
                missing["adapters"] = f"the bytes of {name!r} are not known"
                continue
            made[name] = {"seed": seed_of(entry["digest"]), "rank": 4, "scale": 4.0}
        sides.append(made)
    if not (old.knows("adapters") and new.knows("adapters")):
        missing["adapters"] = "not known on both sides"
    elif sides[0] != sides[1]:
        staged["adapters"] = "random ones from the digests as seeds, added to queries, keys and values"
    return sides
