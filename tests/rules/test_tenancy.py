"""What can carry a tenant boundary: something that varies between requests and stands in every key of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.deciding import REUSE, decided, rules

OFFLOAD = {"cache.connector": "vllm-offload-fs", "cache.version": None}
OWN = {"cache.connector": "own-store", "cache.version": None}
FEATURES = ["cache_salt", "lora", "multimodal", "template_kwargs"]


def tenancy(carrier: str | None) -> dict[str, Any]:
    return {"cache.tenancy": {"boundary": "tenant", "carried_by": carrier}}


def test_a_salt_that_requests_carry_and_the_key_holds() -> None:
    sides = {**OFFLOAD, **tenancy("cache_salt"), "request_features": ["cache_salt"]}
    assert decided(sides, sides).verdict == REUSE


def test_a_salt_that_requests_no_longer_carry() -> None:
    old = {**OFFLOAD, **tenancy("cache_salt"), "request_features": ["cache_salt"]}
    decision = decided(old, {**old, "request_features": []})
    assert decision.exit_code == 30
    assert "fault-tenant-boundary" in rules(decision)


@pytest.mark.parametrize("carrier", ["multimodal", "template_kwargs", "lora"])
def test_what_is_not_in_every_key_carries_nothing(carrier: str) -> None:
    sides = {**OFFLOAD, **tenancy(carrier), "request_features": FEATURES}
    assert decided(sides, sides).exit_code == 30


@pytest.mark.parametrize("carrier", ["token_ids", "cache.namespace", "namespace", "model.revision", "epoch"])
def test_what_is_the_same_for_all_requests_carries_nothing(carrier: str) -> None:
    sides = {**OWN, **tenancy(carrier), "cache.key_fields": ["token_ids", carrier]}
    assert decided(sides, sides).exit_code == 30


def test_a_field_of_the_own_key_that_names_the_tenant_carries() -> None:
    sides = {**OWN, **tenancy("account"), "cache.key_fields": ["token_ids", "account"]}
    assert decided(sides, sides).verdict == REUSE
    missing = {**sides, "cache.key_fields": ["token_ids"]}
    assert decided(missing, missing).exit_code == 30


def test_adapters_are_asked_for() -> None:
    """Served adapters over a key that does not hold them are a self-fault, whatever the features say."""
    sides = {"cache.connector": "lmcache", "adapters": [{"name": "billing", "digest": "blake3:" + "9" * 64}]}
    assert decided(sides, sides).exit_code == 30


def test_a_tag_of_lmcache_carries_and_none_but_a_tag_does() -> None:
    tagged = {"cache.connector": "lmcache", **tenancy("lmcache.tag.tenant")}
    assert decided(tagged, tagged).verdict == REUSE
    assert decided({"cache.connector": "lmcache"}, tagged).exit_code == 10  # old requests may have been tagged
    for other in ("cache_salt", "lmcache.tag.", "lmcache.tag.a@b", "lmcache.skip_save", "lmcache.tag.ns", "tenant"):
        sides = {**tagged, **tenancy(other)}
        assert not decided(sides, sides).accepted, other
    elsewhere = {**tagged, "cache.connector": "lmcache-mp"}
    assert not decided(elsewhere, elsewhere).accepted


def test_the_tag_of_the_namespace_carries_no_tenant() -> None:
    """It holds one value for all requests, and the finding names the way out."""
    sides = {"cache.connector": "lmcache", **tenancy("lmcache.tag.ns")}
    decision = decided(sides, sides)
    assert decision.exit_code == 30
    assert "take a tag of another name" in decision.findings[0].change.detail
