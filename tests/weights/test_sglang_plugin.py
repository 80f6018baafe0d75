"""SGLang's plugin, in front of what stands for SGLang 0.5.23: its hooks and its weight checker.

No SGLang runs here: it needs a GPU. The stand-ins do what the real functions of the same names do.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.served import sglang_plugin
from kvgate.weights.served.compare import ServedComparison, compare_with_checkpoint
from kvgate.weights.served.report import ServedRank, read_ranks
from kvgate.weights.served.stretches import CheckpointStretches

from .served_models import checkpoint, served
from .test_served import SCALES

Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"


class WeightChecker:
    """As srt/utils/weight_checker.py."""

    def __init__(self, model: torch.nn.Module, rank: int, size: int) -> None:
        self._get_model = lambda: model
        self._place = {"tp_rank": rank, "tp_size": size, "pp_rank": 0, "pp_size": 1, "rank": rank, "size": size}

    def _parallelism_info(self, *, role: str) -> Any:
        info = {"role": role, "dp_rank": 0, "dp_size": 1, **self._place}
        return SimpleNamespace(model_dump=lambda: info)

    def handle(self, action: str, *_: Any, role: str, **__: Any) -> dict[str, Any]:
        return {"action": action, "role": role}


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load the plugin as SGLang does, and return the method that it wraps (srt/plugins/hook_registry.py)."""
    hooks: list[tuple[str, Any, str]] = []
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    vars(registry).update(
        HookRegistry=SimpleNamespace(register=lambda target, hook, kind: hooks.append((target, hook, kind))),
        HookType=SimpleNamespace(AROUND="around"),
    )
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setattr("importlib.metadata.version", {"sglang": "0.5.23"}.__getitem__)
    sglang_plugin.register()
    ((target, hook, kind),) = hooks
    assert (target, kind) == ("sglang.srt.utils.weight_checker.WeightChecker.handle", "around")
    return functools.partial(hook, WeightChecker.handle)


def _as_sglang(model: Any, rank: int, size: int) -> torch.nn.Module:
    """Give layers SGLang's names, and groups instead of numbers."""
    del model.packed_modules_mapping
    for layer in model.modules():
        if type(layer).__module__ == "vllm.layers":
            type(layer).__module__ = "sglang.srt.layers"
        if hasattr(layer, "tp_rank"):
            layer.tp_group = SimpleNamespace(rank_in_group=rank, world_size=size) if size > 1 else None
            del layer.tp_rank, layer.tp_size
    found: torch.nn.Module = model
    return found


def _ranks(handle: Callable[..., Any], stored: dict[str, torch.Tensor], size: int) -> tuple[ServedRank, ...]:
    replies = []
    for rank in range(size):
        checker = WeightChecker(_as_sglang(served(stored, rank, size), rank, size), rank, size)
        found = handle(checker, action="kvgate_weights", allow_quant_error=False, skip_tensor_list=None, role="target")
        assert (found["parallelism_info"]["role"], type(found["per_gpu_checksum"])) == ("target", str)
        replies.append(json.loads(found["checksums"]["kvgate_weights"]))
    return read_ranks(replies, "the engine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    save_file(checkpoint(), path / "model.safetensors")
    return path


def _compare(ranks: tuple[ServedRank, ...], folder: Path) -> ServedComparison:
    return compare_with_checkpoint(ranks, fingerprint_checkpoint(folder, None).entries, CheckpointStretches(folder))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_together_are_the_checkpoint(handle: Callable[..., Any], folder: Path, size: int) -> None:
    ranks = _ranks(handle, checkpoint(), size)
    assert (ranks[0].engine, ranks[0].engine_version) == ("sglang", "0.5.23")
    assert [rank.tensor_parallel.rank for rank in ranks] == list(range(size))
    assert _compare(ranks, folder) == ServedComparison(True, (), (), SCALES)


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_not_equal_is_not_known_to_differ(handle: Callable[..., Any], folder: Path, size: int) -> None:
    """No SGLang was there to hold the arithmetic against: where bytes do not match, it may be wrong."""
    changed = checkpoint()
    changed[Q_WEIGHT][-1, -1] += 1
    found = _compare(_ranks(handle, changed, size), folder)
    assert (found.equal, found.different, found.unknown) == (False, (), (Q_WEIGHT,))
    digests = [[rank.digest() for rank in _ranks(handle, stored, size)] for stored in (checkpoint(), changed)]
    assert digests[0][-1] != digests[1][-1]


def test_every_other_action_is_sglangs_own(handle: Callable[..., Any]) -> None:
    checker = WeightChecker(torch.nn.Linear(1, 1), 0, 1)
    for action in ("snapshot", "compare", "checksum", "kvgate"):
        assert handle(checker, action=action, role="target") == {"action": action, "role": "target"}
        assert handle(checker, action, False, None, role="draft") == {"action": action, "role": "draft"}


def test_the_packaging_names_it() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = project["entry-points"]["sglang.srt.plugins"].values()
    module, _, function = named.partition(":")
    assert (module, getattr(sglang_plugin, function)) == (sglang_plugin.__name__, sglang_plugin.register)
