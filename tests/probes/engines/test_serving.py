"""What runs here speaks for a deployment only where it is what serves there."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.probes.engines.serving import Ran, ran_with, unlike_serving
from tests.probes.rehearsal.pairs import deployment
from tests.rules.clean import FORGET

_RAN = Ran("0.32.0", "0.5.6", "cpu", launched=False)
_SERVED: dict[str, Any] = {
    "engine.version": "0.32.0",
    "engine.image": None,
    "engine.packages": None,
    "engine.accelerator": "CPU",
    "engine.attention_backend": None,
    "engine.args": {},
}


def _paths(change: dict[str, Any], other: dict[str, Any] | None = None, ran: Ran = _RAN) -> list[str]:
    served = deployment(_SERVED, change)
    beside = deployment(_SERVED, change if other is None else other)
    return [path for path, _ in unlike_serving(served, beside, ran)]


def test_what_a_process_tells() -> None:
    told = {"vllm": "0.32.0+cpu", "torch": "2.13.0", "device": "cpu"}
    assert ran_with(told, launched=True, ranks=2) == Ran("0.32.0", None, "cpu", launched=True, ranks=2)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"engine.attention_backend": "CPU_ATTN"},
        {"engine.image": "sha256:" + "4" * 64, "engine.packages": None},
        {"cache.connector": "vllm-example", "cache.version": None},
    ],
)
def test_what_serves_is_what_ran(change: dict[str, Any]) -> None:
    assert _paths(change) == []


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("engine.name", ["sglang", FORGET]),
        ("engine.version", ["0.31.0", "0.32.0.post1", FORGET]),
        ("engine.image", [FORGET]),
        ("engine.packages", [FORGET]),
        ("engine.accelerator", ["H200", None, FORGET]),
        ("engine.attention_backend", ["FLASH_ATTN", FORGET]),
        ("engine.speculative", [{"model": "draft"}, FORGET]),
        ("engine.args", [{"kv-sharing-fast-prefill": True}, FORGET]),
        ("cache.version", ["0.5.5", None, FORGET]),
        ("cache.serde", ["cachegen", FORGET]),
        ("parallelism.tensor", [2]),
        ("parallelism", [FORGET]),
    ],
)
def test_what_is_another_one_or_not_known_did_not_run(path: str, values: list[Any]) -> None:
    for value in values:
        assert path.removesuffix(".tensor") in _paths({path: value})


@pytest.mark.parametrize("path", ["engine.image", "engine.packages"])
def test_one_build_of_a_version_does_not_speak_for_two(path: str) -> None:
    letter = "sha256:" if path == "engine.image" else "blake3:"
    assert _paths({path: letter + "5" * 64}, {}) == [path]
    assert _paths({}, {path: letter + "5" * 64}) == [path]


def test_a_launch_files_flags_were_used() -> None:
    flags = {"engine.args": {"kv-sharing-fast-prefill": True}}
    assert _paths(flags, ran=Ran("0.32.0", "0.5.6", "cpu", launched=True)) == []


_SETTINGS = {"kv_connector_extra_config": {"lmcache.mp.host": "tcp://h", "lmcache.mp.port": 5}}


@pytest.mark.parametrize(
    ("flags", "unlike"),
    [
        ({"kv-transfer-config": _SETTINGS, "lmcache-server": {"l1-size-gb": 20, "eviction-policy": "LRU"}}, []),
        ({"kv-transfer-config": {**_SETTINGS, "kv_load_failure_policy": "recompute"}}, ["engine.args"]),
        ({"kv-transfer-config": {"kv_connector_extra_config": {"lmcache.mp.foo": 2}}}, ["engine.args"]),
        ({"lmcache-server": {"separate-object-groups": True}}, ["engine.args"]),
    ],
)
def test_a_connector_is_started_with_settings_of_its_own(flags: dict[str, Any], unlike: list[str]) -> None:
    assert _paths({"engine.args": flags}, ran=Ran("0.32.0", "0.5.6", "cpu", launched=True)) == unlike


def test_a_device_that_is_no_cpu_is_not_known_to_be_the_one_that_serves() -> None:
    assert _paths({}, ran=Ran("0.32.0", "0.5.6", "cuda", launched=False)) == ["engine.accelerator"]


@pytest.mark.parametrize(
    ("change", "ranks", "unlike"),
    [
        ({"parallelism.tensor": 2}, 2, []),
        ({"parallelism.tensor": 2}, 1, ["parallelism"]),
        ({"parallelism.tensor": 1}, 2, ["parallelism"]),
        ({"parallelism.tensor": 2, "parallelism.pipeline": 2}, 2, ["parallelism"]),
        ({"parallelism.tensor": 2, "parallelism.decode_context": 2}, 2, ["parallelism"]),
        ({"parallelism.tensor": 2, "parallelism.data": 4}, 2, []),
    ],
)
def test_as_many_ranks_ran_as_serve(change: dict[str, Any], ranks: int, unlike: list[str]) -> None:
    assert _paths(change, ran=Ran("0.32.0", "0.5.6", "cpu", launched=False, ranks=ranks)) == unlike
