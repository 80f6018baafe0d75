"""Pools: what one of them sets counts like what the deployment sets, alone and against the old side."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.errors import InputError
from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import base, spoken
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
    assert [finding.rule for finding in decision.findings if finding.change.dimension == "roles"] == ["roles-unknown"]


NIXL = {**base("vllm-nixl"), "roles": [pool("decode", parallelism__tensor=4), pool("prefill")]}


def test_workers_of_unlike_size_exchange_blocks_that_are_converted() -> None:
    """It is what the connector is for: vLLM splits and joins heads, and refuses where it cannot."""
    assert decided(NIXL, NIXL).verdict == REUSE
    smaller = {**NIXL, "roles": [pool("decode", parallelism__tensor=1), pool("prefill")]}
    assert decided(NIXL, smaller).exit_code == 0
    files = {**NIXL, **base("vllm-mooncake")}
    assert decided(files, files).exit_code == 30


@pytest.mark.parametrize("overrides", [{"precision__kv_cache": "fp8_e4m3"}, {"engine__args": {"quant-x": 1}}])
def test_workers_that_compute_other_blocks_are_no_pair(overrides: dict[str, Any]) -> None:
    new = {**NIXL, "roles": [pool("decode", parallelism__tensor=4, **overrides), pool("prefill")]}
    assert decided(NIXL, new).exit_code == 30


def test_other_weights_behind_the_same_router_are_refused() -> None:
    assert decided(NIXL, {**NIXL, **WEIGHTS}).exit_code == 10


# ---- every old pool shares the store with every new one while they run ----

FP8 = "fp8_e4m3"
ACROSS = [pool("decode", precision__kv_cache=FP8), pool("prefill", parallelism__tensor=2)]


def test_what_an_old_pool_left_may_have_the_keys_of_a_new_pool_of_another_name() -> None:
    old = {**base("lmcache"), "parallelism.tensor": 2, "precision.kv_cache": "bfloat16", "roles": ACROSS}
    new = {**old, "parallelism.tensor": 4, "precision.kv_cache": FP8}
    # Old decode and new prefill are both of size 2 and fp8: only the weights tell them apart.
    decision = decided(old, {**new, **WEIGHTS})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert any(
        finding.open and "decode -> prefill" in finding.change.detail and finding.change.dimension == "weights"
        for finding in decision.findings
    )


def test_pools_that_stay_where_they_are_are_not_asked_of_each_others_place() -> None:
    roles = {"roles": [pool("decode", cache__namespace="a"), pool("prefill", cache__namespace="b")]}
    assert decided(roles, roles).verdict == REUSE
    decision = decided(roles, {**roles, "chat_template.digest": digest("9"), "chat_template.tree": digest("9")})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)


def test_pools_that_were_filed_apart_stay_apart_while_they_stay_where_they_are() -> None:
    text = {"chat_template.digest": digest("9"), "chat_template.tree": digest("9")}
    roles = [pool("decode", precision__kv_cache=FP8, cache__location="/kv/a"), pool("prefill", cache__location="/kv/b")]
    assert decided({"roles": roles}, {"roles": roles, **text}).exit_code == 0
    swapped = [
        pool("decode", precision__kv_cache=FP8, cache__location="/kv/b"),
        pool("prefill", cache__location="/kv/a"),
    ]
    named = {"cache.namespace": derive(clean({"roles": swapped})).id}
    assert decided({"roles": roles, **named}, {"roles": swapped, **named}).exit_code == 10


def test_a_template_fix_of_pools_that_the_key_tells_apart() -> None:
    roles = {"roles": [pool("decode", parallelism__tensor=4), pool("prefill")]}
    decision = decided(roles, {**roles, "chat_template.digest": digest("9"), "chat_template.tree": digest("9")})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)


# ---- pools that are not known ----

ASKED: list[dict[str, Any]] = [
    {},
    {"accept": frozenset({"new-namespace"})},
    {"accept": frozenset({"new-namespace", "clear"})},
    {"declare_clear": True},
    {"declare_clear": True, "strategy": "recreate"},
]


@pytest.mark.parametrize("options", ASKED)
def test_nothing_meets_that_the_old_pools_are_not_known(options: dict[str, Any]) -> None:
    """One of them may be what the new deployment is in all that the key holds, and lie where nobody deletes."""
    front, larger = base("lmcache"), {"parallelism.tensor": 4}
    old = {**front, "roles": [pool("p", parallelism__tensor=4), pool("d")]}
    new = {**front, **larger, **WEIGHTS}
    for known in (old, {**front, "roles": [pool("p"), pool("d", cache__namespace="z")]}):
        before = decided(known, new, **options)
        after = decided({**known, "roles": FORGET}, new, **options)
        assert not after.accepted
        assert before.exit_code in (0, 10)
    named = {**new, "cache.namespace": derive(clean(new)).id}
    assert not decided({**old, "roles": FORGET}, named, **options).accepted


def test_a_deployment_that_reads_no_store_need_not_know_the_old_pools() -> None:
    assert decided({"roles": FORGET}, {"cache.connector": None}).exit_code == 0
    reads = {"cache.connector": None, "roles": [pool("p", cache__connector="lmcache-mp"), pool("q")]}
    assert decided({"roles": FORGET}, reads).exit_code == 11


def test_that_the_pools_differ_is_met_where_every_pair_is_kept_apart() -> None:
    front = base("lmcache")
    new = {**front, "parallelism.tensor": 4, **WEIGHTS}
    old = [pool("p", parallelism__tensor=8), pool("d", parallelism__tensor=16)]
    assert decided({**front, "roles": old}, new).exit_code == 0
    assert decided({**front, "roles": [*old, pool("e", parallelism__tensor=4)]}, new).exit_code == 10
    named = {**WEIGHTS, "cache.namespace": derive(clean(WEIGHTS)).id}
    assert decided({"roles": [pool("p"), pool("d", parallelism__tensor=4)]}, named).exit_code == 0


def test_what_a_pool_files_elsewhere_is_not_cleared_with_the_rest() -> None:
    front = base("aibrix")
    old = {**front, "roles": [pool("p", parallelism__tensor=8), pool("d", cache__namespace="z")]}
    for one in (old, {**old, "roles": FORGET}):
        assert not decided(one, {**front, "parallelism.expert": 2}, profiles=spoken(), **ASKED[-1]).accepted


EIGHT_BIT = {"precision__kv_cache": "fp8_e4m3"}


def test_what_an_old_pool_left_counts_where_the_new_one_of_its_name_has_no_store_any_more() -> None:
    old = {"roles": [pool("decode"), pool("prefill", **EIGHT_BIT)]}
    new = {"roles": [pool("decode"), pool("prefill", **EIGHT_BIT, cache__connector=None)]}
    assert "kv-dtype-changed" in rules(decided(old, new))
    assert decided(old, new).exit_code == 10
    assert decided(new, new).verdict == REUSE


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_pools_are_held_against_each_other_whatever_they_are_called(names: str) -> None:
    shared, kept = pool(names[0], cache__tenancy__boundary="shared", cache__tenancy__carried_by=None), pool(names[1])
    roles = {**SALTED, "roles": [shared, kept]}
    assert decided(roles, roles).exit_code == 30
    apart = {"roles": [pool(names[0], **EIGHT_BIT, cache__connector=None), pool(names[1])]}
    assert decided(apart, apart).verdict == REUSE


def test_what_a_pool_sets_comes_from_where_the_pools_do() -> None:
    declared = {"roles": [pool("a", weights__checkpoint__digest=digest("9"), adapters=[])]}
    assert decided(declared, declared).exit_code == 11
    computed = {**declared, "provenance": {**clean().data["provenance"], "roles": "computed"}}
    assert decided(computed, computed).verdict == REUSE


def test_adapters_of_one_name_that_are_not_known_to_be_the_same_share_keys() -> None:
    known, unknown = ({"name": "b", "path": "/b", **more} for more in ({"digest": digest("1")}, {}))
    roles = {**OFFLOAD, "roles": [pool("a", adapters=[known]), pool("b", adapters=[unknown])]}
    said = [one.change.detail for one in decided(roles, roles).findings if one.rule == "roles-unknown"]
    assert any("a and b differ in adapters.b, which is not known of both" in detail for detail in said)


@pytest.mark.parametrize("path", ["roles", "schema", "release.name", "provenance"])
def test_a_pool_sets_nothing_that_is_the_deployment_s(path: str) -> None:
    with pytest.raises(InputError, match=f"sets '{path}', which no pool has for itself|which is not a manifest path"):
        clean({"roles": [{"name": "a", "set": {path: None}}]})


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ({"weights__checkpoint__digest": digest("9")}, "weights-changed"),
        ({"chat_template__digest": digest("9")}, "template-changed"),
        ({"tokenizer__files": {"tokenizer.json": digest("9")}}, "tokenizer-changed"),
        ({"engine__image": "sha256:" + "9" * 64}, "engine-changed"),
    ],
)
def test_what_is_said_of_the_value_of_all_is_said_of_no_pool_s_own(overrides: dict[str, Any], rule: str) -> None:
    """The digest of the tensors that KV depends on, of all pools' weights, is none of other weights."""
    decision = decided({}, {"roles": [pool("all", **overrides)], "provenance.roles": "computed"})
    assert decision.verdict == NAMESPACE
    assert rule in rules(decision)
