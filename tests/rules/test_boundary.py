"""The boundary: what keeps old and new entries apart, what would, and what is left to do."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.action import action_for
from kvgate.rules.decide import Decision
from kvgate.rules.namespace import derive
from kvgate.rules.profile import Profile, shipped_profiles
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, STALE, about, decided

OFFLOAD: dict[str, Any] = {"cache.connector": "vllm-offload-fs", "cache.version": None}
WEIGHTS: dict[str, Any] = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
IN_PROCESS: dict[str, Any] = {"cache.connector": "lmcache"}
SALTED: dict[str, Any] = {"request_features": ["cache_salt"]}
TENANT = {"boundary": "tenant", "carried_by": "cache_salt"}
ACCEPT = frozenset({"new-namespace"})


def named(changes: dict[str, Any], text: str = "{}") -> dict[str, Any]:
    """Put the derived id into the namespace."""
    return {**changes, "cache.namespace": text.format(derive(clean(changes)).id)}


def without_knobs() -> dict[str, Profile]:
    shipped = shipped_profiles()
    return {**shipped, "lmcache-mp": shipped["lmcache-mp"].model_copy(update={"knobs": []})}


def opened(decision: Decision) -> set[str]:
    return {obligation for finding in decision.findings for obligation in finding.open}


# ---- names ----


@pytest.mark.parametrize("text", ["{}", "prod-{}", "{}/a", "/kv/{}", "prod.{}@eu"])
def test_a_namespace_that_holds_the_derived_id_is_safe(text: str) -> None:
    decision = decided({}, named(WEIGHTS, text))
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)
    knob = decision.boundaries[0].boundary.knob
    assert knob is not None
    assert knob.path == "cache.namespace"


def test_a_namespace_that_is_set_newly_keeps_keys_apart_where_the_key_holds_it() -> None:
    unset: dict[str, Any] = {"cache.namespace": None}
    new = named(WEIGHTS)
    assert {one.keys_separate for one in decided(unset, new).findings} == {"yes"}
    assert {one.keys_separate for one in decided(unset, {**new, "cache.namespace": "prod-b"}).findings} == {"no"}
    stale = about("isolation", "refuted", unset, new, shown=STALE)
    answers = {one.rule: one.keys_separate for one in decided(unset, new, evidence=[stale]).findings}
    assert answers["refuted-rehearsal"] == "no"


@pytest.mark.parametrize("text", ["x{}y", "/kv/{}/../old", "old#{}", "old?x={}", "redis://c:6379/0/{}", "/old,/kv/{}"])
def test_a_namespace_that_only_mentions_the_derived_id_is_not(text: str) -> None:
    assert decided({}, named(WEIGHTS, text)).exit_code == 10


@pytest.mark.parametrize("location", ["redis://c:6379/0/{}", "rediss://c:6379/{}", "valkey://c/{}", "lm://c:9/{}"])
def test_a_location_whose_clients_ignore_the_path_is_no_name_of_its_own(location: str) -> None:
    identifier = derive(clean(WEIGHTS)).id
    assert identifier is not None
    decision = decided({}, {**WEIGHTS, "cache.location": location.format(identifier)})
    assert decision.exit_code == 10
    assert not any("redis" in one.value for one in action_for(decision).settings)


@pytest.mark.parametrize(
    "location", ["/kv/{}", "file:///kv/{}", "s3://bucket/{}/", "fs://host/kv/{}", "volume:kv/a/{}", "volume:{}"]
)
def test_a_location_of_its_own_is_safe(location: str) -> None:
    identifier = derive(clean(WEIGHTS)).id
    assert identifier is not None
    assert decided({}, {**WEIGHTS, "cache.location": location.format(identifier)}).exit_code == 0


@pytest.mark.parametrize(
    ("location", "code"),
    [("s3://kv-{}", 0), ("s3://kv-{}.s3.eu.example/", 0), ("s3://kv/{}", 10), ("gs://kv-{}", 10), ("/kv/{}", 0)],
)
def test_lmcache_reads_no_prefix_behind_a_bucket(location: str, code: int) -> None:
    identifier = derive(clean({**WEIGHTS, **IN_PROCESS})).id
    assert identifier is not None
    assert (
        decided(IN_PROCESS, {**WEIGHTS, **IN_PROCESS, "cache.location": location.format(identifier)}).exit_code == code
    )


@pytest.mark.parametrize(
    "location",
    [
        "[/shared + /kv/{}/x]",
        "[/kv/{} + redis://c:6379/0]",
        "/shared:/kv/{}",
        "/shared;/kv/{}",
        "/shared|/kv/{}",
        "/shared /kv/{}",
        "shared:/kv/{}",
        "shared:{}",
        "volume:shared:/kv/{}",
        "volume:volume:{}",
        "volume:kv/{}/../old",
        "fs://{}:80/kv",
        "file:///shared:/kv/{}",
        "file:///shared,file:///kv/{}",
        "/kv/{}/$OTHER",
        "s3://bucket/{}/?prefix=shared",
    ],
)
def test_a_list_of_places_is_safe_only_where_each_is(location: str) -> None:
    new = {**WEIGHTS, "cache.location": location.format(derive(clean(WEIGHTS)).id)}
    assert decided({}, new).exit_code == 10
    assert decided([], new).exit_code == 11


def test_tiers_that_all_hold_the_derived_id_are_safe() -> None:
    location = "[/nvme/{0} + s3://bucket/{0}]".format(derive(clean(WEIGHTS)).id)
    assert decided({}, {**WEIGHTS, "cache.location": location}).exit_code == 0


PLACES = [
    ("redis://c:6379/0", "redis://c:6379"),
    ("/kv", "/kv/"),
    ("/kv", "/link-to-kv"),
    ("[file:///nvme1 + redis://c:6379/0]", "[file:///nvme2 + redis://c:6379/0]"),
    ("redis://cache-1:6379/0", "redis://cache-1-alias:6379/0"),
]


@pytest.mark.parametrize(("old", "new"), PLACES)
def test_another_name_of_a_place_is_not_known_to_be_another_place(old: str, new: str) -> None:
    """Both sides wrote under the derived id, the old one with other weights."""
    name = {"cache.namespace": derive(clean()).id}
    decision = decided({**WEIGHTS, **name, "cache.location": old}, {**name, "cache.location": new})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert [finding.change.dimension for finding in decision.findings if finding.open] == ["weights"]


def test_a_place_of_its_own_that_was_used_in_another_spelling_separates_nothing() -> None:
    place = f"/kv/{derive(clean()).id}"
    decision = decided({**WEIGHTS, "cache.location": place}, {"cache.location": f"{place}/"})
    assert (decision.boundaries[0].boundary.knob, decision.exit_code) == (None, 10)


def test_the_derived_id_of_another_identity_is_a_hand_typed_name() -> None:
    stranger = {**WEIGHTS, "cache.namespace": derive(clean()).id}
    assert decided({}, stranger).exit_code == 10
    assert decided({}, {**WEIGHTS, "cache.namespace": (derive(clean(WEIGHTS)).id or "")[:-1]}).exit_code == 10


def test_a_name_that_both_sides_use_separates_nothing() -> None:
    """Whoever put the new id there, the old deployment wrote under it."""
    new = named(WEIGHTS)
    decision = decided({"cache.namespace": new["cache.namespace"]}, new)
    assert (decision.boundaries[0].boundary.knob, decision.exit_code) == (None, 10)


def test_an_unknown_or_unset_name_is_no_boundary() -> None:
    new = named(WEIGHTS)
    assert decided({"cache.namespace": FORGET}, new).exit_code != 0
    assert decided({"cache.namespace": None}, new).exit_code == 0
    assert decided({}, {**WEIGHTS, "cache.namespace": None}).exit_code == 10
    assert decided({}, {**WEIGHTS, "cache.namespace": FORGET}).exit_code == 10


def test_a_name_counts_for_nothing_while_the_identity_is_not_complete() -> None:
    new = {**named(WEIGHTS), "engine.speculative": FORGET}
    decision = decided({}, new)
    assert decision.derived.id is None
    assert decision.exit_code == 10
    assert "no id can be derived" in decision.boundaries[0].boundary.why_knob
    assert action_for(decision).settings == ()


MOVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another store": ({}, {"cache.location": "redis://cache-2:6379/0"}),
    "another seed": ({"cache.connector": "lmcache"}, {"cache.connector": "lmcache", "engine.prefix_hash.seed": "1"}),
    "a seed at last": (
        {"cache.connector": "lmcache", "engine.prefix_hash.seed": None},
        {"cache.connector": "lmcache", "engine.prefix_hash.seed": "0"},
    ),
    "another model name": ({}, {"model.id": "/models/other"}),
    "another connector": ({"cache.connector": "lmcache"}, {"cache.connector": "lmcache-mp"}),
    "a store at last": ({"cache.connector": None}, {}),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_lies_where_the_key_space_moved_to_is_a_strangers_until_shown(name: str) -> None:
    old, new = MOVES[name]
    decision = decided(old, new)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    # The name was derived before and stays: what lies at the target is of this identity or nobody's.
    kept = named(new)
    old_named = {**old, "cache.namespace": kept["cache.namespace"]}
    decision = decided(old_named, kept)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)
    empty = about("inventory", "proved", old, new, figures={"entries": 0})
    assert decided(old, new, evidence=[empty]).exit_code == 0
    full = about("inventory", "refuted", old_named, kept, reason="strangers")
    assert decided(old_named, kept, evidence=[full]).exit_code == 10
    drained = decided(old, new, declare_clear=True, strategy="recreate")
    assert drained.exit_code == 10  # deleting the old entries says nothing of the target


def test_a_name_that_stays_does_not_settle_what_differs() -> None:
    """In front of another connector, or under another seed, only what lies at the target is known by the name."""
    for old, change in (
        ({"cache.connector": "lmcache", "engine.prefix_hash.seed": None}, {"engine.prefix_hash.seed": "0"}),
        ({"cache.connector": "vllm-offload-fs"}, {"cache.connector": "lmcache"}),
    ):
        new = named({"cache.connector": "lmcache", **change, "precision.compute": "float16"})
        decision = decided({**old, "cache.namespace": new["cache.namespace"]}, new)
        assert decision.exit_code == 10
        assert "precision.compute" in {finding.change.dimension for finding in decision.findings if finding.open}


# ---- obligations ----


def _lora(letter: str) -> dict[str, Any]:
    """Say that adapters are swapped while others read the store."""
    adapters = [{"name": "billing", "digest": digest(letter)}]
    return {**OFFLOAD, "request_features": ["lora", "lora_hot_load"], "adapters": adapters}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, WEIGHTS),
        ({}, {"precision.kv_cache": "fp8_e4m3"}),
        ({"engine.version": "0.32.0"}, {}),
        ({}, {"cache.tenancy": TENANT, **SALTED}),
        ({"cache.tenancy": TENANT, **SALTED}, {}),  # wider: nothing private is there to be deleted
        (_lora("8"), _lora("9")),
    ],
)
def test_an_old_deployment_without_a_cache_left_nothing_and_only_the_target_counts(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Switching a cache on together with a new model is the usual order."""
    none = {**old, "cache.connector": None}
    empty = about("inventory", "proved", None, new, figures={"entries": 0})
    decision = decided(none, new, evidence=[empty])
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)
    assert {one.keys_separate for one in decision.findings if one.change.dimension != "cache.connector"} == {"no store"}
    alone = decided(none, new)
    assert (alone.exit_code, {one.change.path for one in alone.findings if one.open}) == (10, {"cache.connector"})
    # Another that had one left entries of its own, and one of which that is not known may have.
    assert not decided([none, old], new, evidence=[empty]).accepted
    assert not decided({**old, "cache.connector": FORGET}, new, evidence=[empty]).accepted
    # What was seen where it must not be is not answered by what should be there.
    for kind in ("bypass-diff", "tenant-canary", "lifecycle-audit"):
        seen = about(kind, "refuted", none, new)
        assert not decided(none, new, evidence=[empty, seen]).accepted


