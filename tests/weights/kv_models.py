"""Tiny random models whose saved checkpoints prove, by perturbation, what cached state depends on."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": None,
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
_WINDOW = {"sliding_window": 16}
_GEMMA = {**_WINDOW, "query_pre_attn_scalar": 8}
_GLM = {
    "n_routed_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}

# (configuration class, what differs from BASE); several variants where optional tensors exclude each other
VARIANTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "llama": [
        ("LlamaConfig", {}),
        ("LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ],
    "mistral": [("MistralConfig", _WINDOW)],
    "smollm3": [("SmolLM3Config", {})],
    "qwen2": [("Qwen2Config", {})],
    "qwen3": [("Qwen3Config", {})],
    "qwen3_moe": [("Qwen3MoeConfig", {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24})],
    "mixtral": [("MixtralConfig", {"num_local_experts": 3, "num_experts_per_tok": 2})],
    "gemma": [("GemmaConfig", {})],
    "gemma2": [("Gemma2Config", _GEMMA)],
    "gemma3_text": [("Gemma3TextConfig", _GEMMA)],
    "gemma3": [("Gemma3Config", {})],
    "olmo2": [("Olmo2Config", {})],
    "phi3": [("Phi3Config", {})],
    "cohere2": [("Cohere2Config", _WINDOW)],
    "gpt_oss": [("GptOssConfig", {**_WINDOW, "num_local_experts": 3, "num_experts_per_tok": 2})],
    "glm4_moe": [
        ("Glm4MoeConfig", {**_GLM, "use_qk_norm": True, "attention_bias": True}),
        ("Glm4MoeConfig", {**_GLM, "use_qk_norm": False}),
    ],
    "deepseek_v2": [
        ("DeepseekV2Config", {**_MLA, "q_lora_rank": 16}),
        ("DeepseekV2Config", {**_MLA, "q_lora_rank": None}),
    ],
    "deepseek_v3": [("DeepseekV3Config", {**_MLA, "q_lora_rank": 16})],
    "gpt_neox": [("GPTNeoXConfig", {})],
}
State = dict[str, torch.Tensor]  # by name
_IDS = torch.tensor([[(position * 37 + 11) % 85 + 3 for position in range(40)]])
_PREFILL = 32


@dataclass(frozen=True)
class Saved:
    """A checkpoint as transformers wrote it: on-disk names, and the configuration beside it."""

    kind: type[Any]
    config: Any
    published: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def save(model_type: str, variant: int, folder: Path) -> Saved:
    """Build a random model, save it, and read back what lies on the disk."""
    class_name, over = VARIANTS[model_type][variant]
    settings = {**BASE, **over}
    if settings["head_dim"] is None:
        del settings["head_dim"]
    if model_type == "gemma3":
        settings = {
            "text_config": {**settings, **_GEMMA},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 90,
            "tie_word_embeddings": False,
        }
    config = getattr(transformers, class_name)(**settings, attn_implementation="eager")
    assert config.model_type == model_type
    kind = getattr(transformers, _architecture(config))
    torch.manual_seed(0)
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or not value.is_floating_point():
                continue
            spread = 1.0 if "embed" in name else 0.4 if value.ndim > 1 else 0.1
            noise = spread * torch.randn(value.shape, generator=generator)
            value.copy_(noise if value.ndim > 1 else value + noise)
    model.save_pretrained(folder)
    published = json.loads((folder / "config.json").read_text())
    return Saved(kind, model.config, published, load_file(folder / "model.safetensors"))


def _architecture(config: Any) -> str:
    mapping = transformers.models.auto.modeling_auto
    if config.model_type == "gemma3":
        return "Gemma3ForConditionalGeneration"
    return str(mapping.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])


def cached_state(saved: Saved, tensors: State) -> tuple[State, torch.Tensor]:
    """Load ``tensors`` as that checkpoint and return every cached tensor, and the logits, of two steps."""
    with torch.inference_mode():
        return _cached_state(saved, tensors)


def _cached_state(saved: Saved, tensors: State) -> tuple[State, torch.Tensor]:
    copies = {name: value.clone() for name, value in tensors.items()}
    model = saved.kind.from_pretrained(
        None, config=saved.config, state_dict=copies, attn_implementation="eager", dtype=torch.float32
    ).eval()
    cache = transformers.DynamicCache(config=saved.config)
    given = {_cache_argument(saved.kind): cache, "use_cache": True}
    model(input_ids=_IDS[:, :_PREFILL], **given)
    logits = model(input_ids=_IDS[:, _PREFILL:], **given).logits
    state: dict[str, torch.Tensor] = {}
    for number, layer in enumerate(cache.layers):
        _collect(f"{number}", vars(layer), state)
    assert len(state) >= 2 * len(cache.layers)
    return state, logits


def _cache_argument(kind: type[Any]) -> str:
    """Return what the library's version calls the cache: 5.24 warns of the older name."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"


def _collect(prefix: str, value: Any, state: dict[str, torch.Tensor]) -> None:
    if torch.is_tensor(value):
        state[prefix] = value.clone()
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{prefix}.{key}", item, state)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _collect(f"{prefix}.{number}", item, state)


def perturbed(tensors: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Return ``tensors`` with noise on one of them."""
    generator = torch.Generator().manual_seed(2)
    value = tensors[name]
    spread = 0.3 if value.ndim > 1 else 3.0  # a router's bias must be moved far to choose another expert
    return {**tensors, name: value + spread * torch.randn(value.shape, generator=generator)}


def same(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> bool:
    """Say whether two states are equal bit for bit."""
    return old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)
