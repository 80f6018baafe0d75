"""A real vLLM says what it serves: the checkpoint's digest, rank by rank, and another one after a reload."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kvgate.rules.errors import InputError
from kvgate.weights.digest import root_digest
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.served.compare import ServedComparison, compare_served, compare_with_checkpoint
from kvgate.weights.served.report import ServedRank, read_ranks
from kvgate.weights.served.stretches import CheckpointStretches

HERE = Path(__file__).parent
UNPACKED, AS_SHIPPED = (
    f"{module}.FingerprintExtension" for module in ("unpacked", "kvgate.weights.served.vllm_worker")
)
MINUTES = 900  # a hang guard
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(HERE),
}


class Models(NamedTuple):
    """Two checkpoints of one shape."""

    served: Path
    other: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=130,  # vLLM pads it to 192
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        architectures=["LlamaForCausalLM"],
    )
    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        folders.append(tmp_path_factory.mktemp(f"model-{seed}"))
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folders[-1])
    return Models(*folders)


def _serve(models: Models, extension: str, ranks: int, out: Path) -> tuple[tuple[ServedRank, ...], ...]:
    """Return the ranks' reports before and after a reload."""
    inside = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if ranks == 1 else {}
    done = subprocess.run(
        [
            Path(os.environ["KVGATE_VLLM"]) / "bin" / "python",
            HERE / "vllm_weights.py",
            *models,
            extension,
            str(ranks),
            out,
        ],
        env={**os.environ, **ENVIRONMENT, **inside},
        capture_output=True,
        text=True,
        timeout=MINUTES,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tuple(read_ranks(replies, "vLLM") for replies in json.loads(out.read_text()))


def _compare(ranks: tuple[ServedRank, ...], folder: Path) -> ServedComparison:
    return compare_with_checkpoint(ranks, fingerprint_checkpoint(folder, None).entries, CheckpointStretches(folder))


@pytest.mark.parametrize("size", [1, 2])
def test_an_engine_holds_the_checkpoint_until_it_loads_another(models: Models, tmp_path: Path, size: int) -> None:
    before, after = _serve(models, UNPACKED, size, tmp_path / "replies.json")
    assert [rank.tensor_parallel.size for rank in before] == [size] * size
    assert _compare(before, models.served).equal
    assert _compare(after, models.other).equal

    stored = fingerprint_checkpoint(models.served, None)
    drawn = {entry.name for entry in stored.entries if "norm" not in entry.name}  # norms are 1 in both
    found = _compare(after, models.served)
    assert (found.equal, {name for _, name in found.different}) == (False, drawn)
    assert all(rank.digest() != later.digest() for rank, later in zip(before, after, strict=True))
    assert all(difference.changed for difference in compare_served(before, after).values())
    if size == 1:
        assert root_digest(before[0].unfused()) == stored.digest


def test_layers_that_the_cpu_build_packs_are_not_vouched_for(models: Models, tmp_path: Path) -> None:
    before, after = _serve(models, AS_SHIPPED, 1, tmp_path / "replies.json")
    for ranks, folder in ((before, models.served), (after, models.other)):
        found = _compare(ranks, folder)
        assert not found.equal
        assert "model.layers.0.self_attn.q_proj.weight" in found.unknown
        with pytest.raises(InputError, match="where they cannot be read"):
            ranks[0].digest()