def test_what_the_key_holds_separates_every_other_change_too() -> None:
    decision = decided(OFFLOAD, {**OFFLOAD, **WEIGHTS, "precision.kv_cache": "fp8_e4m3"})
    assert decision.boundaries[0].boundary.separators == ("precision.kv_cache",)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)


def test_what_only_some_entries_carry_separates_nothing() -> None:
    adapters = [{"name": "a", "digest": digest("1")}]
    decision = decided(OFFLOAD, {**OFFLOAD, **WEIGHTS, "adapters": adapters})
    assert (decision.boundaries[0].boundary.separators, decision.exit_code) == ((), 10)


def test_other_tokens_separate_only_what_they_are_about() -> None:
    decision = decided({}, {**WEIGHTS, "tokenizer.effective": digest("9")})
    assert decision.exit_code == 10
    assert [finding.change.dimension for finding in decision.findings if finding.open] == ["weights"]


def test_a_value_that_is_unset_or_unknown_is_not_known_to_separate() -> None:
    for value in (None, FORGET):
        decision = decided({**OFFLOAD, "engine.block_size": value}, {**OFFLOAD, **WEIGHTS})
        assert decision.boundaries[0].boundary.separators == ()
        assert not decision.accepted


def test_one_unmet_obligation_refuses() -> None:
    met = named({"cache.tenancy": TENANT, **SALTED, **WEIGHTS})
    assert decided(SALTED, met).exit_code == 0
    widened = decided({**SALTED, "cache.tenancy": {"boundary": "user", "carried_by": "cache_salt"}}, met)
    assert (widened.verdict, widened.exit_code, opened(widened)) == (CLEAR, 20, {"delete"})
    assert decided({**SALTED, "cache.tenancy": {"boundary": "user", "carried_by": "cache_salt"}}, met,
                   declare_clear=True).exit_code == 0  # fmt: skip


