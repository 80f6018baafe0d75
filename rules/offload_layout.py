"""Whether vLLM's tiered offload files a block alike whatever the rank layout is, as far as a manifest tells.

Source: vllm 0.32.0 and 0.33.0 wheels, distributed/kv_transfer/kv_connector/v1/offloading/config.py
(``is_parallelism_agnostic``), config/vllm.py (``use_v2_model_runner``), v1/kv_offload/file_mapper.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.attention import uses_mla
from kvgate.rules.launched import connector_settings, launch_flags
from kvgate.rules.manifest import Manifest

_READ = ("0.32.0", "0.33.0")
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_OTHER_RUNNER = ("enable-dbo", "ubatch-size", "num-ubatches", "attention-config", "watermark-config")
"""Flags with which it is another runner than the default, or may be."""


def one_name_for_all_layouts(manifest: Manifest) -> bool | None:
    """Whether sizes and ranks are left out of the names of a deployment's files; ``None`` where that is not known.

    They are with the older model runner, where one group of layers caches all heads and ranks share them out. The
    newer one is the default wherever Triton is, which the tier's GPUs have. A canonical layout is not looked into.
    """
    newer = _newer_runner(manifest)
    mla = uses_mla(manifest)
    extra = connector_settings(manifest)
    if newer is None or mla is None or extra is None or extra.get("canonical_layout"):
        return None
    if newer:
        return None if mla else False  # latents may be filed once for all ranks, under their sizes
    config, tensor = manifest.value("model.config"), manifest.value("parallelism.tensor")
    heads = config.get("num_key_value_heads") if isinstance(config, Mapping) else None
    contexts = [manifest.value(f"parallelism.{name}") for name in ("decode_context", "prefill_context")]
    if mla or not one_group(manifest) or not all(type(one) is int for one in (heads, tensor, *contexts)):
        return None
    return contexts == [1, 1] and bool(heads % tensor == 0)


def one_group(manifest: Manifest) -> bool:
    """Whether the layers of a model are known to be filed under one group: all heads, or all latents, with no window.

    Source: vllm 0.32.0 wheel, v1/core/kv_cache_utils.py, ``get_kv_cache_groups``.
    """
    config = manifest.value("model.config")
    if not isinstance(config, Mapping) or "text_config" in config or uses_mla(manifest) is None:
        return False
    windowed = config.get("sliding_window") is not None and config.get("use_sliding_window", True) is not False
    kinds = config.get("layer_types") or ["full_attention"]
    return not windowed and set(kinds) == {"full_attention"} and config.get("attention_chunk_size") is None


def _newer_runner(manifest: Manifest) -> bool | None:
    flags = launch_flags(manifest)
    if flags is None or manifest.value("engine.version") not in _READ or not manifest.unset("engine.speculative"):
        return None
    if any(flags.get(flag) is not None for flag in _OTHER_RUNNER):
        return None
    if flags.get("distributed-executor-backend") not in (None, "mp", "ray", "uni"):
        return None
    asked = flags.get(_RUNNER)
    return {"None": True, "1": True, "0": False}.get(str(asked))
