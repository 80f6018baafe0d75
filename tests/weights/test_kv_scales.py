"""KV scales have a digest of their own: every one of them counts in it, and nothing else does."""

from __future__ import annotations

import pytest

from kvgate.weights.digest import hash_tensor, root_digest
from kvgate.weights.kv_scales import kv_scales_digest

from .builders import Tensor, llama

LAYER = "model.layers.0.self_attn"
SCALES = [
    *(f"{LAYER}.attn.{kind}_scale" for kind in ("k", "v", "q", "prob")),
    *(f"{LAYER}.{kind}_scale" for kind in ("k", "v", "kv")),
    *(f"{LAYER}.{kind}_proj.output_scale" for kind in ("k", "v", "qkv")),
    f"{LAYER}.k_cache.scale",
    f"{LAYER}.k_proj.k_scale",
    f"{LAYER}.k_zero_point",
]
OTHERS = [
    f"{LAYER}.k_proj.weight_scale",
    f"{LAYER}.k_proj.input_scale",
    f"{LAYER}.o_proj.output_scale",
    "model.layers.0.mlp.up_proj.weight_zero_point",
    f"{LAYER}.k_proj.scales",
    "k_scale.weight",
]


def _digest(tensors: dict[str, Tensor]) -> str | None:
    return kv_scales_digest(hash_tensor(name, *tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", SCALES)
def test_every_scale_counts(name: str) -> None:
    one, other = Tensor("F32", (), bytes(4)), Tensor("F32", (), bytes([0, 0, 128, 63]))
    assert _digest({**llama(), name: one}) == root_digest([hash_tensor(name, *one)])
    assert _digest({name: one}) != _digest({name: other})


@pytest.mark.parametrize("name", OTHERS)
def test_scales_of_weights_and_activations_do_not(name: str) -> None:
    assert _digest({**llama(), name: Tensor("F32", (), bytes(4))}) is None
