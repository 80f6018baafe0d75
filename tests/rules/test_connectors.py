"""Every connector and dimension: a pair that differs in just that, and the boundary says what the source says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from kvgate.rules import diff as diff_module
from kvgate.rules.action import action_for
from kvgate.rules.catalogue import dimension
from kvgate.rules.decide import Decision
from kvgate.rules.finding import Finding
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import Feature, cover, shipped_profiles
from kvgate.rules.record import record_of
from kvgate.rules.schema import Feature as Carried
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import DIMENSIONS, KEYS, OLD_OTHER, OTHER, RUN, base, pair, spoken
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, decided, rules
from tests.rules.walking import walk

ADDRESS = {name for name in DIMENSIONS if dimension(name).compare == "address"}
INPUTS = {name for name in DIMENSIONS if name.startswith("inputs.")}
EVERY = [(connector, name) for connector in KEYS for name in DIMENSIONS]
SPOKEN = spoken()
BUILT: dict[str, Manifest] = {}


@pytest.fixture(autouse=True)
def plain_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find changed leaves by a plain walk."""
    monkeypatch.setattr(diff_module, "changed_leaves", walk)


def built(changes: dict[str, Any]) -> Manifest:
    """Build a side once: most pairs share one."""
    name = repr(changes)
    if name not in BUILT:
        BUILT[name] = clean(changes)
    return BUILT[name]


def only(decision: Decision, name: str) -> Finding:
    (found,) = (finding for finding in decision.findings if finding.change.dimension == name)
    return found


@pytest.mark.parametrize(("connector", "name"), EVERY, ids=[f"{c}: {n}" for c, n in EVERY])
def test_a_pair_that_differs_in_one_dimension(connector: str, name: str) -> None:
    key = KEYS[connector].of(name)
    old, new = map(built, pair(connector, name))
    if any(cover(one, SPOKEN).profile is None for one in (old, new)):
        # One side has a version that was not read: nothing is known of its key.
        assert not decided(old, new, profiles=SPOKEN).accepted
        return
    decision = decided(old, new, profiles=SPOKEN)
    assert (decision.verdict, decision.exit_code) == _answer(connector, name, key)
    # Whether another name of a place is another place, no key says.
    assert only(decision, name).keys_separate == _said("unknown" if name == "cache.location" and key != "no" else key)


def _said(key: str) -> str:
    return {"separates": "yes", "token-ids": "through token ids", "unknown": "unknown"}.get(key, "no")


def _answer(connector: str, name: str, key: str) -> tuple[str, int]:
    own = KEYS[connector]
    if name == "cache.version" and connector in ("lmcache", "lmcache-mp"):
        return REUSE, 0  # a sourced row covers the step
    if name == "cache.tenancy":
        return CLEAR, 0 if own.in_worker else 20
    if name in own.converted.split():
        return REUSE, 0
    if name == "engine.max_model_len" or (name in ADDRESS and key == "no"):
        return REUSE, 0
    if name in INPUTS and SPOKEN[connector].token_keyed:
        return REUSE, 0
    if name == "adapters":
        if key == "adapter":
            return REUSE, 0
        return NAMESPACE, 30 if key == "no" and "lora" not in own.requests.split() else 10
    if own.in_worker or key == "token-ids":
        return NAMESPACE, 0
    # An address that moved leaves old entries out of reach; nothing says what lies at the target.
    return NAMESPACE, 0 if key == "separates" and name not in ADDRESS else 10


def test_every_shipped_profile_is_in_the_table() -> None:
    assert KEYS.keys() == shipped_profiles().keys() - {"own-store"}


@pytest.mark.parametrize("connector", KEYS)
def test_what_is_not_run_is_read_and_says_where(connector: str) -> None:
    """A release or a commit, a file and its lines; what a service does not show is not run either."""
    if connector == "hosted-api":
        assert connector not in RUN
    else:
        released = re.compile(r"(?:\S+/\S+ [0-9a-f]{7}|\S+ [0-9.]+ wheel), \S+\.(?:py|h|rs):[0-9]+-[0-9]+(?:, .+)?")
        assert released.fullmatch(KEYS[connector].read)
    assert RUN.get(connector, frozenset()) <= set(DIMENSIONS)


