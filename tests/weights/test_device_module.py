"""A module's fingerprint is its checkpoint's, wherever the tensors are; what holds no bytes of its own is refused."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from safetensors.torch import save_file

import kvgate
from kvgate.rules.errors import InputError
from kvgate.rules.progress import silent
from kvgate.weights.device import contents
from kvgate.weights.device.contents import hash_contents
from kvgate.weights.device.holding import DTYPES
from kvgate.weights.device.memory import copy_in_order, host_bytes
from kvgate.weights.device.module import entries_of
from kvgate.weights.fingerprint import fingerprint_checkpoint


class Holder(torch.nn.Module):  # type: ignore[misc]  # torch is not read by mypy
    """A module that holds what it is given."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def _pattern(size: int) -> torch.Tensor:
    return ((torch.arange(size, dtype=torch.int64) * 2654435761) >> 7).to(torch.uint8)


def _stored_types() -> dict[str, torch.Tensor]:
    return {f"of_{name}": _pattern(96).view(getattr(torch, name)).view(2, -1) for name in DTYPES}


def test_every_stored_type_as_in_the_file(tmp_path: Path) -> None:
    tensors = _stored_types()
    save_file(tensors, tmp_path / "model.safetensors")
    stored, held = fingerprint_checkpoint(tmp_path, None), kvgate.fingerprint_module(Holder(tensors))
    assert held.entries == stored.entries
    assert (held.digest, held.bytes, held.tensors) == (stored.digest, stored.bytes, len(DTYPES))


@pytest.mark.parametrize("tied", [False, True])
def test_a_transformers_model_as_it_saves_itself(tmp_path: Path, tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    stored, held = fingerprint_checkpoint(tmp_path, config.to_dict()), kvgate.fingerprint_module(model)
    assert vars(held) == {name: value for name, value in vars(stored).items() if name in vars(held)}
    assert held.kv_rule == "1/llama"
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[3, 5] += 1
    assert kvgate.fingerprint_module(model).kv_digest != stored.kv_digest


def test_a_tied_pair_counts_once_only_where_the_configuration_ties_it() -> None:
    module = torch.nn.Module()
    module.lm_head = torch.nn.Linear(4, 8, bias=False)
    module.model = torch.nn.Module()
    module.model.embed_tokens = torch.nn.Embedding(8, 4)
    module.model.embed_tokens.weight = module.lm_head.weight
    assert kvgate.fingerprint_module(module).tensors == 2
    assert kvgate.fingerprint_module(module, config={"tie_word_embeddings": True}).tensors == 1


def test_shared_memory_is_read_once() -> None:
    whole = _pattern(4000)
    told: list[tuple[str, int, int | None, str]] = []
    entries = entries_of(
        {"a": whole, "b": whole, "half": whole[:2000], "again": whole[:2000]}, lambda *given: told.append(given)
    )
    assert told[-1] == ("hashing weights", 6000, 6000, "bytes")
    assert len({entry.content for entry in entries}) == 2


def test_unsaved_buffers_count_when_asked_for() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("inv_freq", torch.arange(3.0), persistent=False)
    plain = kvgate.fingerprint_module(module)
    assert [entry.name for entry in plain.entries] == ["bias", "weight"]
    every = kvgate.fingerprint_module(module, unsaved_buffers=True)
    assert [entry.name for entry in every.entries] == ["bias", "inv_freq", "weight"]
    assert every.digest != plain.digest


STRIDED = {
    "transposed": _pattern(6000).view(torch.bfloat16).view(60, 50).t(),
    "window": _pattern(8000).view(torch.float32).view(10, 10, 20)[1:9, 3:7, ::3],
    "expanded": _pattern(60).view(torch.int16).expand(40, 30),
    "column": _pattern(6000).view(torch.int64).view(-1, 5)[:, 2],
    "odd place": _pattern(3001)[1:],
    "fp4": _pattern(600).view(torch.float4_e2m1fn_x2).view(20, 30).t(),
    "conjugated": torch.complex(torch.arange(600.0), torch.arange(600.0)).view(20, 30).conj(),
    "conjugated, transposed": torch.complex(torch.arange(600.0), torch.arange(600.0)).view(20, 30).conj().t(),
    "empty": torch.empty(0, 5).t(),
    "scalar": torch.tensor(3.5),
}


def _bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.is_contiguous() and tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    data: bytes = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data


@pytest.mark.parametrize("window", [16, 48, 1 << 20])
def test_strided_tensors_hash_as_their_elements_in_order(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(contents, "_WINDOW", window)
    hashes = hash_contents(list(STRIDED.values()), silent)
    assert [each.hex() for each in hashes] == [blake3(_bytes(tensor)).hexdigest() for tensor in STRIDED.values()]


def test_any_stretch_of_elements_can_be_copied() -> None:
    cube = _pattern(2 * 3 * 4 * 5).view(2, 3, 4, 5).permute(3, 1, 0, 2)
    flat, device = _bytes(cube), torch.device("cpu")
    for begin in range(len(flat)):
        for end in range(begin + 1, len(flat) + 1):
            assert bytes(host_bytes(copy_in_order(cube, begin, end, device))) == flat[begin:end]


def test_the_memory_stays_while_it_is_looked_at() -> None:
    view = host_bytes(_pattern(1 << 20))  # nobody else holds the tensor
    _ = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(4)]
    assert bytes(view) == _bytes(_pattern(1 << 20))


class Shell(torch.Tensor):  # type: ignore[misc]
    """A tensor that computes its values from others, as quantization libraries make them."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        shell = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.bfloat16)
        shell.inner = inner
        return shell

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(function)


class Flattening(torch.Tensor):  # type: ignore[misc]
    """A tensor that says of itself that it holds others."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


def _with(attribute: str, value: object) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.zeros(3))
    setattr(parameter, attribute, value)
    return parameter


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop the kind
        return torch._empty_affine_quantized([3], scale=0.1, zero_point=0, dtype=torch.qint8)


