"""Advisories: what is no release, or is asked for without being listed, may fall under one."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.carried import carries, text_only
from kvgate.rules.decide import Decision
from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import base
from tests.rules.deciding import CLEAR, NAMESPACE, decided, rules

MEDIA = {"request_features": ["multimodal"]}
SGLANG = {**base("sglang-hicache-file"), "engine.version": "0.5.19"}
SERVED = [{"name": "billing", "digest": digest("9")}]
GONE = [{**SERVED[0], "removed": True}]
BY_SALT = {"boundary": "organization", "carried_by": "cache_salt"}


def _apart(old: dict[str, Any], new: dict[str, Any], knob: str, prefix: str = "") -> Decision:
    """Decide with the new side at a place of its own: only what stays wrong for every reader is left."""
    return decided(old, {**new, knob: f"{prefix}{derive(clean(new)).id}"})


@pytest.mark.parametrize(
    "version", ["0.5.4rc1", "0.5.4+cu128", "0.5.4.dev3", "182b75e0", "12345678", "0.5.6rc1", "0.5.6+cu128", "nightly"]
)
def test_what_is_no_release_may_hold_the_defect(version: str) -> None:
    decision = _apart({**MEDIA, "cache.version": version}, MEDIA, "cache.namespace")
    (found,) = (one for one in decision.findings if one.rule == "producer-unknown")
    assert (decision.verdict, decision.exit_code, found.may_be) == (NAMESPACE, 11, "clear")
    assert decided({**MEDIA, "cache.version": version}, MEDIA, accept=frozenset({NAMESPACE})).exit_code != 0


@pytest.mark.parametrize(("version", "code"), [("0.5.4", 20), ("0.5.4.post1", 20), ("0.5.5", 0), ("0.5.5.post1", 0)])
def test_a_release_holds_it_or_not(version: str, code: int) -> None:
    decision = _apart({**MEDIA, "cache.version": version}, MEDIA, "cache.namespace")
    assert decision.exit_code == code
    assert ("producer-advisory" in rules(decision)) is (code == 20)


@pytest.mark.parametrize("version", ["0.5.19rc1", "0.5.19+local", "abcdef1"])
def test_an_engine_that_is_no_release(version: str) -> None:
    salted = {**SGLANG, "request_features": ["cache_salt"], "engine.version": version}
    decision = decided(salted, base("sglang-hicache-file"), accept=frozenset({NAMESPACE}))
    assert "producer-unknown" in rules(decision)
    assert decision.exit_code != 0


@pytest.mark.parametrize(
    "old",
    [
        {"request_features": ["lora"]},
        {"request_features": ["lora_hot_load"]},
        {"request_features": [], "adapters": SERVED},
        {"request_features": [], "cache.tenancy": BY_SALT},
    ],
)
def test_adapters_and_salts_that_no_feature_names(old: dict[str, Any]) -> None:
    decision = _apart({**SGLANG, **old}, base("sglang-hicache-file"), "cache.location", "/kv/")
    assert (decision.verdict, decision.exit_code) == (CLEAR, 20)
    assert "producer-advisory" in rules(decision)


@pytest.mark.parametrize(
    ("engine", "version", "found"),
    [
        ("sglang", "0.5.18", "producer-advisory"),
        ("sglang", "0.5.19", None),
        (FORGET, "0.5.18", "producer-unknown"),
        ("vllm", "0.5.18", None),
    ],
)
def test_a_salt_that_one_engine_does_not_hand_on_is_no_defect_of_another(
    engine: Any, version: str, found: str | None
) -> None:
    """sgl-project/sglang#37160, LMCache/LMCache#4825: the same connector in vLLM does hand it on."""
    old = {"engine.name": engine, "engine.version": version, "request_features": ["cache_salt"]}
    decision = decided(old, {})
    assert {"producer-advisory", "producer-unknown"} & set(rules(decision)) == ({found} if found else set())
    if found == "producer-advisory":
        (one,) = (finding for finding in decision.findings if finding.rule == found)
        assert (decision.verdict, one.change.scope) == (CLEAR, "tenant")


def test_a_defect_of_the_connector_is_one_in_front_of_whatever_engine() -> None:
    old = {**MEDIA, "cache.version": "0.5.4", "engine.name": FORGET}
    assert "producer-advisory" in rules(decided(old, MEDIA))


AFFECTED = {**MEDIA, "cache.version": "0.5.4"}


@pytest.mark.parametrize("old", [[AFFECTED], [MEDIA], [{}], []])
def test_a_release_that_has_the_defect_itself_goes_nowhere(old: list[dict[str, Any]]) -> None:
    """Upgraded to, gone back to or deployed first: what it writes is wrong wherever it lies."""
    new = {**AFFECTED, "cache.namespace": derive(clean(AFFECTED)).id}
    decision = decided(old, new, declare_clear=True, strategy="recreate", accept=frozenset({CLEAR, NAMESPACE}))
    assert (decision.verdict, decision.exit_code) == (CLEAR, 30)
    (found,) = (one for one in decision.findings if one.rule == "fault-affected-producer")
    assert (found.self_fault, found.change.scope) == (True, "media")


@pytest.mark.parametrize("version", ["0.5.4rc1", "nightly"])
def test_a_release_that_may_have_the_defect(version: str) -> None:
    new = {**MEDIA, "cache.version": version}
    decision = decided([], new, accept=frozenset({NAMESPACE}))
    (found,) = (one for one in decision.findings if one.rule == "producer-unknown")
    assert (found.may_be, decision.accepted) == ("self-fault", False)


def test_nobody_is_warned_of_what_is_not_carried() -> None:
    for old in ({"adapters": GONE}, {"cache.tenancy": {"boundary": "shared", "carried_by": None}}):
        found = rules(decided({**SGLANG, **old}, base("sglang-hicache-file")))
        assert {"producer-advisory", "producer-unknown"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("feature", "side", "answer"),
    [
        ("lora", {}, False),
        ("lora", {"request_features": ["lora_hot_load"]}, True),
        ("lora", {"adapters": SERVED}, True),
        ("lora", {"adapters": SERVED, "request_features": FORGET}, True),
        ("lora", {"adapters": FORGET}, None),
        ("lora", {"request_features": FORGET}, None),
        ("lora", {"adapters": GONE}, False),
        ("multimodal", {"adapters": FORGET}, False),
        ("cache_salt", {"cache.tenancy": BY_SALT}, True),
        ("cache_salt", {"cache.tenancy": FORGET}, None),
        ("cache_salt", {"request_features": FORGET}, None),
    ],
)
def test_what_is_carried(feature: str, side: dict[str, Any], answer: bool | None) -> None:
    assert carries(clean(side), feature) is answer


def test_adapters_that_could_be_loaded_left_entries_behind_as_served_ones_do() -> None:
    """The old key did not hold the adapter, whether its requests were listed as such or as loaded while running."""
    for features in (["lora"], ["lora_hot_load"], ["lora", "lora_hot_load"]):
        decision = decided({"request_features": features}, {})
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
        assert rules(decision).count("requests-left-mixed-entries") == 1
    offload = base("vllm-offload-fs")
    assert decided({**offload, "request_features": ["lora_hot_load"]}, offload).exit_code == 0


def test_nothing_but_text() -> None:
    assert text_only(clean())
    for side in ({"adapters": SERVED}, {"adapters": FORGET}, {"cache.tenancy": BY_SALT}, {"request_features": FORGET}):
        assert not text_only(clean(side))
    assert not text_only(clean({"request_features": ["lora_hot_load"]}))
