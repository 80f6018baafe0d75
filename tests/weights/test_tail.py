"""Where the allow-list applies, and where everything counts because nobody proved that form."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.weights.digest import hash_tensor, root_digest
from kvgate.weights.tail import kv_digest, kv_selection, tied_alias

from .builders import Tensor, Tensors, llama, llama_config, words

TAIL = {
    *(f"model.layers.1.self_attn.{kind}_proj.weight" for kind in "qo"),
    *(f"model.layers.1.mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
    "lm_head.weight",
}
OTHER = Tensor("BF16", (2,), words(999, 999))


def _digest(tensors: Tensors, config: dict[str, Any] | None) -> tuple[str, str]:
    entries = [hash_tensor(name, *tensor) for name, tensor in tensors.items()]
    return kv_digest(entries, config, root_digest(entries))


def _harmless(tensors: Tensors, config: dict[str, Any] | None) -> set[str]:
    return set(kv_selection([hash_tensor(name, *tensor) for name, tensor in tensors.items()], config).harmless)


def test_each_tensor_of_a_llama() -> None:
    old = _digest(llama(), llama_config())
    assert old[1] == "1/llama"
    moved = {name for name in llama() if _digest({**llama(), name: OTHER}, llama_config()) != old}
    assert moved == llama().keys() - TAIL


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"model_type": "llama"},
        llama_config(model_type="never_heard_of"),
        llama_config(model_type=["llama"]),
        llama_config(model_type=None),
        llama_config(architectures=None),
        llama_config(architectures=[]),
        llama_config(architectures=["LlamaForSequenceClassification"]),
        llama_config(architectures=["LlamaForCausalLM", "Other"]),
        llama_config(auto_map={"AutoModelForCausalLM": "modeling.Mine"}),
        llama_config(quantization_config={"quant_method": "fp8"}),
        llama_config(compression_config={"format": "pack"}),
        llama_config(text_config={"quantization_config": {"quant_method": "fp8"}}),
        llama_config(num_hidden_layers=None),
        llama_config(num_hidden_layers=True),
        llama_config(num_hidden_layers=0),
        llama_config(num_hidden_layers=-1),
        llama_config(num_hidden_layers="2"),
        llama_config(layers=3),  # a layer that the checkpoint does not have
    ],
)
def test_everything_counts_where_the_form_is_not_proved(config: dict[str, Any] | None) -> None:
    assert _harmless(llama(), config) == set()
    assert _digest(llama(), config)[1] == "1/all-tensors"


@pytest.mark.parametrize(
    "change",
    [
        {"model.layers.1.self_attn.q_proj.weight_scale": OTHER},
        {"model.layers.1.self_attn.k_scale": OTHER},
        {"model.layers.1.self_attn.q_norm.weight": OTHER},
        {"model.layers.1.mlp.up_proj.weight": Tensor("F8_E4M3", (2,), b"ab")},
        {"model.layers.1.self_attn.k_proj.weight": Tensor("U8", (2,), b"ab")},
    ],
)
def test_a_last_layer_with_anything_else_counts_whole(change: Tensors) -> None:
    assert _harmless({**llama(), **change}, llama_config()) == set()


@pytest.mark.parametrize(
    "name",
    [
        "mtp.layers.0.mlp.up_proj.weight",
        "v_head.weight",
        "model.layers.2.mlp.up_proj.weight",  # a draft's layer behind the last
        "model.layers.10.mlp.up_proj.weight",
        "vision_tower.model.layers.1.mlp.up_proj.weight",
        "x.model.layers.1.mlp.up_proj.weight",
        "model.layers.1X.mlp.up_proj.weight",
        "xlm_head.weight",
        "lm_head.bias",
        "model.norm.bias",
    ],
)
def test_what_is_not_named_exactly_counts(name: str) -> None:
    tensors = {**llama(), name: OTHER}
    assert _harmless(tensors, llama_config()) == TAIL


def test_a_head_that_is_the_embedding_counts() -> None:
    tensors = llama()
    del tensors["model.embed_tokens.weight"]
    assert _harmless(tensors, llama_config(tie_word_embeddings=True)) == TAIL - {"lm_head.weight"}


def test_another_root_is_not_the_one_that_was_proved() -> None:
    moved = {f"language_model.{name}": tensor for name, tensor in llama().items()}
    assert _harmless(moved, llama_config()) == set()


@pytest.mark.parametrize(
    ("config", "head", "embedding", "alias"),
    [
        ({"tie_word_embeddings": True}, "lm_head.weight", "model.embed_tokens.weight", True),
        ({"text_config": {"tie_word_embeddings": True}}, "lm_head.weight", "model.embed_tokens.weight", True),
        (
            {"tie_word_embeddings": True},
            "language_model.lm_head.weight",
            "language_model.model.embed_tokens.weight",
            True,
        ),
        ({"tie_word_embeddings": 1}, "lm_head.weight", "model.embed_tokens.weight", False),
        ({}, "lm_head.weight", "model.embed_tokens.weight", False),
        ({"tie_word_embeddings": True}, "score.weight", "model.embed_tokens.weight", False),
    ],
)
def test_tied_heads(config: dict[str, Any], head: str, embedding: str, alias: bool) -> None:
    entries = [hash_tensor(name, *OTHER) for name in (head, embedding)]
    assert tied_alias(entries, config) == (head if alias else None)
