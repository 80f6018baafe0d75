"""What was seen of short prompts says nothing of long ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvgate.probes.rehearsal.backend import Ground, LayerError
from kvgate.probes.rehearsal.evidence import kv_state
from kvgate.probes.rehearsal.reach import too_short, turns_at
from kvgate.probes.rehearsal.seen import Part, Rehearsal
from tests.probes.rehearsal.pairs import NARROWER, ROPE, WINDOWED, deployment
from tests.rules.clean import FORGET

_HELD = Part("held", "it did")
_SHORT = {"engine.max_model_len": 1024}
_SEEN = Rehearsal(
    "reuse",
    "proved",
    "",
    _HELD,
    _HELD,
    _HELD,
    layers=(LayerError(0, 0.0, 0.0),),
    ground=Ground(model="real", precision="float32/eager/cpu", staged={}, engines=True),
    staged={"model.config": "as it is"},
    compared=600,
)


@pytest.mark.parametrize(
    ("config", "turn"),
    [
        ({}, 0),
        (WINDOWED, 4096),
        ({**WINDOWED, **_SHORT}, 0),  # no sequence is that long
        ({"model.config.window_size": 256}, 256),
        ({"model.config.text_config": {"attention_chunk_size": 512}}, 512),
        ({"model.config.rope_parameters": {"original_max_position_embeddings": 4096}}, 4096),
        ({"model.config.max_window_layers": 28, "model.config.use_sliding_window": True}, 0),
        ({**WINDOWED, "engine.max_model_len": FORGET}, 4096),
    ],
)
def test_where_a_config_turns(config: dict[str, Any], turn: int) -> None:
    assert turns_at(deployment(config), deployment(config)) == turn


@pytest.mark.parametrize(
    ("before", "after", "compared", "state"),
    [
        ({}, {}, 600, "proved"),
        (WINDOWED, {}, 600, "inconclusive"),
        (WINDOWED, {}, 4159, "inconclusive"),
        (WINDOWED, {}, 4160, "proved"),
        (_SHORT, {"model.config.nobody_knows": 1}, 600, "inconclusive"),
        (_SHORT, {"model.config.nobody_knows": 1}, 1024, "proved"),
        ({"engine.max_model_len": FORGET}, {"model.config.nobody_knows": 1}, 8192, "inconclusive"),
    ],
)
def test_equal_blocks_prove_no_more_than_was_compared(
    before: dict[str, Any], after: dict[str, Any], compared: int, state: str
) -> None:
    found = kv_state(deployment(before), deployment(before, after), replace(_SEEN, compared=compared))
    assert found[0] == state, found


def test_a_config_that_differs_is_compared_to_the_end() -> None:
    assert too_short(deployment(_SHORT), deployment(_SHORT, ROPE), 1023) is not None
    assert too_short(deployment(WINDOWED), deployment(NARROWER), 8192) is None
