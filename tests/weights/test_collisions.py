"""Nothing but the tensors makes a digest: no names, shapes, types or padding make two different sets meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.weights.digest import field, hash_tensor, root_digest, shape_bytes
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.safetensors import DTYPE_BITS

from .builders import Tensor, Tensors, words, write

# Pieces that look like parts of the encoding, so that whatever could be moved across a border is.
_PIECES = [
    "",
    "a",
    "b",
    "ab",
    "\0",
    "\1",
    "\0" * 8,
    "U8",
    "BF16",
    "GGUF:F16",
    "OPAQUE",
    "kvgate/tensor/v1",
    "\b" + "\0" * 7,
]
_NAMES = st.lists(st.sampled_from(_PIECES), max_size=3).map("".join)
_TYPES = st.sampled_from([*DTYPE_BITS, "GGUF:F16", "GGUF:Q4_K", "OPAQUE"])
_SHAPES = st.lists(st.sampled_from([0, 1, 2, 256, 2**32, 2**63]), max_size=3).map(tuple)
_CONTENTS = st.lists(st.sampled_from([b"", b"\0", b"\1", bytes(8), b"U8", field(b"a")]), max_size=3).map(b"".join)
_SETS = st.dictionaries(_NAMES, st.tuples(_TYPES, _SHAPES, _CONTENTS), max_size=3)


@given(old=_SETS, new=_SETS)
def test_two_sets_have_one_root_only_where_they_are_one_set(
    old: dict[str, tuple[str, tuple[int, ...], bytes]], new: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> None:
    roots = [root_digest(hash_tensor(name, *rest) for name, rest in side.items()) for side in (old, new)]
    assert (roots[0] == roots[1]) == (old == new)


@given(one=st.tuples(_TYPES, _SHAPES), other=st.tuples(_TYPES, _SHAPES))
def test_type_and_shape_have_one_encoding(one: tuple[str, tuple[int, ...]], other: tuple[str, tuple[int, ...]]) -> None:
    assert (shape_bytes(*one) == shape_bytes(*other)) == (one == other)
    # Neither is the beginning of the other: what follows cannot make up for it.
    assert one == other or not shape_bytes(*one).startswith(shape_bytes(*other))


QUANTIZED: Tensors = {
    "model.layers.0.self_attn.k_proj.qweight": Tensor("I32", (2, 1), bytes(8)),
    "model.layers.0.self_attn.k_proj.qzeros": Tensor("I32", (1, 1), bytes(4)),
    "model.layers.0.self_attn.k_proj.scales": Tensor("F16", (1, 2), words(1, 2)),
    "model.layers.0.self_attn.k_proj.g_idx": Tensor("I32", (2,), bytes(8)),
    "model.layers.0.self_attn.v_proj.weight_packed": Tensor("U8", (4,), bytes(4)),
    "model.layers.0.self_attn.v_proj.weight_scale": Tensor("F8_E4M3", (2,), b"\1\2"),
    "model.layers.0.self_attn.v_proj.weight_global_scale": Tensor("F32", (1,), bytes(4)),
    "model.layers.0.self_attn.v_proj.weight_zero_point": Tensor("I8", (2,), b"\0\0"),
    "model.layers.0.self_attn.v_proj.input_scale": Tensor("F32", (), bytes(4)),
    "model.layers.0.self_attn.attn.k_scale": Tensor("F32", (), bytes(4)),
    "model.layers.0.self_attn.attn.v_scale": Tensor("F32", (), bytes(4)),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_of_a_quantized_checkpoint_every_part_counts(name: str, tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "quantization_config": {"quant_method": "gptq"},
    }
    old = fingerprint_checkpoint(write(tmp_path / "old", QUANTIZED), config)
    dtype, shape, data = QUANTIZED[name]
    flipped = {**QUANTIZED, name: Tensor(dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))}
    without = {other: tensor for other, tensor in QUANTIZED.items() if other != name}
    for number, tensors in enumerate((flipped, without)):
        new = fingerprint_checkpoint(write(tmp_path / f"new{number}", tensors), config)
        assert new.digest != old.digest
        assert new.kv_digest != old.kv_digest
