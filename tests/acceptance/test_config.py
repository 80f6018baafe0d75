"""Changes in config.json, from the file to the verdict. The renamed keys of RoPE are incident I24."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Capture, Check
from tests.acceptance.releases import Checkpoints, serve

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
SPELLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "torch_dtype": ({"dtype": ..., "torch_dtype": "float16"}, {}),
    "class default written out": ({}, {"rms_norm_eps": 1e-06, "attention_bias": False, "mlp_bias": False}),
    "class default of heads": ({"head_dim": ...}, {}),
    "whole number and decimal": ({}, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}),
}


@pytest.mark.parametrize("name", SPELLED)
def test_another_spelling_of_the_same(check: Check, capture: Capture, checkpoints: Checkpoints, name: str) -> None:
    old, new = (capture(checkpoints(f"{name} {number}", config=config)) for number, config in enumerate(SPELLED[name]))
    assert (*check(old, new),) == (REUSE, 0, [])


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("rms_norm_eps", 1e-05, "config-changed"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 20000.0}, "config-changed"),
        ("attention_multiplier_of_nobody", 0.5, "config-unclassified"),
    ],
)
def test_a_field_that_may_change_kv(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path, field: str, value: Any, rule: str
) -> None:
    answer = check(capture(base), capture(checkpoints(f"config {field}", config={field: value})))
    assert (*answer,) == (NEW, 10, [rule])
    assert field in answer.report


def test_an_override_in_the_launch_line_counts_as_the_config(check: Check, capture: Capture, base: Path) -> None:
    scaled = '{"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}'
    answer = check(capture(base), capture(base, serve("--hf-overrides", scaled, "--max-model-len", "4096")))
    assert (*answer,) == (NEW, 10, ["config-changed", "config-changed"])
    assert {finding["path"] for finding in answer.predicate["findings"]} == {
        "model.config.rope_parameters.factor",
        "model.config.rope_parameters.rope_type",
    }


def test_a_field_that_changes_no_kv(check: Check, capture: Capture, checkpoints: Checkpoints, base: Path) -> None:
    answer = check(capture(base), capture(checkpoints("config use_cache", config={"use_cache": False})))
    assert (*answer,) == (REUSE, 0, ["config-harmless"])
