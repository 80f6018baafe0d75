"""Which kind of attention a model has, as far as keys and stored blocks depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kvgate.rules.manifest import Manifest

_MLA = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
}
"""Model types with one latent in every layer, and the class that vLLM and SGLang both serve as MLA.

vllm-project/vllm 00bb6f5, transformers_utils/model_arch_config_convertor.py (``is_deepseek_mla``) goes by the type,
sgl-project/sglang, srt/configs/model_config.py by the class.
"""

_PER_HEAD = frozenset({
    "cohere", "cohere2", "exaone", "exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
    "glm4_moe", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe", "llama", "llama4", "llama4_text",
    "mistral", "mistral3", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3",
    "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3",
    "stablelm", "starcoder2",
})  # fmt: skip
"""Model types whose layers all cache keys and values per head (their classes in transformers 5.24.0)."""

_BESIDE_LATENTS = ("compress_ratio", "linear", "index_", "lora_rank_per_layer")
_LATENT = ("lora_rank", "compress_ratio", "rope_head_dim", "linear_attn", "index_head")
"""Parts of the names of fields that models with latents, or with layers of another kind, have."""


@lru_cache(maxsize=256)
def uses_mla(manifest: Manifest) -> bool | None:
    """Whether the model caches one latent per token for all heads (DeepSeek's MLA); ``None`` where not known.

    With a draft model it is not: that one may cache heads. Only models that are recognised are answered for: DeepSeek
    V4 compresses without ``kv_lora_rank``, DeepSeek-VL2 has it in a part of its config, Kimi-Linear in some layers
    alone, and vLLM serves MiniCPM3 without MLA.
    """
    config = manifest.value("model.config")
    if not isinstance(config, Mapping):
        return None
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        return None
    kinds = {str(part.get("model_type")) for part in (config, text)}
    kind = str(config.get("model_type"))
    if text is config and kind in _MLA and type(config.get("kv_lora_rank")) is int:
        # Layers of another kind beside those with a latent, another class, or an engine that is told to cache heads.
        other = "layer_types" in config or any(mark in name for name in _set_names(config) for mark in _BESIDE_LATENTS)
        served = config.get("architectures") == [_MLA[kind]] and manifest.unset("engine.speculative")
        return True if served and not other and _left_on(manifest) else None
    plain = not any(mark in name for name in _set_names(config) for mark in _LATENT)
    return False if kinds <= _PER_HEAD and plain else None


_DIVIDING = (
    "attn-dp-size",
    "dwdp-size",
    "enable-cp-decode-attn-tp",
    "enable-dp-attention",
    "enable-dp-lm-head",
    "enable-prefill-cp",
)
"""SGLang's flags that make attention data or context parallel, or ask for it (sglang 0.5.23, srt/server_args.py)."""


def replicas_divide_attention(manifest: Manifest) -> bool:
    """Whether the data parallel size may say how many heads a rank holds.

    With SGLang's data parallel attention it divides the tensor size (sglang 0.5.23, srt/layers/dp_attention.py).
    """
    if manifest.value("engine.name") not in (None, "sglang"):
        return False
    args = manifest.value("engine.args") or {}
    return not manifest.knows("engine.args") or any(_asks(args.get(flag)) for flag in _DIVIDING)


def _asks(value: Any) -> bool:
    """Whether a flag is set to more than its default: not left out, off, or the size one."""
    return not (value is None or value is False or (type(value) is int and value == 1))


def _left_on(manifest: Manifest) -> bool:
    """Whether MLA is known not to be switched off (``VLLM_MLA_DISABLE``, kept with the launch flags)."""
    args = manifest.value("engine.args") or {}
    return manifest.knows("engine.args") and args.get("VLLM_MLA_DISABLE") in (None, "", "0", 0)


def _set_names(value: Any) -> Iterator[str]:
    """Yield the name of every field that is set, at any depth."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if item is not None:
                yield str(name)
            yield from _set_names(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _set_names(item)
