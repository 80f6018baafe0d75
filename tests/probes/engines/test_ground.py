"""What a rehearsal with a real vLLM stands on: for whom its numbers speak, and which differences were there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.engines.backend import VllmBackend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.engines.sides import Launch
from kvgate.probes.rehearsal.backend import CannotStageError, Ground, LayerError
from kvgate.probes.rehearsal.evidence import kv_state
from kvgate.probes.rehearsal.seen import Rehearsal
from tests.probes.rehearsal.pairs import deployment

_HERE: dict[str, Any] = {
    "engine.version": "0.32.0",
    "engine.image": None,
    "engine.packages": None,
    "engine.accelerator": "cpu",
    "engine.attention_backend": None,
    "engine.block_size": 32,
    "engine.args": {},
}
_EARLIER = {"engine.version": "0.31.0"}
_FLAG = {"engine.args": {"disable-cascade-attn": True}}
_SETTING = {"engine.args": {"kv-transfer-config": {"kv_load_failure_policy": "recompute"}}}


class _Program:
    """Tells its versions, and starts nothing."""

    def __init__(self, vllm: str, lmcache: str = "0.5.6", device: str = "cpu") -> None:
        self._told = {"vllm": f"{vllm}+cpu", "torch": "2.13.0", "lmcache": lmcache, "device": device}

    def ask(self, _request: dict[str, Any]) -> dict[str, Any]:
        return self._told


def _ground(
    old: dict[str, Any],
    new: dict[str, Any],
    *,
    before: _Program | None = None,
    launched: bool = False,
    real: bool = True,
    program: _Program | None = None,
) -> Ground:
    installation, here = Installation(Path("python")), Path("/nowhere")
    backend = VllmBackend(
        deployment(_HERE, old),
        deployment(_HERE, new),
        installation,
        old_installation=None if before is None else installation,
        folders=Folders(here, here) if real else None,
        launches=(Launch((), {}), Launch((), {})) if launched else None,
        program=cast("Program", program or _Program("0.32.0")),
        old_program=cast("Program", before),
    )
    return backend.ground()


def test_one_vllm_speaks_for_two_deployments_of_its_version() -> None:
    ground = _ground({}, {})
    assert (ground.engines, ground.model, ground.precision) == (True, "real", "bfloat16/vllm/cpu")
    assert dict(ground.missing).keys() == {"procedure"}
    assert ground.tools == {"vllm": "0.32.0+cpu", "torch": "2.13.0", "lmcache": "0.5.6"}


@pytest.mark.parametrize(("old", "new"), [(_EARLIER, {}), ({}, _EARLIER), (_EARLIER, _EARLIER)])
def test_one_vllm_says_nothing_of_another_version(old: dict[str, Any], new: dict[str, Any]) -> None:
    ground = _ground(old, new)
    assert not ground.engines
    assert "engine.version" in ground.missing
    assert "engine.version" not in ground.staged


def test_each_sides_own_version_ran() -> None:
    ground = _ground(_EARLIER, {}, before=_Program("0.31.0"))
    assert ground.engines
    assert ground.staged["engine.version"] == "0.31.0 and 0.32.0"
    assert ground.tools["vllm (old)"] == "0.31.0+cpu"
    layers = (LayerError(0, 0.0, 0.0),)
    seen = Rehearsal("separate", "inconclusive", "", layers=layers, ground=ground, staged=ground.staged)
    old, new = deployment(_HERE, _EARLIER), deployment(_HERE)
    state, reason = kv_state(old, new, seen)
    assert state == "proved", reason
    assert kv_state(old, new, replace(seen, staged={}))[0] == "inconclusive"


@pytest.mark.parametrize("before", ["0.30.0", "0.32.0"])
def test_an_interpreter_with_another_version_than_the_manifests_is_not_the_old_deployments(before: str) -> None:
    ground = _ground(_EARLIER, {}, before=_Program(before))
    assert not ground.engines
    assert before in ground.missing["engine.version"]
    assert "engine.version" not in ground.staged


def test_a_connectors_version_is_each_sides_own_too() -> None:
    old = {"cache.version": "0.5.5"}
    ground = _ground(old, {}, before=_Program("0.32.0", lmcache="0.5.5"))
    assert (ground.engines, ground.staged["cache.version"]) == (True, "0.5.5 and 0.5.6")
    assert not _ground(old, {}).engines


@pytest.mark.parametrize(
    ("old", "new", "launched", "staged"),
    [
        ({}, _FLAG, True, True),
        ({}, _FLAG, False, False),
        (_FLAG, _FLAG, True, False),
        ({}, _SETTING, True, False),  # the connector is started with settings of its own
        (_FLAG, {"engine.args": {**_SETTING["engine.args"]}}, True, False),
    ],
)
def test_flags_that_differ_were_there_where_launch_files_have_them(
    old: dict[str, Any], new: dict[str, Any], launched: bool, staged: bool
) -> None:
    assert ("engine.args" in _ground(old, new, launched=launched).staged) is staged


def test_stand_ins_and_other_devices_speak_for_nobody() -> None:
    assert not _ground({}, {}, real=False).engines
    ground = _ground({}, {}, program=_Program("0.32.0", device="cuda"))
    assert (ground.engines, ground.precision) == (False, "bfloat16/vllm/cuda")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cache.connector": None, "cache.version": None}, "nothing outlives the engine"),
        ({"cache.connector": "sglang-hicache-file"}, "not started here"),
        (
            {"model.config.model_type": "deepseek_v3", "model.config.kv_lora_rank": 512},
            "multi-head latent attention",
        ),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_started(change: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotStageError, match=why):
        _ground(change, change, program=cast("_Program", None))


def test_a_store_in_a_redis_takes_one_that_can_be_started() -> None:
    with pytest.raises(CannotStageError, match="redis-server"):
        _ground({}, {"cache.location": "redis://cache-1:6379/0"}, program=cast("_Program", None))