@pytest.mark.parametrize("connector", KEYS)
def test_a_profile_says_of_each_dimension_what_its_source_says(connector: str) -> None:
    found = cover(clean(base(connector)), SPOKEN)
    assert found.profile is not None
    cells = {name: found.cell(name) for name in DIMENSIONS}
    said = {name: "adapter" if cell.scope == "adapter" else cell.key for name, cell in cells.items()}
    # What another value of the same deployment switches on is asked for in the pairs.
    switched = {name for name in DIMENSIONS if KEYS[connector].of(name) != said[name]}
    assert switched == {name for name in switched if found.profile.cells[name].while_unset is not None}


@pytest.mark.parametrize("name", OTHER)
def test_every_other_value_is_of_the_dimension_it_is_about(name: str) -> None:
    changed = {**OTHER[name], **OLD_OTHER.get(name, {})}
    assert all(dimension(name).owns(path.replace("/", ".")) for path in changed)
    assert changed


def test_shipped_profiles_name_their_source_and_are_filed_under_their_id() -> None:
    for name, profile in shipped_profiles().items():
        assert profile.id == name
        assert len(profile.source) > 10
        assert profile.checked >= "2026-11-29"


# ---- what requests carry ----

CARRIED = [feature for feature in get_args(Feature) if feature in get_args(Carried)]
ASKED = [(connector, feature) for connector in KEYS for feature in CARRIED]


@pytest.mark.parametrize(("connector", "feature"), ASKED, ids=[f"{c}: {f}" for c, f in ASKED])
def test_what_requests_carry_must_be_in_the_key(connector: str, feature: str) -> None:
    own = KEYS[connector]
    side = {**base(connector), "request_features": [feature]}
    decision = decided(side, side, profiles=SPOKEN)
    held = feature in own.requests.split()
    if feature == "template_kwargs" and feature not in own.asked.split():
        held = True  # they are rendered into the prompt
    if held:
        assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    elif feature in own.asked.split():
        assert decision.exit_code == 11
        assert not decided(side, side, profiles=SPOKEN, accept=frozenset({NAMESPACE})).accepted
    else:
        assert decision.exit_code == 30
        assert "fault-unseparated-requests" in rules(decision)


@pytest.mark.parametrize("connector", KEYS)
@pytest.mark.parametrize("fault", ["weights.mutable", "precision.kv_scales"])
def test_no_key_holds_weights_or_scales_that_change_while_running(connector: str, fault: str) -> None:
    side = {**base(connector), fault: True if fault == "weights.mutable" else "dynamic"}
    decision = decided(side, side, profiles=SPOKEN)
    assert decision.exit_code == (30 if connector != "hosted-api" else 10)


@pytest.mark.parametrize("connector", KEYS)
def test_a_tenant_boundary_holds_where_the_key_holds_what_carries_it(connector: str) -> None:
    own = KEYS[connector]
    tenancy = {"boundary": "tenant", "carried_by": "cache_salt"}
    side = {**base(connector), "request_features": ["cache_salt"], "cache.tenancy": tenancy}
    decision = decided(side, side, profiles=SPOKEN)
    if "cache_salt" in own.requests.split():
        assert decision.exit_code == 0
    else:
        assert decision.exit_code == (11 if "cache_salt" in own.asked.split() else 30)


AT_ONE_PLACE = ["llm-d-fs", "vllm-ascend"]


@pytest.mark.parametrize("connector", AT_ONE_PLACE)
def test_a_salt_and_an_adapter_that_enter_at_one_place_are_not_told_apart(connector: str) -> None:
    """A request with the adapter ``x`` and no salt has the key of one with the salt ``x`` and no adapter."""
    adapters = [{"name": "billing", "digest": digest("9")}]
    for carried in (
        {"request_features": ["lora", "cache_salt"]},
        {"request_features": ["cache_salt"], "adapters": adapters},
    ):
        side = {**base(connector), **carried}
        decision = decided(side, side)
        assert decision.exit_code == 11
        assert any("enters the key where" in finding.change.detail for finding in decision.findings)
    for alone in ("lora", "cache_salt"):
        side = {**base(connector), "request_features": [alone]}
        assert decided(side, side).exit_code == 0