def test_clearing_separates_only_where_the_old_workers_are_drained() -> None:
    assert decided({}, WEIGHTS, declare_clear=True).exit_code == 10
    assert decided({}, WEIGHTS, declare_clear=True, strategy="recreate").exit_code == 0
    assert decided({}, WEIGHTS, strategy="recreate").exit_code == 10


def test_a_declaration_discharges_no_fault() -> None:
    new = {"request_features": ["lora"]}
    options: dict[str, Any] = {
        "declare_clear": True,
        "strategy": "recreate",
        "accept": frozenset({"clear", "new-namespace"}),
    }
    assert decided({}, named(new), **options).exit_code == 30
    assert decided({}, {"cache.tenancy": {"boundary": "tenant", "carried_by": None}}, **options).exit_code == 30


def test_a_connector_without_a_knob_asks_for_deletion() -> None:
    decision = decided({}, WEIGHTS, profiles=without_knobs())
    assert (decision.verdict, decision.exit_code, opened(decision)) == (CLEAR, 20, {"separate", "delete"})
    assert decided({}, WEIGHTS, profiles=without_knobs(), declare_clear=True).exit_code == 10
    assert decided({}, WEIGHTS, profiles=without_knobs(), declare_clear=True, strategy="recreate").exit_code == 0
    assert decided({}, {"cache.location": "redis://b:1/0", **WEIGHTS}, profiles=without_knobs()).verdict != REUSE


