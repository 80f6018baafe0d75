"""What TensorRT-LLM makes of ``auto`` types.

Source: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/model_config.py (``torch_dtype``: the config's own type, else
bfloat16) and tensorrt_llm/llmapi/llm_args.py (``sync_quant_config_with_kv_cache_config_dtype``), each from a commit of
its own and of no one release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.deployments.config import text_config

ENGINE = "tensorrt-llm"
_ALGORITHMS = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def compute_type(named: str | None, *, old: bool) -> tuple[str | None, str | None]:
    """Return what ``dtype: auto`` is, or why that is not known.

    Args:
        named: the type that the config names; ``None``: it names none.
        old: the device has no bfloat16.
    """
    if old:
        return None, "dtype: auto on a device without bfloat16 is left to TensorRT-LLM"
    if named == "float32":
        return None, "dtype: auto, and whether TensorRT-LLM keeps float32 was not read"
    return named or "bfloat16", None


def kv_type(config: Mapping[str, Any], compute: str | None) -> tuple[str | None, str | None]:
    """Return what ``kv_cache_config.dtype: auto`` is, or why that is not known."""
    if any("index_topk" in part for part in (config, text_config(config))):
        return None, "kv_cache_config.dtype: auto, and models with sparse attention may choose their own"
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        inner = quantization.get("quantization")
        inner = inner if isinstance(inner, Mapping) else quantization
        algorithm = inner.get("kv_cache_quant_algo")
        if isinstance(algorithm, str) and algorithm.lower() in _ALGORITHMS:
            return _ALGORITHMS[algorithm.lower()], None
        if algorithm or any(key.startswith("kv_cache") and value for key, value in inner.items()):
            return None, "the checkpoint declares a KV format that kvgate does not read"
    return compute, "kv_cache_config.dtype: auto follows the compute type, which is not known"