LORA: dict[str, Any] = {"request_features": ["lora"], "adapters": [{"name": "billing", "digest": digest("9")}]}
SALT: dict[str, Any] = {"request_features": ["cache_salt"]}


@pytest.mark.parametrize("connector", [*AT_ONE_PLACE, "flexkv"])
@pytest.mark.parametrize(
    ("old", "new"),
    [(LORA, SALT), (SALT, LORA), ({**LORA, "request_features": []}, SALT), (SALT, {"adapters": LORA["adapters"]})],
)
def test_what_enters_at_one_place_is_not_told_apart_across_a_rollout(
    connector: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """An entry of the adapter ``x`` is found by a request with the salt ``x``."""
    own = base(connector)
    decision = decided({**own, **old}, {**own, **new})
    assert (decision.verdict, decision.accepted) == (NAMESPACE, False)
    assert any(finding.open and finding.baseline == 0 for finding in decision.findings)


def test_replicas_that_divide_attention_are_told_apart_by_no_key_of_sglang() -> None:
    own = {**base("sglang-hicache-mooncake"), "parallelism.tensor": 8}
    sizes = [{"parallelism.data": 2}, {"parallelism.data": 4}]
    sharded = [{**own, "engine.args/enable-dp-attention": True, **size} for size in sizes]
    assert decided(*sharded).exit_code == 10
    assert only(decided(*sharded), "parallelism.data").keys_separate == "no"
    assert decided(*({**own, **size} for size in sizes)).exit_code == 0
    assert decided(*({**size} for size in sizes)).exit_code == 0
    unknown = [{**sharded[0], "parallelism.data": FORGET}, sharded[1]]
    assert decided(*unknown).exit_code == 11
    assert decided(*({**own, **size, "engine.args": FORGET} for size in sizes)).exit_code != 0


MODELS = {
    "weights.checkpoint.digest": digest("9"),
    "weights.checkpoint.kv_digest": digest("9"),
    "weights.checkpoint.kv_rule": "1/llama",
}


def two_models(connector: str, name: dict[str, Any]) -> Decision:
    """Serve two models in front of one store, as two pools."""
    pools = [{"name": "one", "set": {}}, {"name": "two", "set": {**MODELS, **name}}]
    side = {**base(connector), "roles": pools, "provenance.roles": "computed"}
    return decided(side, side, profiles=SPOKEN)


@pytest.mark.parametrize("connector", KEYS)
def test_two_models_whose_names_meet_in_one_store(connector: str) -> None:
    own = KEYS[connector]
    expected = 0 if own.in_worker else 30
    assert two_models(connector, {}).exit_code == expected
    if own.collides:
        assert two_models(connector, own.collides).exit_code == expected
    if own.apart is not None:
        decision = two_models(connector, own.apart)
        assert "fault-roles-share-keys" not in rules(decision)
        assert decision.exit_code == 0


# ---- where the same difference is told from another ----


def test_a_served_name_takes_the_place_of_the_models_name() -> None:
    served = {**base("sglang-hicache-file"), "model.served_name": "support"}
    other = {**served, "model.id": "/models/other"}
    assert decided(served, other).verdict == REUSE
    assert decided(served, {**other, **MODELS}).exit_code == 10
    assert decided(served, {**other, **MODELS, "model.served_name": "support-2"}).boundaries[0].boundary.separators == (
        "model.served_name",
    )
    unknown = {**served, "model.served_name": FORGET}
    assert decided(unknown, {**unknown, **MODELS, "model.id": "/models/other"}).boundaries[0].boundary.separators == ()


SGLANG_SIZES = [
    ({"parallelism.tensor": 8}, True),
    # Attention is data parallel, for all that is known: both sizes may be one and the same in the key.
    ({"parallelism.tensor": 8, "parallelism.data": 4}, False),
    ({"parallelism.tensor": 8, "engine.args/attn-dp-size": 4}, False),
    ({"parallelism.tensor": 8, "engine.args/attn-dp-size": 1}, True),
    ({"parallelism.tensor": 8, "engine.args/enable-dp-attention": True}, False),
    ({"parallelism.tensor": 8, "engine.args": FORGET}, False),
    ({"parallelism.tensor": 8, "parallelism.data": FORGET}, False),
    ({"parallelism.tensor": 8, "parallelism.prefill_context": 2}, False),
    ({"parallelism.tensor": 8, "model.config/kv_lora_rank": 512}, False),
    ({"parallelism.tensor": 8, "model.config/model_type": "another"}, False),
    ({"parallelism.tensor": 8, "model.config": FORGET}, False),
]


@pytest.mark.parametrize(("changes", "apart"), SGLANG_SIZES)
def test_the_tensor_size_of_attention(changes: dict[str, Any], apart: bool) -> None:
    mla = {path: value for path, value in changes.items() if path.startswith("model.config")}
    decision = decided({**base("sglang-hicache-nixl"), **mla}, {**base("sglang-hicache-nixl"), **changes})
    assert ("parallelism.tensor" in decision.boundaries[0].boundary.separators) is apart


RUNNER = "engine.args/VLLM_USE_V2_MODEL_RUNNER"
OFFLOAD_SIZES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({RUNNER: "1"}, True),
    ({"engine.version": "0.32.0"}, True),
    ({RUNNER: "0", "parallelism.decode_context": 2}, True),
    # One name for all layouts, or for all that is known.
    ({RUNNER: "0"}, False),
    ({RUNNER: "yes"}, False),
    ({"engine.version": "0.31.0"}, False),
    ({"engine.args": FORGET}, False),
    ({"engine.args/enable-dbo": True}, False),
    ({"engine.args/distributed-executor-backend": "external_launcher"}, False),
    ({"engine.args/kv-transfer-config": {"kv_connector_extra_config": {"canonical_layout": True}}}, False),
    ({"engine.args/kv-transfer-config": "a file"}, False),
    ({"engine.speculative": {"method": "ngram"}}, False),
    ({"engine.speculative": FORGET}, False),
    ({"model.config/kv_lora_rank": 512}, False),
    ({"model.config": FORGET}, False),
    ({RUNNER: "0", "model.config/sliding_window": 4096}, False),
    ({RUNNER: "0", "parallelism.prefill_context": FORGET}, False),
]


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "vllm-offload-object"])
@pytest.mark.parametrize(("around", "apart"), OFFLOAD_SIZES)
def test_sizes_in_the_names_of_offloaded_blocks(around: dict[str, Any], apart: bool, connector: str) -> None:
    for name in ("parallelism.tensor", "parallelism.pipeline"):
        own = {**base(connector), **around}
        decision = decided(own, {**own, name: 8})
        assert (name in decision.boundaries[0].boundary.separators) is apart
        assert apart or not decision.accepted


