"""What SGLang makes of ``auto`` types: sglang/srt/configs/model_config.py and mem_cache/kv_cache_dtype.py, 0.5.23."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Model types for which nothing in sglang/srt/arg_groups/model_overrides changes the type of the cache.
_PLAIN = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3_text",
        "llama",
        "mistral",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    }
)


def compute_type(config: Mapping[str, Any], named: str | None) -> str:
    """Return what ``--dtype auto`` is.

    Args:
        config: the effective config.
        named: the type that the config names; ``None``: it names none, which is float32 to SGLang.
    """
    if named not in (None, "float32"):
        return str(named)
    return "bfloat16" if str(config.get("model_type", "")).startswith("gemma") else "float16"


def kv_type(config: Mapping[str, Any], compute: str | None) -> tuple[str | None, str | None]:
    """Return what ``--kv-cache-dtype auto`` is, or why that is not known."""
    model_type = config.get("model_type")
    if model_type not in _PLAIN:
        return None, f"--kv-cache-dtype auto, and SGLang may choose by itself for {model_type}"
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        inner = quantization.get("quantization")
        inner = inner if isinstance(inner, Mapping) else quantization
        algorithm = inner.get("kv_cache_quant_algo")
        if isinstance(algorithm, str) and algorithm.upper() == "FP8":
            return "fp8_e4m3", None
        if algorithm or any(key.startswith("kv_cache") and value for key, value in inner.items()):
            return None, "the checkpoint declares a KV format that kvgate does not read"
    return compute, "--kv-cache-dtype auto follows the compute dtype, which is not known"
