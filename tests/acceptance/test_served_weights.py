"""A release whose engine was asked what it holds: from the running engine to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Capture, Check, Kvgate
from tests.acceptance.releases import Checkpoints
from tests.corpora.engine_server import Engine, serving
from tests.deployments.serving_engine import answering, replies

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
K_PROJ = "model.layers.2.self_attn.k_proj.weight"
Holding = Callable[..., str]


@pytest.fixture
def holding() -> Iterator[Holding]:
    """Serve an engine that holds a checkpoint, or what a test makes of it."""
    with ExitStack() as stack:

        def call(model: Path, change: Callable[[Any], object] = lambda _: None) -> str:
            given = replies(model)
            change(given)
            return stack.enter_context(serving(Engine(answering(given)))).url

        yield call


def test_asking_both_engines_costs_nothing_and_one_only_says_nothing_of_the_others_buffers(
    check: Check, capture: Capture, holding: Holding, base: Path
) -> None:
    asked = capture(base, endpoint=holding(base))
    assert (*check(asked, asked),) == (REUSE, 0, [])
    assert (*check(capture(base), asked),) == (NEW, 11, ["served-weights-changed"])


def test_a_new_tail_is_a_new_tail_whoever_was_asked(
    check: Check, capture: Capture, holding: Holding, checkpoints: Checkpoints, base: Path
) -> None:
    other = checkpoints.with_a_changed_byte("lm_head.weight")
    old, new = (capture(model, endpoint=holding(model)) for model in (base, other))
    assert (*check(old, new),) == (REUSE, 0, ["weights-tail-only"])


def test_an_engine_that_loaded_other_weights_is_no_release_of_this_checkpoint(
    kvgate: Kvgate, holding: Holding, checkpoints: Checkpoints, base: Path, tmp_path: Path
) -> None:
    """As reinforcement learning and hot reloads leave it: the files are the old ones, what is served is not."""
    url = holding(checkpoints.with_a_changed_byte(K_PROJ))
    ran = kvgate("capture", base, "--endpoint", url, "-o", "new", "-q")
    assert (ran.code, ran.out) == (3, "")
    assert f"the running engine holds other weights than this checkpoint: 1 of its tensors differ (first: {K_PROJ}" in (
        ran.err
    )
    assert not (tmp_path / "new").exists()


def _quantized(given: Any) -> None:
    """What is packed for a kernel is not taken apart."""
    given[0]["parts"] = []


def _calibrated(given: Any) -> None:
    _quantized(given)
    given[0]["tensors"][-1] = {**given[0]["tensors"][-1], "content": "blake3:" + "1" * 64}


def test_engines_of_one_form_compare_with_each_other(
    check: Check, capture: Capture, holding: Holding, base: Path
) -> None:
    one, two, three = (capture(base, endpoint=holding(base, how)) for how in (_quantized, _quantized, _calibrated))
    assert (*check(one, two),) == (REUSE, 0, [])
    answer = check(one, three)
    assert (*answer,) == ("new-namespace", 10, ["served-weights-changed"])
    assert answer.finding("served-weights-changed")["detail"] == "rank 0 of 1 holds others"