class State:
    """What a quantization library keeps beside a weight."""

    def __init__(self) -> None:
        self.absmax = torch.ones(2)


REFUSED = {
    "no bytes": torch.empty(3, device="meta"),
    "no shape yet": torch.nn.UninitializedParameter(),
    "is no tensor": {"scale": 1.0},
    "several tensors": torch.eye(3).to_sparse(),
    "a Tensor keeps": _quantized(),
    "a Shell computes": Shell(torch.zeros(3)),
    "a Flattening keeps": torch.zeros(3).as_subclass(Flattening),
    "complex128 has no name": torch.zeros(3, dtype=torch.complex128),
    "uint4 has no name": torch.zeros(3, dtype=torch.uint8).view(torch.uint4),
    "float4_e2m1fn_x2 has no name": torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[0],
    "attribute 'quant_state'": _with("quant_state", State()),
    "attribute 'scales'": _with("scales", torch.ones(3)),
    "attribute 'shards'": _with("shards", {"0": torch.ones(3)}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_its_bytes_do_not_say_is_refused_by_name(why: str) -> None:
    with pytest.raises(InputError, match=rf"^the\.weight: .*{why}"):
        entries_of({"fine": torch.zeros(3), "the.weight": REFUSED[why]})


def test_a_sharded_tensor_is_refused(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.zeros(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(InputError, match=r"^w: a DTensor holds one shard.*to_local"):
            entries_of({"w": sharded})
        assert entries_of({"w": sharded.to_local()})[0].shape == (4, 4)
    finally:
        dist.destroy_process_group()


def test_engines_parameters_are_let_through() -> None:
    """What serving engines hang on a parameter (loaders, dimensions) is no tensor."""
    module = torch.nn.Linear(2, 2)
    module.weight.weight_loader = module.forward
    module.weight.output_dim = 0
    module.weight.main_grad = torch.zeros(2, 2)
    assert kvgate.fingerprint_module(module).tensors == 2


def test_the_other_byte_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(InputError, match="big-endian"):
        entries_of({"w": torch.zeros(3)})