def test_heads_that_ranks_copy_are_filed_under_one_range() -> None:
    """Eight KV heads: from eight ranks on every rank has one."""
    own = base("aibrix")
    for sizes, exit_code in (((2, 4), 0), ((4, 8), 0), ((8, 16), 10)):
        old, new = ({**own, "parallelism.tensor": size} for size in sizes)
        assert decided(old, new).exit_code == exit_code
    unknown = {**own, "model.config": FORGET}
    assert decided(unknown, {**unknown, "parallelism.tensor": 4}).boundaries[0].boundary.separators == ()


def test_pipeline_sizes_above_one_share_keys_in_sglangs_mooncake_store() -> None:
    own = base("sglang-hicache-mooncake")
    for sizes, exit_code in (((1, 2), 0), ((2, 4), 10)):
        old, new = ({**own, "parallelism.pipeline": size} for size in sizes)
        assert decided(old, new).exit_code == exit_code


def test_a_namespace_replaces_what_umbp_makes_of_the_deployment() -> None:
    own = base("vllm-umbp")
    fp8 = {"precision.kv_cache": "fp8_e4m3"}
    assert decided(own, {**own, **fp8}).exit_code == 0
    named = {**own, "cache.namespace": "prod-a"}
    assert decided(named, {**named, **fp8}).exit_code == 10
    forgotten = {**own, "cache.namespace": FORGET}
    assert decided(forgotten, {**forgotten, **fp8}).boundaries[0].boundary.separators == ()


