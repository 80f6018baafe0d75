"""Pools: what one of them sets counts like what the deployment sets, alone and against the old side."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import NAMESPACE, REUSE, decided, rules

WEIGHTS = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
OFFLOAD = {"cache.connector": "vllm-offload-fs", "cache.version": None}
TENANT = {"boundary": "tenant", "carried_by": "cache_salt"}
SALTED = {"cache.tenancy": TENANT, "request_features": ["cache_salt"]}


def pool(name: str, **overrides: Any) -> dict[str, Any]:
    return {"name": name, "set": {path.replace("__", "."): value for path, value in overrides.items()}}


def test_equal_pools_are_reuse_without_findings() -> None:
    roles = {"roles": [pool("decode", parallelism__tensor=4), pool("prefill", parallelism__tensor=2)]}
    decision = decided(roles, roles)
    assert (decision.verdict, decision.findings) == (REUSE, ())


def test_a_pool_that_has_a_store_has_one_although_the_deployment_says_none() -> None:
    roles = {"cache.connector": None, "roles": [pool("decode", cache__connector="vllm-offload-fs")]}
    assert decided(OFFLOAD, {**OFFLOAD, **WEIGHTS, **roles}).exit_code == 10


def test_a_pool_that_stays_in_the_old_namespace_is_seen() -> None:
    from kvgate.rules.namespace import derive

    roles = {"roles": [pool("decode", cache__namespace="prod-a"), pool("prefill")]}
    new = {**WEIGHTS, **roles}
    named = {**new, "cache.namespace": derive(clean(new)).id}
    assert decided({}, named).exit_code in (10, 30)
    assert decided({}, {**WEIGHTS, "cache.namespace": derive(clean(WEIGHTS)).id}).exit_code == 0


@pytest.mark.parametrize(
    ("base", "overrides"),
    [
        ({**SALTED}, {"cache__tenancy__carried_by": None}),
        ({"cache.connector": "lmcache"}, {"request_features": ["lora"]}),
        ({}, {"weights__mutable": True}),
        ({}, {"precision__kv_scales": "dynamic"}),
    ],
)
@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_self_fault_of_a_pool_is_one_of_the_deployment(
    base: dict[str, Any], overrides: dict[str, Any], names: list[str]
) -> None:
    new = {**base, "roles": [pool(name, **overrides) for name in names]}
    assert decided(base, new).exit_code == 30
    assert decided(new, new).exit_code == 30


def test_a_change_in_one_pool_counts_and_names_it() -> None:
    old = {"roles": [pool("decode"), pool("prefill")]}
    new = {"roles": [pool("decode", precision__kv_cache="fp8_e4m3"), pool("prefill")]}
    decision = decided(old, new)
    assert decision.verdict == NAMESPACE
    assert "kv-dtype-changed" in rules(decision)
    assert any("decode" in finding.change.detail for finding in decision.findings)


def test_pools_that_are_not_known_on_the_old_side_are_said_once() -> None:
    decision = decided(
        {"roles": FORGET, "parallelism.tensor": 4}, {"roles": [pool("decode", parallelism__data=2), pool("prefill")]}
    )
    assert [finding.rule for finding in decision.findings if finding.change.dimension == "roles"] == ["roles-changed"]