def test_a_connector_of_which_nothing_is_known_may_be_one_without_a_knob() -> None:
    for changes in ({"cache.connector": "nobody-knows"}, {"cache.connector": FORGET}):
        decision = decided(changes, {**changes, **WEIGHTS}, accept=ACCEPT)
        assert (decision.verdict, decision.accepted) == (NAMESPACE, False)
        assert any(finding.may_be == "clear" for finding in decision.findings)


# ---- acceptance and exit codes ----


@pytest.mark.parametrize(
    ("old", "new", "options", "exit_code", "accepted"),
    [
        ({}, {}, {}, 0, True),
        ({}, WEIGHTS, {}, 10, False),
        ({}, WEIGHTS, {"accept": ACCEPT}, 0, True),
        ({}, WEIGHTS, {"accept": frozenset({"clear"})}, 10, False),
        ({}, WEIGHTS, {"accept": frozenset({"verified-compatible-reuse"})}, 10, False),
        ({}, WEIGHTS, {"advisory": True}, 0, False),
        ({}, {"cache.serde": FORGET}, {}, 11, False),
        ({}, {"cache.serde": FORGET}, {"accept": ACCEPT}, 0, True),
        ({}, {**WEIGHTS, "cache.serde": FORGET}, {}, 10, False),
        ({}, {"cache.tenancy": FORGET}, {"accept": ACCEPT}, 11, False),
        ({}, {"adapters": FORGET}, {"accept": ACCEPT}, 11, False),
        ({}, {"request_features": FORGET}, {"accept": ACCEPT}, 11, False),
        ({}, {"roles": FORGET}, {"accept": ACCEPT}, 11, False),
        ({**SALTED, "cache.tenancy": TENANT}, SALTED, {}, 20, False),
        ({**SALTED, "cache.tenancy": TENANT}, SALTED, {"accept": frozenset({"clear"})}, 0, True),
        ({**SALTED, "cache.tenancy": TENANT}, SALTED, {"accept": ACCEPT}, 20, False),
        ({**SALTED, "cache.tenancy": TENANT}, SALTED, {"declare_clear": True}, 0, True),
        ({}, {"request_features": ["lora"]}, {"accept": frozenset({"clear", "new-namespace"})}, 30, False),
        ({}, {"request_features": ["lora"]}, {"advisory": True}, 0, False),
    ],
)
def test_exit_codes(
    old: dict[str, Any], new: dict[str, Any], options: dict[str, Any], exit_code: int, accepted: bool
) -> None:
    decision = decided(old, new, **options)
    assert (decision.exit_code, decision.accepted) == (exit_code, accepted)
    assert decision.enforced is not options.get("advisory", False)
    assert decision.why


