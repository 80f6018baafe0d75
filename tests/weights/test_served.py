"""Served weights: taken apart exactly or not at all, and equal only when every byte is accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvgate.rules.errors import InputError
from kvgate.weights.digest import root_digest
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.served.compare import ServedComparison, compare_served, compare_with_checkpoint
from kvgate.weights.served.model import describe_model
from kvgate.weights.served.report import SCHEMA, ServedRank, Stretch, read_ranks
from kvgate.weights.served.stretches import CheckpointStretches

from .served_models import checkpoint, served

SCALES = ("model.layers.0.self_attn.attn._k_scale",)
Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"


def _reply(model: torch.nn.Module, rank: int = 0, size: int = 1) -> dict[str, Any]:
    place = {"rank": rank, "size": size}
    head = {"schema": SCHEMA, "form": "served", "engine": "vllm", "engine_version": "0", "architecture": "Llama"}
    groups = {"world": place, "tensor_parallel": place, "pipeline_parallel": {"rank": 0, "size": 1}}
    reply: dict[str, Any] = json.loads(json.dumps(head | groups | describe_model(model)))
    return reply


def _ranks(*models: torch.nn.Module) -> tuple[ServedRank, ...]:
    return read_ranks([_reply(model, rank, len(models)) for rank, model in enumerate(models)], "the engine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    save_file(checkpoint(), path / "model.safetensors")
    return path


def _compare(folder: Path, *models: torch.nn.Module) -> ServedComparison:
    entries = fingerprint_checkpoint(folder, None).entries
    return compare_with_checkpoint(_ranks(*models), entries, CheckpointStretches(folder))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_together_are_the_checkpoint(folder: Path, size: int) -> None:
    """With 4 ranks and 2 KV heads, each KV head is on two ranks."""
    models = [served(checkpoint(), rank, size) for rank in range(size)]
    assert _compare(folder, *models) == ServedComparison(True, (), (), SCALES)


def test_one_rank_unfused_has_the_checkpoints_digest(folder: Path) -> None:
    (rank,) = _ranks(served(checkpoint()))
    assert root_digest(rank.unfused()) == fingerprint_checkpoint(folder, None).digest
    assert rank.digest() != root_digest(rank.unfused()), "served form is another form"


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(checkpoint()))
def test_one_changed_bit_is_found_on_the_rank_that_holds_it(folder: Path, size: int, name: str) -> None:
    changed = checkpoint()
    changed[name].view(torch.int16).view(-1)[-1] ^= 1
    models = [served(changed, rank, size) for rank in range(size)]
    found = _compare(folder, *models)
    assert not found.equal
    assert found.unknown == ()
    assert {each for _, each in found.different} == {name}
    assert (size - 1, name) in found.different, "the last byte is on the last rank"


def test_a_tied_head_needs_no_tensor_of_its_own(tmp_path: Path) -> None:
    stored = checkpoint()
    del stored["lm_head.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    assert _compare(tmp_path, served(stored, tied=True)).equal
    stored["model.embed_tokens.weight"][0, 0] += 1
    assert not _compare(tmp_path, served(stored, tied=True)).equal


def test_a_stored_head_that_the_engine_does_not_use_is_different(folder: Path) -> None:
    assert _compare(folder, served(checkpoint(), tied=True)).different == ((0, "lm_head.weight"),)


def _packed(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(torch.empty(0))


def _deleted(model: Any) -> None:
    del model.model.layers[0].mlp.down_proj.weight


def _packed_beside(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.packed = torch.ones(3)


@pytest.mark.parametrize("hide", [_packed, _deleted, _packed_beside])
def test_weights_that_cannot_be_read_are_no_weights(folder: Path, hide: Any) -> None:
    model = served(checkpoint())
    hide(model)
    found = _compare(folder, model)
    assert not found.equal
    assert "model.layers.0.mlp.down_proj" in found.unknown
    with pytest.raises(InputError, match=r"^rank 0: vllm keeps the weights of 1 layers where they cannot be read"):
        _ranks(model)[0].digest()


def test_quantized_and_unknown_layers_are_not_taken_apart(folder: Path) -> None:
    model: Any = served(checkpoint())
    model.model.layers[0].self_attn.qkv_proj.quant_method = type("Fp8LinearMethod", (), {})()
    found = _compare(folder, model)
    assert not found.equal
    assert found.different == ()
    assert {Q_WEIGHT, "model.layers.0.self_attn.qkv_proj.weight"} <= set(found.unknown)


def test_a_layer_of_another_class_proves_equality_and_nothing_else(folder: Path) -> None:
    model: Any = served(checkpoint())
    model.model.norm.__class__ = type("RMSNormOfItsOwn", (torch.nn.Module,), {"__module__": "vllm.models"})
    assert _compare(folder, model).equal
    model.model.norm.weight[0] += 1
    found = _compare(folder, model)
    assert (found.equal, found.different, found.unknown) == (False, (), ("model.norm.weight",))


def test_a_parameter_that_the_checkpoint_does_not_have_is_not_explained_away(folder: Path) -> None:
    model: Any = served(checkpoint())
    model.model.extra = torch.nn.Linear(2, 2, bias=False)
    assert _compare(folder, model).unknown == ("model.extra.weight",)


def test_another_type_is_a_difference(folder: Path) -> None:
    halves = {name: tensor.to(torch.float16) for name, tensor in checkpoint().items()}
    model: Any = served(checkpoint())
    model.model.norm.weight = torch.nn.Parameter(halves["model.norm.weight"], requires_grad=False)
    assert _compare(folder, model).different == ((0, "model.norm.weight"),)


def test_lora_wrapping_is_looked_through(folder: Path) -> None:
    model: Any = served(checkpoint())
    wrapper = torch.nn.Module()
    wrapper.base_layer = model.model.layers[0].self_attn.qkv_proj
    model.model.layers[0].self_attn.qkv_proj = wrapper
    assert _compare(folder, model).equal


def test_served_compares_with_served_of_the_same_form() -> None:
    old = _ranks(*(served(checkpoint(), rank, 2) for rank in range(2)))
    changed = checkpoint()
    changed[Q_WEIGHT][-1, -1] += 1
    new = _ranks(*(served(changed, rank, 2) for rank in range(2)))
    found = compare_served(old, new)
    assert [found[rank].changed for rank in range(2)] == [(), ("model.layers.0.self_attn.qkv_proj.weight",)]
    with pytest.raises(InputError, match="two forms"):
        compare_served(old, _ranks(served(checkpoint())))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda reply: reply.pop("tensors"), "tensors: Field required"),
        (lambda reply: reply.update(surprise=1), "surprise: Extra inputs"),
        (lambda reply: reply.update(form="checkpoint"), "form: Input should be 'served'"),
        (lambda reply: reply["tensors"][0].update(content="blake3:0"), r"tensors\.0\.content"),
        (lambda reply: reply["tensors"][0].update(dtype="F7"), "unknown dtype 'F7'"),
        (lambda reply: reply["tensors"].append(reply["tensors"][0]), "names a tensor twice"),
        (lambda reply: reply["world"].update(rank=1), "reported: 1"),
        (lambda reply: reply["world"].update(size=2), "every rank must report once; reported: 0"),
        (lambda reply: reply["world"].update(size=1_000_000), "every rank must report once; reported: 0"),
        (lambda reply: reply["world"].update(size=10**30), r"world\.size: Input should be less than"),
        (lambda reply: reply["tensor_parallel"].update(rank=7), "in no order that shards a model"),
        (lambda reply: reply["tensor_parallel"].update(size=2), "in no order that shards a model"),
        (lambda reply: reply["pipeline_parallel"].update(size=1_000_000), "in no order that shards a model"),
        (lambda reply: reply.update(tensors=[], parts=[]), "says that it holds nothing"),
    ],
)
def test_a_reply_that_is_no_report_is_refused(change: Any, said: str) -> None:
    reply = _reply(served(checkpoint()))
    change(reply)
    with pytest.raises(InputError, match=rf"^the engine: .*{said}"):
        read_ranks([reply], "the engine")


@pytest.mark.parametrize(("rank", "size", "said"), [(0, 2, "no order"), (1, 3, "no order"), (1, 2, None)])
def test_ranks_make_one_grid(rank: int, size: int, said: str | None) -> None:
    replies = [_reply(served(checkpoint(), number, 2), number, 2) for number in range(2)]
    replies[1]["tensor_parallel"] = {"rank": rank, "size": size}
    if said is None:
        assert len(read_ranks(replies, "the engine")) == 2
    else:
        with pytest.raises(InputError, match=said):
            read_ranks(replies, "the engine")


def test_replicas_are_several_of_one_grid() -> None:
    replies = [_reply(served(checkpoint(), number % 2, 2), number, 4) for number in range(4)]
    for number, reply in enumerate(replies):
        reply["tensor_parallel"] = {"rank": number % 2, "size": 2}
    assert len(read_ranks(replies, "the engine")) == 4
    replies[3]["tensor_parallel"]["rank"] = 0
    with pytest.raises(InputError, match="no order"):
        read_ranks(replies, "the engine")


def test_ranks_of_two_engines_are_refused() -> None:
    replies = [_reply(served(checkpoint(), rank, 2), rank, 2) for rank in range(2)]
    replies[1]["engine_version"] = "1"
    with pytest.raises(InputError, match="different engines"):
        read_ranks(replies, "the engine")
    with pytest.raises(InputError, match="reported: none"):
        read_ranks([], "the engine")


@pytest.mark.parametrize("stretch", [(2, 0, 1, 32), (0, 0, 1, 31), (0, 1, 1, 32), (1, 20, 33, 32)])
def test_a_stretch_that_is_not_there_is_refused(folder: Path, stretch: tuple[int, int, int, int]) -> None:
    dimension, begin, end, of = stretch
    with pytest.raises(InputError, match="has no such stretch"):
        CheckpointStretches(folder)(Q_WEIGHT, Stretch(dimension=dimension, begin=begin, end=end, of=of))


def test_a_checkpoint_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    save_file(checkpoint(), tmp_path / "model.safetensors")
    read = CheckpointStretches(tmp_path)
    save_file(checkpoint(), tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="changed since"):
        read(Q_WEIGHT, Stretch(dimension=0, begin=0, end=1, of=32))


def test_the_worker_extension_adds_one_name() -> None:
    """vLLM refuses an extension that has a name of its worker's."""
    from kvgate.weights.served.vllm_worker import FingerprintExtension

    assert [name for name in dir(FingerprintExtension) if not name.startswith("__")] == ["kvgate_weights"]
