"""Where models run: on a device whose floor nobody measured it is measured in the run, and it is never a small one."""

from __future__ import annotations

import math

import pytest

from kvgate.probes.embedded import backend as module
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.probes.evaluation.tolerances import measured_here, tolerance_for
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.probes.rehearsal.evidence import evidence_of
from tests.probes.rehearsal.conftest import Rehearse
from tests.probes.rehearsal.pairs import HALF, ROLLED, WEIGHTS, deployment


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_floor_is_never_smaller_than_on_a_cpu(dtype: str) -> None:
    least = tolerance_for(f"{dtype}/eager/cpu")
    quiet = measured_here(dtype, "eager", "a GPU", 0.0, 0.0)
    assert least is not None
    assert quiet is not None
    assert (quiet.logprob, quiet.kv) == (least.logprob, least.kv)
    louder = measured_here(dtype, "eager", "a GPU", least.logprob / 2, 0.01)
    assert louder is not None
    assert (louder.logprob, louder.kv) == (2 * least.logprob, 0.04)


@pytest.mark.parametrize(
    ("dtype", "logprob", "kv"),
    [
        ("bfloat16", 0.11, 0.0),
        ("bfloat16", 0.0, 0.03),
        ("bfloat16", math.nan, 0.0),
        ("bfloat16", 0.0, math.inf),
        ("float32", 0.01, 0.0),
        ("float8", 0.0, 0.0),
    ],
)
def test_a_worker_that_is_far_from_itself_has_no_floor(dtype: str, logprob: float, kv: float) -> None:
    assert measured_here(dtype, "eager", "a GPU", logprob, kv) is None


def test_without_a_row_the_floor_is_measured_and_said(rehearsed: Rehearse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "tolerance_for", lambda _precision: None)
    old, new = deployment(HALF), deployment(HALF, WEIGHTS, ROLLED)
    seen = rehearsed(old, new)
    assert seen.state == "proved", seen.reason
    evidence, _ = evidence_of(old, new, seen, backend="embedded", tools={}, command=None)
    told = evidence.figures["tolerance"]
    least = tolerance_for("float16/eager/cpu")
    assert isinstance(told, dict)
    assert least is not None
    assert told["source"] == "measured in this run on a CPU: prompts cut at other tokens, and in batches of other sizes"
    assert least.logprob <= float(str(told["logprob"])) < 0.05


def test_a_model_that_is_not_itself_twice_tells_nothing(
    child: Child, rehearsed: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = child.ask
    noisy = {"logprob": 0.2, "kv": 0.0}
    monkeypatch.setattr(module, "tolerance_for", lambda _precision: None)
    monkeypatch.setattr(child, "ask", lambda one: noisy if one["op"] == "noise" else ask(one))
    seen = rehearsed(deployment(), deployment(WEIGHTS, ROLLED))
    assert seen.state == "not-run"
    assert "0.2 nats from itself" in seen.reason


def test_a_gpu_that_is_not_there_is_no_cpu(child: Child) -> None:
    one = deployment()
    with pytest.raises(CannotStageError, match="no GPU"):
        EmbeddedBackend(one, one, child=child, device="cuda").ground()