def test_nobody_is_told_to_set_what_does_not_help() -> None:
    assert action_for(decided({}, {})).kind == "none"
    assert action_for(decided({}, {"cache.serde": FORGET})).kind == "none"
    assert action_for(decided({}, {**WEIGHTS, "request_features": ["lora"]})).kind == "none"
    assert action_for(decided({}, named(WEIGHTS))).kind == "none"
    assert action_for(decided({"cache.connector": "x"}, {"cache.connector": "x", **WEIGHTS})).kind == "none"


def test_what_is_to_be_cleared_stays_the_action_once_it_is_declared() -> None:
    old, new = {**SALTED, "cache.tenancy": TENANT}, SALTED
    for declared in (False, True):
        action = action_for(decided(old, new, declare_clear=declared))
        assert (action.kind, len(action.clears)) == ("clear", 1)
        assert action.clears[0].owner == "team-serving"
        assert "acme/support-8b" in action.clears[0].command
        assert action.clears[0].blast_radius


# ---- pools ----


def pools(first: dict[str, Any], second: dict[str, Any], **base: Any) -> dict[str, Any]:
    return {**base, "roles": [{"name": "prefill", "set": first}, {"name": "decode", "set": second}]}


@pytest.mark.parametrize(
    ("first", "second", "exit_code"),
    [
        ({}, {}, 11),
        ({"parallelism.data": 4}, {"parallelism.data": 1}, 11),
        ({"engine.args": {"max-num-seqs": 1}}, {}, 11),
        ({"parallelism.tensor": 4}, {}, 11),
        (
            {"parallelism.tensor": 4, "parallelism.pipeline": 1},
            {"parallelism.tensor": 2, "parallelism.pipeline": 2},
            30,
        ),
        ({"precision.kv_cache": "fp8_e4m3"}, {}, 30),
        ({"precision.kv_cache": "fp8_e4m3", "cache.namespace": "a"}, {"cache.namespace": "b"}, 11),
        ({"cache.namespace": "a"}, {"cache.namespace": "b"}, 11),
        (
            {"precision.kv_cache": "fp8_e4m3", "cache.location": "redis://a:1/0"},
            {"cache.location": "redis://b:1/0"},
            11,
        ),
        (
            {"precision.kv_cache": "fp8_e4m3", "cache.location": "[/nvme1 + redis://a:1/0]"},
            {"cache.location": "[/nvme2 + redis://A:1]"},
            30,
        ),
        ({"precision.kv_cache": "fp8_e4m3", "cache.location": "/kv/"}, {"cache.location": "file:///kv"}, 30),
        ({"precision.kv_cache": "fp8_e4m3", "cache.location": "/kv/a"}, {"cache.location": "/kv"}, 30),
        ({"precision.kv_cache": "fp8_e4m3", "cache.location": "/kv/a"}, {"cache.location": "/kv/b"}, 11),
        ({"precision.kv_cache": "fp8_e4m3", "cache.location": "s3://a/x"}, {"cache.location": "s3://b/x"}, 11),
    ],
)
def test_pools_share_the_store_while_they_run(first: dict[str, Any], second: dict[str, Any], exit_code: int) -> None:
    """Exit 11 is a first deployment's: nothing is known of the target."""
    assert decided([], pools(first, second)).exit_code == exit_code


def test_a_refutation_or_a_defective_producer_is_no_fault_of_the_pools() -> None:
    media = pools({}, {}, request_features=["multimodal"])
    decision = decided({**media, "cache.version": "0.5.1"}, media)
    assert (decision.verdict, decision.exit_code) == (CLEAR, 20)
    plain = pools({}, {})
    for kind in ("isolation", "kv-equivalence", "inventory"):
        refuted = about(kind, "refuted", plain, plain, shown=STALE)
        assert decided(plain, plain, evidence=[refuted]).exit_code == 10
