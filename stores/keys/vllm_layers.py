"""What vLLM calls the layers that cache keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.manifest import Manifest

_PLAIN = frozenset({"granite", "llama", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Model types whose classes build ``model.layers.N.self_attn.attn`` (vllm 0.32.0 wheel, model_executor/models)."""


def attention_layers(manifest: Manifest) -> tuple[str, ...] | None:
    """Return the names of a model's attention layers, in order; ``None`` for a model whose names are not known."""
    config = manifest.value("model.config")
    if not isinstance(config, Mapping) or config.get("model_type") not in _PLAIN:
        return None
    count = config.get("num_hidden_layers")
    if type(count) is not int or not 0 < count <= 1024:
        return None
    return tuple(f"model.layers.{number}.self_attn.attn" for number in range(count))
