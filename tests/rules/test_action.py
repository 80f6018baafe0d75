"""What is to be done about a deployment with pools, and what its record says: of each pool, never of what none is."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.action import Action, action_for
from kvgate.rules.decide import Decision
from kvgate.rules.record import record_of

from .clean import digest
from .deciding import Changes, decided

WEIGHTS = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
TENANT = {"request_features": ["cache_salt"], "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}
SHARED = {"request_features": ["cache_salt"]}
APART = {"eu": {"cache.location": "redis://eu:1/0", "model.id": "acme/eu"}, "us": {"cache.location": "redis://us:1/0"}}


def with_pools(common: Changes, sets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {**common, "roles": [{"name": name, "set": one} for name, one in sets.items()]}


def widened(sets: dict[str, dict[str, Any]]) -> Decision:
    """A deployment of which more may share entries than before, so that old ones must be deleted."""
    return decided(with_pools(TENANT, sets), with_pools(SHARED, sets), declare_clear=True)


def predicate(decision: Decision) -> dict[str, Any]:
    made: dict[str, Any] = record_of(decision, "0.1.0")["predicate"]
    return made


def test_every_store_of_the_old_pools_is_cleared_and_no_other() -> None:
    action = action_for(widened(APART))
    assert action.kind == "clear"
    assert [("eu:1" in one.command, "us:1" in one.command) for one in action.clears] == [(True, False), (False, True)]
    assert "'acme/eu@*'" in action.clears[0].command
    assert "'acme/support-8b@*'" in action.clears[1].command
    assert not any("cache-1" in one.command for one in action.clears)


@pytest.mark.parametrize(
    "sets",
    [
        {"eu": {}, "us": {}},
        {"eu": {"parallelism.data": 4}, "us": {"engine.args": {"max-num-seqs": 1}}},
        {"eu": {}, "us": {"cache.connector": None}},
    ],
)
def test_pools_that_file_in_one_place_are_cleared_once(sets: dict[str, dict[str, Any]]) -> None:
    common = decided(TENANT, SHARED, declare_clear=True)
    assert action_for(widened(sets)) == action_for(common)
    assert len(action_for(common).clears) == 1


def test_each_pool_s_store_is_cleared_the_way_of_its_own_connector() -> None:
    sets = {
        "eu": {},
        "us": {"cache.connector": "vllm-offload-fs", "cache.location": "/kv", "cache.cleanup_owner": "us"},
    }
    owners = {one.owner: one.command for one in action_for(widened(sets)).clears}
    assert owners.keys() == {"team-serving", "us"}
    assert "redis-cli" in owners["team-serving"]
    assert "/kv" in owners["us"]
    assert "redis" not in owners["us"]


def _settings(old: Changes, sets: dict[str, dict[str, Any]]) -> Action:
    return action_for(decided(with_pools(old, sets), with_pools(WEIGHTS, sets)))


def test_settings_say_which_pools_have_them() -> None:
    plain = {"eu": {}, "us": {"parallelism.data": 4}}
    assert _settings({}, plain).settings[0].how == action_for(decided({}, WEIGHTS)).settings[0].how
    own = {"eu": {"cache.namespace": "a"}, "us": {"cache.namespace": "b"}}
    assert _settings({}, own).settings[0].how[-1].endswith("which set cache.namespace themselves: eu, us")


def test_settings_that_are_put_into_the_pools_make_it_green() -> None:
    own = {"eu": {"cache.namespace": "a"}, "us": {"cache.namespace": "b"}}
    old = with_pools({}, own)
    derived = _settings({}, own).settings[0].value
    done = decided(old, with_pools(WEIGHTS, {name: {"cache.namespace": derived} for name in own}))
    assert (done.derived.id, done.exit_code, action_for(done).kind) == (derived, 0, "none")
    common = decided(old, with_pools({**WEIGHTS, "cache.namespace": derived}, own))
    assert common.exit_code == 10  # the pools set it themselves


def test_locations_of_pools_each_hold_the_id() -> None:
    sets = {"eu": {"cache.location": "/kv/eu"}, "us": {"cache.location": "/kv/us"}}
    located = next(one for one in _settings({}, sets).settings if one.path == "cache.location")
    identifier = decided({}, with_pools(WEIGHTS, sets)).derived.id
    assert located.value == f"eu: /kv/eu/{identifier}; us: /kv/us/{identifier}"
    moved = {name: {"cache.location": f"/kv/{name}/{identifier}"} for name in sets}
    assert decided(with_pools({}, sets), with_pools(WEIGHTS, moved)).exit_code == 0


def test_pools_with_no_way_in_common_each_have_their_own() -> None:
    sets = {
        "eu": {"cache.location": "redis://eu:1/0"},
        "us": {"cache.connector": "vllm-example", "cache.location": "/kv"},
    }
    (both,) = _settings({}, sets).settings
    assert both.path == "roles"
    assert both.value.startswith("eu: cache.namespace: kvg1-")
    assert "; us: cache.location: /kv/kvg1-" in both.value


def test_the_record_holds_what_each_pool_is() -> None:
    sets = {
        "eu": {"cache.location": "redis://eu:1/0", "cache.namespace": "a"},
        "us": {"cache.connector": "vllm-offload-fs", "cache.location": "/kv", "cache.cleanup_owner": "us"},
    }
    made = predicate(widened(sets))
    own = {one["pool"]: one["old"] for one in made["boundary"]}
    assert own["eu -> eu"]["location"]["value"] == "redis://eu:1/0"
    assert own["us -> us"]["location"]["value"] == "/kv"
    assert [own[f"{name} -> {name}"]["owner"] for name in sets] == ["team-serving", "us"]
    assert [one["value"] for one in made["namespace"]["current"]["pools"].values()] == ["a", "prod-a"]
    assert made["policies"]["profiles"].keys() == {"lmcache-mp", "vllm-offload-fs"}


def test_the_record_of_pools_with_one_namespace_says_it_once() -> None:
    made = predicate(widened({"eu": {}, "us": {"parallelism.data": 4}}))
    assert made["namespace"]["current"] == predicate(decided(TENANT, SHARED))["namespace"]["current"]
