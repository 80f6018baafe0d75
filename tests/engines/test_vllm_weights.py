"""A real vLLM says what it serves: the checkpoint's digest, rank by rank, and another one after a reload."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kvgate.corpora.endpoints.client import Client
from kvgate.deployments import served as served_module
from kvgate.deployments.launch import parse_vllm, resolve
from kvgate.deployments.running import Running, ask_running
from kvgate.deployments.running_contradictions import contradictions_in_names, contradictions_with
from kvgate.deployments.served import ask_served, served_section
from kvgate.rules.errors import InputError
from kvgate.weights.digest import root_digest
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.served.compare import ServedComparison, compare_served, compare_with_checkpoint
from kvgate.weights.served.report import ServedRank
from kvgate.weights.served.stretches import CheckpointStretches
from tests.cli.conftest import Ran, in_process

from .models import tiny_llama
from .vllm_server import vllm

UNPACKED, AS_SHIPPED = (
    f"{module}.FingerprintExtension" for module in ("unpacked", "kvgate.weights.served.vllm_worker")
)


class Models(NamedTuple):
    """Two checkpoints of one shape."""

    served: Path
    other: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folders = [tmp_path_factory.mktemp(f"model-{seed}") for seed in range(2)]
    for seed, folder in enumerate(folders):
        tiny_llama(folder, seed, vocabulary=130)  # vLLM pads it to 192
    return Models(*folders)


def _reload(url: str, folder: Path) -> None:
    """Load other weights in place, as reinforcement learning does."""
    with Client(url) as client:
        answer = client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    assert answer.ok, answer.said()


def _compare(ranks: tuple[ServedRank, ...], folder: Path) -> ServedComparison:
    return compare_with_checkpoint(ranks, fingerprint_checkpoint(folder, None).entries, CheckpointStretches(folder))


def _line(model: Path, size: int) -> str:
    return f"vllm serve {model} --dtype bfloat16 --max-model-len 64 --block-size 32 --tensor-parallel-size {size}"


def _captured(url: str, model: Path, folder: Path, change: str) -> Ran:
    (folder / "serve.sh").write_text(f"{_line(model, 1)} {change}\n")
    return in_process(
        *("capture", str(model), "--from", str(folder / "serve.sh"), "--endpoint", url, "-o", str(folder / "out"), "-q")
    )


def _agrees_with_the_line_that_started_it(running: Running, model: Path, size: int) -> None:
    """Every setting that it was started with is told, and each one that it was not started with is found."""
    line = _line(model, size)
    settled = {"model_type": "llama", "dtype": "bfloat16", "max_position_embeddings": 2048}
    assert running.silent == ()
    for changed, path in {
        "": None,
        "--dtype float16": "precision.compute",
        "--max-model-len 32": "engine.max_model_len",
        "--block-size 48": "engine.block_size",
        "--kv-cache-dtype fp8_e4m3": "precision.kv_cache",
        f"--tensor-parallel-size {size + 1}": "parallelism.tensor",
        "--prefix-caching-hash-algo sha256_cbor": "engine.prefix_hash.algorithm",
        "--kv-transfer-config.kv_connector ExampleConnector": "cache.connector",
        "--hf-overrides.rope_theta 5": "model.config",
        "--served-model-name support": "model.served_name",
        "--enable-lora --lora-modules a=/a": "adapters",
    }.items():
        given = parse_vllm(f"{line} {changed}", source="serve.sh")
        facts = resolve(given, settled)
        found = [
            *contradictions_with(running.settings, facts, given, {}),
            *contradictions_in_names(running, facts),
        ]
        assert [one.path for one in found] == ([] if path is None else [path])


@pytest.mark.parametrize("size", [1, 2])
def test_an_engine_holds_the_checkpoint_until_it_loads_another(
    models: Models, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vllm(models.served, UNPACKED, size, tmp_path / "log") as url:
        before = ask_served(url)
        running = ask_running(url)
        tried = ("", "--kv-cache-dtype fp8") if size == 1 else ()
        captures = [_captured(url, models.served, tmp_path, more) for more in tried]
        compared = {
            name: in_process("fingerprint", "--endpoint", url, "--compare", str(folder), "-q")
            for name, folder in models._asdict().items()
        }
        _reload(url, models.other)
        after = ask_served(url)
        monkeypatch.setattr(served_module, "METHOD", "kvgate_nothing")
        with pytest.raises(InputError, match="the workers of this vLLM do not have kvgate's extension"):
            ask_served(url)
    outcomes = {name: (ran.code, ran.out) for name, ran in compared.items()}
    assert outcomes == {"served": (0, "equal\n"), "other": (10, "different\n")}
    assert [rank.tensor_parallel.size for rank in before] == [size] * size
    _agrees_with_the_line_that_started_it(running, models.served, size)
    assert _compare(before, models.served).equal
    assert _compare(after, models.other).equal

    stored = fingerprint_checkpoint(models.served, None)
    section = served_section(before, _compare(before, models.served), stored.digest)
    assert [(entry["rank"], entry["checkpoint"]) for entry in section] == [(n, stored.digest) for n in range(size)]
    drawn = {entry.name for entry in stored.entries if "norm" not in entry.name}  # norms are 1 in both
    found = _compare(after, models.served)
    assert (found.equal, {name for _, name in found.different}) == (False, drawn)
    assert all(rank.digest() != later.digest() for rank, later in zip(before, after, strict=True))
    assert all(difference.changed for difference in compare_served(before, after).values())
    if size == 1:
        assert [ran.code for ran in captures] == [0, 3]
        said = rf"precision\.kv_cache is fp8 in .*serve\.sh: --kv-cache-dtype, but auto at {url}/server_info"
        assert re.search(said, captures[1].err)
        assert root_digest(before[0].unfused()) == stored.digest


def test_layers_that_the_cpu_build_packs_are_not_vouched_for(models: Models, tmp_path: Path) -> None:
    with vllm(models.served, AS_SHIPPED, 1, tmp_path / "log") as url:
        before = ask_served(url)
        ran = in_process("fingerprint", "--endpoint", url, "--compare", str(models.served), "-q")
        _reload(url, models.other)
        after = ask_served(url)
    assert (ran.code, ran.out) == (11, "undecided\n")
    for ranks, folder in ((before, models.served), (after, models.other)):
        found = _compare(ranks, folder)
        assert not found.equal
        assert "model.layers.0.self_attn.q_proj.weight" in found.unknown
        with pytest.raises(InputError, match="where they cannot be read"):
            ranks[0].digest()
