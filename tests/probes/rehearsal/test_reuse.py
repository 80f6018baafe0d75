"""The same deployment again: hits happen and agree, for every kind of attention and cache."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.probes.embedded.stand_in import stand_in
from tests.probes.rehearsal.conftest import LEAST, SMALL, Rehearse
from tests.probes.rehearsal.pairs import TENANTS, deployment, own_key
from tests.rules.clean import FORGET

_SHAPE: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
_LATENT = {
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + number / 48 for number in range(48)],
    "long_factor": [1.0 + number for number in range(48)],
    "original_max_position_embeddings": 4096,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "mistral": {"sliding_window": 4096},
    "gemma2": {"sliding_window": 4096, "query_pre_attn_scalar": 256, "layer_types": [_SLIDING, _FULL] * 16},
    "gemma3_text": {"sliding_window": 1024, "layer_types": ([_SLIDING] * 5 + [_FULL]) * 5 + [_SLIDING] * 2},
    "deepseek_v3": {**_LATENT, "head_dim": 64, "architectures": ["DeepseekV3ForCausalLM"]},
    "phi3": {"num_key_value_heads": 32, "head_dim": 96, "rope_parameters": _LONGROPE},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    # A latent cache; experts that a class leaves unset; a config that holds the latents' width but no groups
    "deepseek_v2": {**_LATENT, "head_dim": 64, "n_group": 1, "topk_group": 1, "num_experts_per_tok": None},
    # Layers that read the KV of an earlier one
    "gemma3n_text": {
        "intermediate_size": [16384] * 32,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "layer_types": ([_SLIDING] * 4 + [_FULL]) * 6 + [_SLIDING] * 2,
        "vocab_size_per_layer_input": 262144,
        "activation_sparsity_pattern": [0.95] * 10 + [0] * 22,
    },
    # Heads that scale logits down, or are tied and quiet
    "cohere2": {"sliding_window": 4096, "logit_scale": 0.0625, "layer_types": ([_SLIDING] * 3 + [_FULL]) * 8},
    "granite": {"logits_scaling": 16, "embedding_multiplier": 12, "attention_multiplier": 0.0078125},
    # Chunks instead of windows, a sink in every head, keys without a position
    "llama4_text": {"num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192},
    "gpt_oss": {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128},
    # Other names for sizes, queries, keys and values in one matrix
    "falcon": {
        "head_dim": FORGET,
        "num_kv_heads": 8,
        "ffn_hidden_size": 16384,
        "new_decoder_architecture": True,
        "bias": False,
    },
    "glm4": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "olmo2": {},
    "starcoder2": {"sliding_window": 4096},
}
_BY_TOKENS = {**own_key("model.id", "token_ids"), "cache.location": "/kv"}


@pytest.mark.parametrize("kind", _MODELS)
def test_the_same_deployment_reuses_what_it_stored(kind: str, rehearsed: Rehearse) -> None:
    shape = {"model_type": kind, **_SHAPE, **_MODELS[kind]}
    config = {name: value for name, value in shape.items() if value is not FORGET}
    one = deployment(_BY_TOKENS, {"model.config": config, "model.config_class": None, "engine.args": {}})
    decides = kind == "llama"
    seen = rehearsed(one, one, size=SMALL if decides else LEAST)
    assert (seen.claim, seen.state) == ("reuse", "proved"), seen.reason
    assert seen.control.cached == seen.equivalence.cached > 0
    assert all(hit.agreement.same for hit in seen.equivalence.hits)
    assert [hit.right for hit in seen.equivalence.hits if hit.prompt.startswith("decidable")] == [True] * decides
    assert seen.layers is not None
    assert max(layer.error for layer in seen.layers) == 0.0


def test_tenants_are_kept_apart_while_each_reuses_its_own(rehearsed: Rehearse) -> None:
    one = deployment(TENANTS)
    seen = rehearsed(one, one)
    assert (seen.state, seen.tenants.state) == ("proved", "held"), seen.reason
    assert seen.tenants.cached == 0
    assert seen.equivalence.cached > 0


def test_a_difference_that_nobody_knows_is_not_planted(rehearsed: Rehearse) -> None:
    unknown = deployment({"weights": FORGET, "model.revision": FORGET})
    pair = stand_in(unknown, deployment())
    assert pair.old.seed == pair.new.seed
    assert "weights" in pair.missing
    seen = rehearsed(unknown, unknown)
    assert (seen.claim, seen.state) == ("separate", "inconclusive")


def test_what_no_cached_value_depends_on_changes_the_answers_and_no_verdict(rehearsed: Rehearse) -> None:
    other_head = deployment({"weights.checkpoint.digest": "blake3:" + "9" * 64})
    pair = stand_in(deployment(), other_head)
    assert (pair.old.seed == pair.new.seed, pair.old.tail_seed == pair.new.tail_seed) == (True, False)
    seen = rehearsed(deployment(), other_head)
    assert (seen.claim, seen.state) == ("reuse", "proved"), seen.reason


def test_a_model_that_depends_on_where_a_prompt_is_cut_tells_nothing(rehearsed: Rehearse) -> None:
    config = {**_SHAPE, "model_type": "mistral", "sliding_window": 0}
    one = deployment(_BY_TOKENS, {"model.config": config, "model.config_class": None, "engine.args": {}})
    seen = rehearsed(one, one)
    assert seen.state == "not-run", seen.reason
    assert "nothing can be told" in seen.reason
