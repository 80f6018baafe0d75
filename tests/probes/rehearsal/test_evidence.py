"""A rehearsal as evidence: ``check`` takes it, and it never settles what it did not look at."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvgate.probes.rehearsal.backend import Ground, LayerError
from kvgate.probes.rehearsal.evidence import evidence_of, kv_state
from kvgate.probes.rehearsal.seen import Part, Rehearsal
from kvgate.rules.case import Case
from kvgate.rules.decide import Decision, decide
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from tests.probes.rehearsal.conftest import Rehearse
from tests.probes.rehearsal.pairs import (
    HALF,
    ROLLED,
    ROPE,
    SALT_DROPPED,
    TEMPLATE,
    TENANTS,
    WEIGHTS,
    adapter,
    deployment,
)
from tests.rules.clean import FORGET

_GROUND = Ground(model="real", precision="float32/eager/cpu", staged={}, engines=True)
_HELD = Part("held", "it did")


def _seen(error: float, noise: float = 0.0, ground: Ground = _GROUND) -> Rehearsal:
    layers = (LayerError(0, 0.0, 0.0), LayerError(1, error, noise))
    return Rehearsal("reuse", "proved", "", _HELD, _HELD, _HELD, layers=layers, ground=ground)


def _decide(old: Manifest, new: Manifest, *evidence: Evidence) -> Decision:
    return decide(Case(old=(old,), new=new, pack=shipped_pack("default"), evidence=evidence))


def _evidence(old: Manifest, new: Manifest, seen: Rehearsal) -> tuple[Evidence, ...]:
    return evidence_of(old, new, seen, backend="embedded", tools={"kvgate": "0"}, command="kvgate rehearse old new")


def test_a_proof_by_stand_ins_settles_nothing_else(rehearsed: Rehearse) -> None:
    old, new = deployment(), deployment(WEIGHTS, ROLLED)
    isolation, blocks = _evidence(old, new, rehearsed(old, new))
    assert (isolation.kind, isolation.state, blocks.kind, blocks.state) == (
        "isolation",
        "proved",
        "kv-equivalence",
        "inconclusive",
    )
    assert isolation.figures["model"] == "stand-in"
    assert isolation.figures["procedure"] == "plan"
    assert isolation.supports(old, new)
    before, after = _decide(old, new), _decide(old, new, isolation, blocks)
    assert (after.verdict, after.accepted, after.exit_code) == (before.verdict, before.accepted, before.exit_code)
    assert Evidence.model_validate(json.loads(json.dumps(isolation.as_data()))) == isolation


def test_a_refutation_is_taken_and_belongs_to_these_two(rehearsed: Rehearse) -> None:
    old, new = deployment(), deployment(WEIGHTS)
    isolation, _ = _evidence(old, new, rehearsed(old, new))
    assert isolation.state == "refuted"
    assert [mistake["id"] for mistake in isolation.figures["mistakes"]] == ["namespace-not-rolled"]  # type: ignore[index, union-attr, call-overload]
    assert "refuted-rehearsal" in [finding.rule for finding in _decide(old, new, isolation).findings]
    other = deployment({"weights.checkpoint.digest": "blake3:" + "7" * 64})
    assert "refuted-rehearsal" not in [finding.rule for finding in _decide(old, other, isolation).findings]


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (_seen(0.0), "proved"),
        (_seen(9e-6), "proved"),
        (_seen(2e-5), "refuted"),
        (_seen(float("inf")), "refuted"),
        (_seen(2e-5, noise=1e-5), "inconclusive"),
        (_seen(0.0, noise=2e-5), "inconclusive"),
        (_seen(0.0, noise=float("inf")), "inconclusive"),
        (_seen(0.0, ground=replace(_GROUND, precision="bfloat16/any/server")), "inconclusive"),
        (_seen(1.0, ground=replace(_GROUND, precision="bfloat16/unmeasured/cpu")), "inconclusive"),
        (_seen(0.0, ground=replace(_GROUND, engines=False)), "inconclusive"),
        (_seen(0.0, ground=replace(_GROUND, model="stand-in")), "inconclusive"),
        (_seen(1.0, ground=replace(_GROUND, model="stand-in")), "inconclusive"),
        (replace(_seen(0.0), layers=None), "not-run"),
        (replace(_seen(0.0), ground=None), "not-run"),
    ],
)
def test_what_blocks_show(seen: Rehearsal, state: str) -> None:
    assert kv_state(deployment(), deployment(), seen)[0] == state


def test_blocks_that_agree_under_unequal_weights_prove_nothing() -> None:
    state, reason = kv_state(deployment(), deployment(WEIGHTS), _seen(0.0))
    assert state == "inconclusive"
    assert "not known to be equal" in reason


_CHANGES: list[dict[str, Any]] = [
    {},
    WEIGHTS,
    ROPE,
    HALF,
    TEMPLATE,
    TENANTS,
    SALT_DROPPED,
    adapter("a"),
    {"engine.version": "0.32.0"},
    {"engine.args": {"no-such-flag": 1}},
    {"cache.version": "0.5.5"},
    {"model.code": "sha256:" + "1" * 64},
    {"weights": FORGET},
    {"engine": FORGET},
]


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("boundary", [{}, ROLLED])
def test_a_proved_rehearsal_by_stand_ins_changes_no_decision(change: dict[str, Any], boundary: dict[str, Any]) -> None:
    old, new = deployment(), deployment(change, boundary)
    seen = _seen(0.0, ground=replace(_GROUND, model="stand-in"))
    found = _evidence(old, new, seen)
    assert [one.state for one in found] == ["proved", "inconclusive"]
    before, after = _decide(old, new), _decide(old, new, *found)
    assert (after.verdict, after.accepted, after.exit_code) == (before.verdict, before.accepted, before.exit_code)


@pytest.mark.parametrize(
    ("model", "staged", "verdict"),
    [
        ("real", {"engine.args": "both launch files"}, "verified-compatible-reuse"),
        ("real", {}, "new-namespace"),
        ("stand-in", {"engine.args": "both launch files"}, "new-namespace"),
    ],
)
def test_only_blocks_of_the_real_model_and_of_what_differs_settle_an_upgrade(
    model: str, staged: dict[str, str], verdict: str
) -> None:
    old = deployment()
    new = deployment({"engine.args": {"no-such-flag": 1}})
    seen = replace(_seen(0.0, ground=replace(_GROUND, model=model)), staged=staged)  # type: ignore[arg-type]
    assert _decide(old, new, *_evidence(old, new, seen)).verdict == verdict


@pytest.mark.parametrize(
    "change",
    [
        {"engine.version": "0.32.0"},
        {"engine.attention_backend": "FLASHINFER"},
        {"engine.accelerator": "B200"},
        {"engine.image": "sha256:" + "5" * 64, "engine.packages": "blake3:" + "6" * 64},
        {"engine.image": FORGET},
        {"engine.speculative": {"model": "draft"}},
        {"cache.version": "0.5.5"},
        {"model.code": "sha256:" + "1" * 64},
        {"model.config.no_such_field": 1},
    ],
)
def test_blocks_settle_nothing_that_was_not_there(change: dict[str, Any]) -> None:
    old, new = deployment(), deployment(change)
    state, reason = kv_state(old, new, _seen(0.0))
    assert state == "inconclusive"
    assert next(iter(change)).rpartition(".")[0] in reason