def test_drafts_are_told_apart_by_their_model_alone() -> None:
    own = base("vllm-umbp")
    three, four = (
        {"engine.speculative": {"method": "eagle", "model": "a", "num_speculative_tokens": n}} for n in (3, 4)
    )
    assert decided({**own, **three}, {**own, **four}).exit_code == 10


def test_a_format_that_may_be_filed_under_another_name() -> None:
    ds, e4m3, e5m2 = ({"precision.kv_cache": name} for name in ("fp8_ds_mla", "fp8", "fp8_e5m2"))
    for connector in ("vllm-offload-fs", "vllm-offload-object"):
        own = base(connector)
        assert decided({**own, **ds}, {**own, **e4m3}).exit_code == 10
        assert decided({**own, **ds}, {**own, **e5m2}).exit_code == 0


def test_the_engines_hash_algorithm_is_not_lmcaches() -> None:
    own = base("lmcache")
    decision = decided(own, {**own, "engine.prefix_hash.algorithm": "xxhash"})
    assert decision.verdict == REUSE
    assert decided(own, {**own, **MODELS, "engine.prefix_hash.algorithm": "xxhash"}).exit_code == 10
    assert decided(own, {**own, **MODELS, "engine.prefix_hash.seed": "1"}).boundaries[0].boundary.separators == (
        "engine.prefix_hash",
    )


# ---- entries that end with the worker ----


def test_what_lives_in_the_worker_is_gone_with_it() -> None:
    own = base("vllm-apc")
    decision = decided(own, {**own, **MODELS})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)
    assert decided([], own).exit_code == 0
    # From a store that stays, the new deployment reads nothing; to one that stays, it does.
    assert decided({}, {**own, **MODELS}).exit_code == 0
    assert decided(own, MODELS).exit_code == 10


TENANT = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}


def test_a_boundary_that_widens_needs_no_deletion_where_entries_end_with_the_worker() -> None:
    own = base("vllm-apc")
    decision = decided({**own, **TENANT}, own)
    assert (decision.verdict, decision.exit_code) == (CLEAR, 0)
    (found,) = (one for one in decision.findings if one.obligations == ("delete",))
    assert "end with" in found.met["delete"]
    assert action_for(decision).kind == "none"
    # In a store that stays they do not end, and a worker that stays answers for its own defect.
    stays = base("vllm-offload-fs")
    assert decided({**stays, **TENANT}, stays).exit_code == 20
    leaked = about("tenant-canary", "refuted", own, own)
    assert decided(own, own, evidence=[leaked]).exit_code == 20


def test_an_adapter_that_is_replaced_in_a_running_worker_is_cleared() -> None:
    def side(letter: str) -> dict[str, Any]:
        adapters = [{"name": "billing", "digest": digest(letter)}]
        return {**base("vllm-apc"), "request_features": ["lora", "lora_hot_load"], "adapters": adapters}

    assert (decided(side("9"), side("8")).verdict, decided(side("9"), side("8")).exit_code) == (CLEAR, 20)


# ---- versions ----


@pytest.mark.parametrize("connector", ["trtllm", "dynamo-kvbm"])
def test_a_profile_that_was_read_at_no_release_speaks_for_none(connector: str) -> None:
    side = base(connector)
    found = cover(clean(side))
    assert found.profile is None
    assert "no one release" in found.why
    assert not decided(side, {**side, **MODELS}, accept=frozenset({NAMESPACE})).accepted
    assert decided(side, {**side, "request_features": ["lora"]}).exit_code != 0


