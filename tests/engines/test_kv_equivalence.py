"""``kv-equivalence`` by a real vLLM: KV out of its connectors' stores, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.engines.backend import VllmBackend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.engines.sides import Launch
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.probes.rehearsal.evidence import evidence_of, kv_state
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.rules.case import Case
from kvgate.rules.decide import decide
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from tests.probes.rehearsal.pairs import WEIGHTS, deployment

from .models import tiny_llama

Changes = dict[str, Any]

HERE: Changes = {
    "model.id": "models/support",
    "model.config_class": None,
    "engine.version": "0.32.0",
    "engine.image": None,
    "engine.packages": None,
    "engine.accelerator": "cpu",
    "engine.attention_backend": None,
    "engine.block_size": 32,
    "engine.max_model_len": 512,
    "engine.args": {},
    "cache.chunk_size": 32,
}
EXAMPLE: Changes = {"cache.connector": "vllm-example", "cache.version": None, "cache.namespace": None}
FLAG = {"engine.args": {"disable-cascade-attn": True}}
FLAGS = ("--dtype", "bfloat16", "--block-size", "32", "--max-model-len", "512", "--enforce-eager", "--seed", "0")
LAUNCHES = (Launch(FLAGS, {}), Launch((*FLAGS, "--disable-cascade-attn"), {}))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two of the same shape, whose weights differ by a little."""
    folder = tmp_path_factory.mktemp("models")
    tiny_llama(folder / "one", 0, vocabulary=512, scale=3)
    tiny_llama(folder / "other", 0, vocabulary=512, scale=3.05)
    return folder / "one", folder / "other"


def _served(checkpoint: Path, *changes: Changes) -> Manifest:
    config = json.loads((checkpoint / "config.json").read_text())
    return deployment(HERE, {"model.config": config}, *changes)


@pytest.fixture
def backend(installation: Installation, program: Program, child: Child) -> Callable[..., VllmBackend]:
    def made(old: Manifest, new: Manifest, folders: tuple[Path, Path], **given: Any) -> VllmBackend:
        return VllmBackend(old, new, installation, folders=Folders(*folders), program=program, child=child, **given)

    return made


def _rehearsed(old: Manifest, new: Manifest, made: Callable[[], VllmBackend]) -> tuple[Rehearsal, Evidence]:
    seen = rehearse(old, new, made, size=Size(corpus=1, decidable=0, tokens=2))
    assert seen.ground is not None, seen.reason
    return seen, evidence_of(old, new, seen, backend="vllm", tools={}, command=None)[1]


def _verdict(old: Manifest, new: Manifest, *evidence: Evidence) -> str:
    return decide(Case(old=(old,), new=new, pack=shipped_pack("default"), evidence=evidence)).verdict


def test_equal_blocks_of_the_engine_that_serves_settle_a_flag_that_was_used(
    checkpoints: tuple[Path, Path], backend: Callable[..., VllmBackend]
) -> None:
    one, _ = checkpoints
    old, new = _served(one, EXAMPLE), _served(one, EXAMPLE, FLAG)
    seen, blocks = _rehearsed(old, new, lambda: backend(old, new, (one, one), launches=LAUNCHES))
    assert blocks.state == "proved", blocks.reason
    assert blocks.figures["layers"] == [{"layer": number, "error": 0, "noise": 0} for number in range(2)]
    assert (_verdict(old, new), _verdict(old, new, blocks)) == ("new-namespace", "verified-compatible-reuse")

    # The same blocks say nothing of flags that were not used, or of a version that did not run.
    earlier = _served(one, EXAMPLE, {"engine.version": "0.31.0"})
    for before, after, launches, what in (
        (old, new, None, "engine.args"),
        (earlier, old, LAUNCHES, "engine.version"),
        (old, earlier, LAUNCHES, "engine.version"),
    ):
        ground = backend(before, after, (one, one), launches=launches).ground()
        state, reason = kv_state(before, after, replace(seen, ground=ground))
        assert state == "inconclusive"
        assert what in reason


def test_two_installations_on_one_store_and_weights_that_differ_by_a_little(
    checkpoints: tuple[Path, Path], backend: Callable[..., VllmBackend], installation: Installation, program: Program
) -> None:
    redis = {"cache.location": "redis://cache-1:6379/0"}
    old, new = _served(checkpoints[0], redis), _served(checkpoints[1], redis, WEIGHTS)
    both = {"old_installation": installation, "old_program": program}
    seen, blocks = _rehearsed(old, new, lambda: backend(old, new, checkpoints, **both))
    assert seen.ground is not None
    assert seen.ground.engines
    assert seen.ground.tools["vllm (old)"] == seen.ground.tools["vllm"]
    assert (seen.state, [one.id for one in seen.mistakes]) == ("refuted", ["namespace-not-rolled"])
    assert blocks.state == "refuted"
    assert all(0.01 < one.error < 0.2 and one.noise == 0 for one in seen.layers or ())


@pytest.mark.parametrize(
    "flags",
    [
        ("--worker-cls", "evil.Worker"),
        ("--worker_extension_cls=evil.Extension",),
        ("--load-format", "pt"),
        ("--kv-events-config", '{"enable_kv_cache_events": true}'),
        ("--otlp-traces-endpoint", "http://collector:4317"),
        ("--speculative-config.model", "draft"),
        ("--config", "more.yaml"),
    ],
)
def test_a_flag_that_runs_code_or_reaches_out_is_refused(
    flags: tuple[str, ...], program: Program, tmp_path: Path
) -> None:
    (tmp_path / "more.yaml").write_text("worker-cls: evil.Worker\n")
    store = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    with pytest.raises(CannotStageError, match="is not started here"):
        program.start("refused", tmp_path, [*FLAGS, *flags, "--model", "models/support"], {}, store)