@pytest.mark.parametrize(
    ("connector", "version", "speaks"),
    [
        ("flexkv", "34ab141", True),
        ("flexkv", "34ab141" + "0" * 33, True),
        ("flexkv", "34ab14", False),
        ("flexkv", "34ab142", False),
        ("flexkv", "1.2.1", False),
        ("aibrix", "0.8.0", True),
        ("aibrix", "e3e10f9aa", True),
        ("aibrix", "0.8.1", False),
        ("aibrix", "e3e10f9-dirty", False),
    ],
)
def test_commits_that_were_read(connector: str, version: str, speaks: bool) -> None:
    assert (cover(clean({**base(connector), "cache.version": version})).profile is not None) is speaks


@pytest.mark.parametrize("connector", ["sglang-hicache-file", "vllm-mooncake"])
def test_a_name_is_the_same_where_only_one_sides_version_was_read(connector: str) -> None:
    """What it becomes in the key is known of one side only, so the two forms do not compare; the values do."""
    own = base(connector)
    unread = {**own, "engine.version": "0.5.22"}
    assert "model.id" not in [finding.change.dimension for finding in decided(unread, own).findings]
    for other in ("acme-support-8b", "support-8b"):
        decision = decided({**unread, "model.id": other}, own)
        assert only(decision, "model.id").rule == "model-name-moved"


@pytest.mark.parametrize(("feature", "scope"), [("cache_salt", "tenant"), ("lora", "all")])
@pytest.mark.parametrize("connector", [name for name in KEYS if name.startswith("sglang-")])
def test_pages_that_sglang_named_without_salt_or_adapter_are_cleared(connector: str, feature: str, scope: str) -> None:
    carried = {**base(connector), "request_features": [feature]}
    decision = decided({**carried, "engine.version": "0.5.19"}, carried)
    (found,) = (finding for finding in decision.findings if finding.rule == "producer-advisory")
    assert (decision.verdict, decision.exit_code, found.change.scope) == (CLEAR, 20, scope)
    since = decided({**carried, "engine.version": "0.5.20"}, carried)
    assert "producer-advisory" not in rules(since)


# ---- public incidents, in front of the connector that the report names and of another ----

OLDER_RUNNER = {"engine.args/VLLM_USE_V2_MODEL_RUNNER": "0"}
IN_FRONT = [
    # sgl-project/sglang#24758 (I33): one served name, other weights; the other connector's key holds the path.
    (
        {"model.id": "/models/a", "model.served_name": "support"},
        {"model.id": "/models/b", "model.served_name": "support", **MODELS},
        "weights",
        {"sglang-hicache-file": "no", "sglang-hicache-mooncake": "no", "lmcache-mp": "yes"},
    ),
    # vllm-project/vllm#45767 (I27): bfloat16 to fp8 behind one master.
    (
        {},
        OTHER["precision.kv_cache"],
        "precision.kv_cache",
        {"vllm-mooncake": "no", "vllm-umbp": "yes", "lmcache": "yes"},
    ),
    # vllm-project/vllm#55191 (I29): other heads' values of equal size, with the older model runner.
    (
        OLDER_RUNNER,
        {**OLDER_RUNNER, **OTHER["parallelism.tensor"]},
        "parallelism.tensor",
        {"vllm-offload-object": "no", "lmcache": "yes", "aibrix": "yes"},
    ),
    # vllm-project/vllm#55904 (I30): another layout of equal size.
    ({}, OTHER["engine.kv_layout"], "engine.kv_layout", {"vllm-offload-fs": "no", "vllm-umbp": "yes"}),
    # vllm-project/vllm#49261 (I19) and vllm-project/vllm#56311 (I23): no key tells revision or RoPE apart.
    ({}, MODELS, "weights", dict.fromkeys(set(KEYS) - {"hosted-api"}, "no")),
    (
        {},
        {"model.config/rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        "model.config",
        dict.fromkeys(set(KEYS) - {"hosted-api"}, "no"),
    ),
]
INCIDENTS = [(*case[:3], connector, said) for case in IN_FRONT for connector, said in sorted(case[3].items())]


@pytest.mark.parametrize(("old", "new", "name", "connector", "said"), INCIDENTS)
def test_an_incident(old: dict[str, Any], new: dict[str, Any], name: str, connector: str, said: str) -> None:
    own = base(connector)
    decision = decided({**own, **old}, {**own, **new}, profiles=SPOKEN)
    found = only(decision, name)
    assert (decision.verdict, found.kv_valid, found.keys_separate) == (NAMESPACE, "no", said)
    assert bool(found.open) is (said == "no" and not KEYS[connector].in_worker)


# ---- how entries are cleared ----

PAGE = "ab" * 32
CLEARED = {
    "sglang-hicache-file": (
        "Qwen-Qwen3-8B",
        [f"{PAGE}_Qwen-Qwen3-8B_0_4.bin", f"{PAGE}_Qwen-Qwen3-8B_3_4_2_1_cp0_2.bin", f"{PAGE}_Qwen-Qwen3-8B.bin"],
        [f"{PAGE}_Qwen-Qwen3-8B-AWQ_0_4.bin", f"{PAGE}_Qwen-Qwen3_0_4.bin", "notes.txt", ".a.tmp"],
    ),
    "sglang-hicache-nixl": (
        "Qwen-Qwen3-8B",
        [f"ab/{PAGE}_Qwen-Qwen3-8B_0_4_k", f"cd/{PAGE}_Qwen-Qwen3-8B_0_4_v", f"ab/{PAGE}_Qwen-Qwen3-8B"],
        [f"ab/{PAGE}_Qwen-Qwen3-8B-AWQ_0_4_k", "notes.txt"],
    ),
}


@pytest.mark.parametrize("connector", CLEARED)
def test_the_command_that_clears_deletes_this_models_files_alone(connector: str, tmp_path: Path) -> None:
    name, gone, left = CLEARED[connector]
    for file in (*gone, *left):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    old = {**base(connector), "cache.location": str(tmp_path), "weights.mutable": True}
    old["request_features"] = ["lora", "lora_hot_load"]
    adapters = [[{"name": "billing", "digest": digest(letter)}] for letter in "89"]
    decision = decided({**old, "adapters": adapters[0]}, {**old, "weights.mutable": False, "adapters": adapters[1]})
    (clear,) = action_for(decision).clears
    path = {"PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", clear.command], env={**path, "NAME": name}, check=True, timeout=60)
    kept = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert kept == set(left)
    # Without the name it does nothing.
    unset = subprocess.run(["bash", "-c", clear.command], env=path, check=False, timeout=60)
    assert unset.returncode != 0


def test_the_side_that_is_silent_is_the_one_without_a_profile() -> None:
    """Also where the profile of the other side knows of no setting that isolates."""
    own, unread = base("flexkv"), {"cache.version": "1.0"}
    for old, new, silent in ((unread, {}, "old"), ({}, unread, "new"), ({}, {}, None)):
        made = record_of(decided({**own, **MODELS, **old}, {**own, **new}), "0")
        assert [one["profileSilentOn"] for one in made["predicate"]["boundary"]] == [silent]


@pytest.mark.parametrize("connector", KEYS)
def test_what_keeps_entries_apart_is_said_where_no_setting_does(connector: str) -> None:
    profile = SPOKEN[connector]
    action = action_for(decided(base(connector), {**base(connector), **MODELS}, profiles=SPOKEN))
    if KEYS[connector].in_worker:
        assert (action.kind, action.isolation) == ("none", None)
    elif profile.knobs is None:
        assert (action.kind, action.isolation) == ("none", profile.isolation)
        assert action.as_data().get("isolation") == profile.isolation
    else:
        assert (action.kind, action.isolation) == ("set", None)
        for setting in action.settings:
            assert "kvg1-" in setting.value
            assert any("kvg1-" in line for line in setting.how)
