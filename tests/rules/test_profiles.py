"""What each shipped connector profile makes of each dimension, and the issue's acceptance lines about connectors."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.action import action_for
from kvgate.rules.attention import uses_mla
from kvgate.rules.decide import Decision
from kvgate.rules.finding import Finding
from kvgate.rules.namespace import derive
from kvgate.rules.profile import cover, version_in
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import KEYS, OTHER, spoken
from tests.rules.connectors import base as using
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, decided, rules

OFFLOAD: dict[str, Any] = {"cache.connector": "vllm-offload-fs", "cache.version": None}
MP: dict[str, Any] = {"cache.connector": "lmcache-mp"}
LMCACHE: dict[str, Any] = {"cache.connector": "lmcache"}
OWN: dict[str, Any] = {"cache.connector": "own-store", "cache.version": None}
BASES = {"vllm-offload-fs": OFFLOAD, "lmcache-mp": MP, "lmcache": LMCACHE}


def only(decision: Decision, name: str) -> Finding:
    (found,) = (finding for finding in decision.findings if finding.change.dimension == name)
    return found


# ---- values that share a key although they differ ----


@pytest.mark.parametrize("base", [MP, LMCACHE], ids=["lmcache-mp", "lmcache"])
def test_tensor_and_pipeline_size_enter_as_their_product(base: dict[str, Any]) -> None:
    four = {**base, "parallelism.tensor": 4, "parallelism.pipeline": 1}
    two = {**base, "parallelism.tensor": 2, "parallelism.pipeline": 2}
    decision = decided(four, two)
    assert decision.boundaries[0].boundary.separators == ()
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert decided(four, {**two, "parallelism.tensor": 4}).exit_code == 0


def test_fp8_formats_share_a_storage_type_in_lmcache_and_not_in_vllm() -> None:
    e4m3, e5m2 = {"precision.kv_cache": "fp8_e4m3"}, {"precision.kv_cache": "fp8_e5m2"}
    assert decided({**LMCACHE, **e4m3}, {**LMCACHE, **e5m2}).exit_code == 10
    assert decided({**LMCACHE, "precision.kv_cache": "nvfp4"}, {**LMCACHE, **e5m2}).exit_code == 10
    assert decided({**OFFLOAD, **e4m3}, {**OFFLOAD, **e5m2}).exit_code == 0
    assert decided(LMCACHE, {**LMCACHE, **e5m2}).exit_code == 0
    # int8 is a storage type of its own.
    assert decided({**LMCACHE, "precision.kv_cache": "int8"}, {**LMCACHE, **e5m2}).exit_code == 0


MLA: dict[str, Any] = {
    "model.config/model_type": "deepseek_v3",
    "model.config/architectures": ["DeepseekV3ForCausalLM"],
    "model.config/kv_lora_rank": 512,
}


def test_mla_shares_across_tensor_ranks_by_design() -> None:
    decision = decided({**MP, **MLA}, {**MP, **MLA, "parallelism.tensor": 4})
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert only(decision, "parallelism.tensor").discharged == "the format makes it harmless for this model"


def test_mla_keeps_pipeline_ranks_together_and_not_apart() -> None:
    """The key drops the size for MLA, so it separates nothing; a stage still holds other layers."""
    decision = decided({**MP, **MLA}, {**MP, **MLA, "parallelism.pipeline": 2})
    assert decision.boundaries[0].boundary.separators == ()
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)


def test_mla_on_one_side_only_discharges_nothing() -> None:
    decision = decided(MP, {**MP, **MLA, "parallelism.tensor": 4})
    assert only(decision, "parallelism.tensor").discharged is None
    assert decision.verdict == NAMESPACE


MLA_CONFIGS: list[tuple[dict[str, Any], bool | None]] = [
    (MLA, True),
    ({}, False),
    ({"model.config": FORGET}, None),
    # A part of the config may be any model's.
    ({"model.config/text_config": {"model_type": "deepseek_v3", "kv_lora_rank": 512}}, None),
    ({"model.config/language_config": {"kv_lora_rank": 512}}, None),
    ({"model.config/model_type": "deepseek_v4", "model.config/compress_ratios": [4, 128]}, None),
    ({"model.config/compress_ratios": [4, 128]}, None),
    ({"model.config/model_type": "another"}, None),
    ({"model.config/model_type": "minicpm3", "model.config/kv_lora_rank": 256}, None),
    ({"model.config/model_type": "kimi_linear", "model.config/kv_lora_rank": 512}, None),
    ({**MLA, "model.config/architectures": ["AnotherForCausalLM"]}, None),
    ({**MLA, "model.config/linear_attn_config": {"kda_layers": [1]}}, None),
    ({**MLA, "engine.args/VLLM_MLA_DISABLE": "1"}, None),
    ({**MLA, "engine.args/VLLM_MLA_DISABLE": "0"}, True),
    ({**MLA, "engine.args": FORGET}, None),
    ({**MLA, "engine.speculative": {"method": "eagle", "model": "a"}}, None),
]


@pytest.mark.parametrize(("changes", "mla"), MLA_CONFIGS)
def test_mla_is_known_of_models_that_are_recognised(changes: dict[str, Any], mla: bool | None) -> None:
    assert uses_mla(clean(changes)) is mla


@pytest.mark.parametrize("base", [MP, LMCACHE], ids=["lmcache-mp", "lmcache"])
@pytest.mark.parametrize("changes", [changes for changes, mla in MLA_CONFIGS if mla is None])
def test_a_size_separates_nothing_where_it_may_be_mla(base: dict[str, Any], changes: dict[str, Any]) -> None:
    old = {**base, **changes}
    decision = decided(old, {**old, **OTHER["weights"], "parallelism.tensor": 4})
    assert decision.boundaries[0].boundary.separators == ()
    assert decision.exit_code != 0


WORLDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"parallelism.tensor": 4}, {"parallelism.prefill_context": 2}),
    ({"parallelism.tensor": 4}, {"parallelism.prefill_context": FORGET}),
    (
        {"parallelism.tensor": 4, "engine.args/distributed-executor-backend": "external_launcher"},
        {"parallelism.data": 2, "engine.args/distributed-executor-backend": "external_launcher"},
    ),
]


@pytest.mark.parametrize("base", [MP, LMCACHE], ids=["lmcache-mp", "lmcache"])
@pytest.mark.parametrize(("old", "new"), WORLDS)
def test_every_factor_of_the_world_size_counts(base: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    decision = decided({**base, **old}, {**base, **new, **OTHER["weights"]})
    assert decision.boundaries[0].boundary.separators == ()
    assert decision.exit_code != 0


def test_two_servers_share_the_ranks_between_them() -> None:
    def to(*urls: str) -> dict[str, Any]:
        extra = {"kv_connector_extra_config": {"lmcache.mp.server_urls": ",".join(urls)}}
        return {**MP, "engine.args/kv-transfer-config": extra}

    def separators(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
        return decided(old, {**new, "parallelism.tensor": 4}).boundaries[0].boundary.separators

    assert separators(to("tcp://a"), to("tcp://a", "tcp://b")) == ()
    assert separators(to("tcp://a"), to("tcp://a")) == ("parallelism.tensor",)
    for unsaid in (FORGET, None):
        assert separators({**MP, "engine.args": unsaid}, {**MP, "engine.args": unsaid}) == ()


@pytest.mark.parametrize("connector", KEYS)
def test_a_profile_speaks_for_the_engine_it_was_read_with(connector: str) -> None:
    read = spoken()[connector].engine
    for engine in {"vllm", "sglang", "tensorrt-llm"} - {read}:
        found = cover(clean({**using(connector), "engine.name": engine}), spoken())
        assert (found.profile is None) is (read is not None)
    assert (cover(clean({**using(connector), "engine.name": FORGET}), spoken()).profile is None) is (read is not None)


def test_a_salt_in_front_of_an_engine_that_was_not_read_is_not_held() -> None:
    tenancy = {"boundary": "tenant", "carried_by": "cache_salt"}
    side = {**MP, "engine.name": "tensorrt-llm", "request_features": ["cache_salt"], "cache.tenancy": tenancy}
    assert decided(side, side).exit_code != 0


# ---- an application's own store ----


def own(*fields: str) -> dict[str, Any]:
    return {**OWN, "cache.key_fields": list(fields)}


TEMPLATE = OTHER["chat_template"]


@pytest.mark.parametrize(
    ("fields", "change", "exit_code"),
    [
        (["template_version"], TEMPLATE, 10),
        (["chat_template.digest"], TEMPLATE, 0),
        (["chat_template"], TEMPLATE, 0),
        (["token_ids"], TEMPLATE, 0),
        (["token_ids"], OTHER["precision.kv_cache"], 10),
        (["precision.kv_cache"], OTHER["precision.kv_cache"], 0),
        (["precision"], OTHER["precision.kv_cache"], 10),
        (["weights"], OTHER["weights"], 0),
        (["tokenizer"], OTHER["tokenizer"], 0),
        (["token_ids", "parallelism.context"], OTHER["parallelism.context"], 0),
        (["model.config.rms_norm_eps"], OTHER["model.config"], 0),
        (["model.config.hidden_size"], OTHER["model.config"], 10),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, (list, dict)) else None,
)
def test_an_own_store_separates_by_what_its_key_is_made_of(
    fields: list[str], change: dict[str, Any], exit_code: int
) -> None:
    decision = decided(own(*fields), {**own(*fields), **change})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, exit_code)


def test_a_label_of_a_section_does_not_separate_in_an_own_store() -> None:
    """Where the key holds the template, its file name is not what it holds."""
    decision = decided(own("chat_template"), {**own("chat_template"), "chat_template.source": "b.jinja",
                                              "precision.kv_cache": "fp8_e4m3"})  # fmt: skip
    assert decision.exit_code == 10


VERSIONED = {**own("token_ids", "release.version"), "release.version": "8"}


@pytest.mark.parametrize(
    ("old", "exit_code"),
    [
        ({"release.version": "7"}, 0),
        ({"release.version": "8"}, 10),
        ({"release.version": FORGET}, 10),
        ({"release.version": "7", "cache.key_fields": ["token_ids"]}, 10),
        ({"release.version": "8", "release.name": "other", "cache.cleanup_owner": "other"}, 10),
    ],
)
def test_a_release_label_separates_only_where_the_store_s_key_holds_it_and_both_are_known(
    old: dict[str, Any], exit_code: int
) -> None:
    decision = decided({**VERSIONED, **OTHER["weights"], **old}, VERSIONED)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, exit_code)
    assert ("release.version" in decision.boundaries[0].boundary.separators) is (exit_code == 0)


@pytest.mark.parametrize("field", ["labels", "release", "provenance", "schema"])
def test_labels_as_a_whole_are_no_field_of_a_key(field: str) -> None:
    old = {"release.version": "7", "cache.ttl": "7d", "provenance.weights": "observed", **OTHER["weights"]}
    assert decided({**own("token_ids", field), **old}, own("token_ids", field)).exit_code == 10


def test_an_own_store_has_the_namespace_knob_only_where_its_key_holds_it() -> None:
    def paths(*fields: str) -> list[str]:
        return [knob.path for knob in cover(clean(own(*fields))).knobs or []]

    assert paths("token_ids") == ["cache.location"]
    assert paths("token_ids", "namespace") == ["cache.namespace", "cache.location"]
    assert paths("token_ids", "cache.namespace") == ["cache.namespace", "cache.location"]


def test_an_own_store_says_nothing_before_its_key_is_declared() -> None:
    found = cover(clean({**OWN, "cache.key_fields": None}))
    assert (found.profile, found.knobs, found.why) == (None, None, "cache.key_fields is not known, or empty")


def test_requests_in_an_own_store() -> None:
    assert decided([], {**own("token_ids", "lora"), "request_features": ["lora"]}).exit_code == 11
    assert decided([], {**own("token_ids"), "request_features": ["lora"]}).exit_code == 30
    assert decided([], {**own("token_ids"), "request_features": ["template_kwargs"]}).exit_code == 11
    assert decided([], {**own("document"), "request_features": ["template_kwargs"]}).exit_code == 30


@pytest.mark.parametrize("carrier", ["multimodal", "template_kwargs", "lora", "prompt_embeds"])
def test_what_only_some_requests_carry_is_no_boundary_in_an_own_store(carrier: str) -> None:
    tenancy = {"boundary": "tenant", "carried_by": carrier}
    side = {**own("token_ids", carrier), "request_features": [carrier], "cache.tenancy": tenancy}
    decision = decided(side, side)
    assert "fault-tenant-boundary" in rules(decision)
    assert decision.exit_code == 30
    salted = {**own("token_ids", "cache_salt"), "request_features": ["cache_salt"]}
    salted["cache.tenancy"] = {**tenancy, "carried_by": "cache_salt"}
    assert decided(salted, salted).exit_code == 0


def test_a_template_that_reads_the_clock_needs_keys_of_token_ids() -> None:
    clock = {"chat_template.reads_clock": True, "chat_template.clock": "day"}
    side = {**own("chat_template", "inputs.system_prompts", "tokenizer", "model.id"), **clock}
    decision = decided(side, side)
    assert decision.exit_code == 30
    assert any("reads the clock" in finding.change.detail for finding in decision.findings if finding.self_fault)
    asked = {**side, "chat_template.reads_clock": FORGET}
    assert decided(asked, asked).exit_code == 11
    for settled in ({**own("token_ids"), **clock}, {**own("document"), "chat_template": None}, own("document")):
        assert decided(settled, settled).exit_code == 0


def test_the_adapters_of_an_own_key_are_in_no_entry_of_the_base_model() -> None:
    keyed = {**own("token_ids", "adapters", "lora"), "request_features": ["lora"]}
    first, second = ({"adapters": [{"name": "a", "digest": digest(letter)}]} for letter in "89")
    ranked = {"adapters": [{"name": "a", "digest": digest("8"), "rank": 8}]}
    for other in (second, ranked):
        decision = decided({**keyed, **first}, {**keyed, **other, **OTHER["weights"]})
        assert decision.boundaries[0].boundary.separators == ()
        assert decision.exit_code == 10


def test_a_refutation_in_front_of_an_own_store_is_decided() -> None:
    for kind in ("kv-equivalence", "isolation", "inventory", "token-identity"):
        evidence = [about(kind, "refuted", own("token_ids"), own("token_ids"))]
        assert decided(own("token_ids"), own("token_ids"), evidence=evidence).verdict != REUSE


# ---- where no profile speaks ----


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cache.connector": "nobody-knows"}, "there is no profile for the connector 'nobody-knows'"),
        ({"cache.version": "0.4.6"}, "the profile lmcache-mp speaks for cache.version >=0.4.7,<=0.5.6, not for 0.4.6"),
        ({"cache.version": "0.6"}, "the profile lmcache-mp speaks for cache.version >=0.4.7,<=0.5.6, not for 0.6"),
        (
            {"cache.version": "nightly"},
            "the profile lmcache-mp speaks for cache.version >=0.4.7,<=0.5.6, not for nightly",
        ),
        ({"cache.version": None}, "cache.version is not known; the profile covers >=0.4.7,<=0.5.6"),
        (
            {**OFFLOAD, "engine.version": "0.30.2"},
            "the profile vllm-offload-fs speaks for engine.version >=0.31,<=0.33.0, not for 0.30.2",
        ),
    ],
)
def test_outside_a_profile_nothing_separates_and_no_knob_counts(changes: dict[str, Any], why: str) -> None:
    new = {**changes, "precision.kv_cache": "fp8_e4m3"}
    new["cache.namespace"] = derive(clean(new)).id
    assert cover(clean(new)).why == why
    decision = decided(changes, new)
    assert decision.verdict == NAMESPACE
    assert not decision.accepted
    finding = only(decision, "precision.kv_cache")
    assert (finding.keys_separate, finding.may_be, finding.open) == ("unknown", "clear", ("separate",))
    assert action_for(decision).settings == ()
    assert not decided(changes, new, accept=frozenset({"new-namespace"})).accepted


@pytest.mark.parametrize("version", ["0.4.7", "0.5.6", "0.5", "0.5.1.post1"])
def test_versions_inside_the_range(version: str) -> None:
    assert cover(clean({"cache.version": version})).profile is not None


@pytest.mark.parametrize("version", ["0.5.6rc1", "0.5.6.dev3", "0.5.6+fork", "0.5.7", "0.4.6", "nightly"])
def test_what_was_not_read_is_not_covered(version: str) -> None:
    assert cover(clean({"cache.version": version})).profile is None


def test_what_is_no_version_lies_in_no_range() -> None:
    assert not version_in(None, ">=0")
    assert not version_in("0.5.6", "from 0.4 on")
    assert not version_in("", ">=0")


def test_without_a_store_nothing_outlives_the_workers() -> None:
    none = {"cache.connector": None}
    assert decided(none, {**none, **OTHER["weights"], "request_features": ["lora"]}).exit_code == 0
    assert decided([], {**none, "request_features": ["lora"], "weights.mutable": True}).verdict == REUSE
    left = decided({}, {**none, **OTHER["weights"]})
    assert (left.verdict, left.exit_code, left.boundaries[0].boundary.detached) == (NAMESPACE, 0, True)


# ---- version steps ----


def test_a_version_step_is_covered_for_text_only_where_the_row_says_so() -> None:
    media = {"request_features": ["multimodal"]}
    assert decided({"cache.version": "0.4.7"}, {}).verdict == REUSE
    before = decided({**media, "cache.version": "0.5.5"}, media)
    assert before.verdict == REUSE
    across = decided({**media, "cache.version": "0.5.4"}, media)
    assert "connector-version-changed" in [f.rule for f in across.findings if f.obligations]


def test_a_step_is_covered_only_where_rows_say_so_both_ways() -> None:
    assert decided({}, {"cache.version": "0.4.7"}).verdict == REUSE
    media = {"request_features": ["multimodal"], "model.processor": digest("9")}
    assert decided(media, {**media, "cache.version": "0.5.5"}).verdict == REUSE
    assert decided({**media, "cache.version": "0.5.4"}, media).exit_code == 20


def test_a_version_step_needs_equal_tokens() -> None:
    decision = decided({"cache.version": "0.5.5"}, OTHER["tokenizer"])
    assert only(decision, "cache.version").open == ("separate",)
    proof = about("token-identity", "proved", {"cache.version": "0.5.5"}, OTHER["tokenizer"])
    assert decided({"cache.version": "0.5.5"}, OTHER["tokenizer"], evidence=[proof]).verdict == REUSE


def test_a_version_step_is_no_step_between_connectors() -> None:
    decision = decided({**LMCACHE, "cache.version": "0.5.5"}, MP)
    assert only(decision, "cache.version").discharged is None


# ---- the acceptance lines of the issue ----


def test_the_kv_dtype_in_front_of_two_connectors() -> None:
    assert decided(OFFLOAD, {**OFFLOAD, **OTHER["precision.kv_cache"]}).exit_code == 0
    assert decided(MP, {**MP, **OTHER["precision.kv_cache"]}).exit_code == 10


def test_a_template_in_front_of_three_connectors() -> None:
    """Also where the conversations were found to diverge, as they will be."""
    for base, exit_code in ((OFFLOAD, 0), (MP, 0), (own("template_version"), 10)):
        new = {**base, **TEMPLATE}
        assert decided(base, new).exit_code == exit_code
        decision = decided(base, new, evidence=[about("token-identity", "refuted", base, new, reason="3 diverge")])
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, exit_code)
        assert rules(decision) == ["template-changed"]
        assert decision.findings[0].tokens_equal == "no"
        assert decision.findings[0].adverse


def test_the_token_keyed_pack_accepts_other_tokens_only_in_front_of_token_keys() -> None:
    for base, verdict in ((OFFLOAD, REUSE), (MP, REUSE), (own("template_version"), NAMESPACE)):
        for name in ("chat_template", "tokenizer", "tokenizer.renderer", "tokenizer.options"):
            new = {**base, **OTHER[name]}
            refuted = about("token-identity", "refuted", base, new)
            assert decided(base, new, pack="token-keyed").verdict == verdict
            assert decided(base, new, pack="token-keyed", evidence=[refuted]).verdict == verdict
    assert decided(MP, {**MP, **OTHER["precision.kv_cache"]}, pack="token-keyed").exit_code == 10


@pytest.mark.parametrize("old", [[], [{**LMCACHE, "request_features": ["lora"]}]], ids=["first", "second"])
def test_lora_over_lmcache_is_unsafe_by_itself(old: list[dict[str, Any]]) -> None:
    new = {**LMCACHE, "request_features": ["lora"]}
    decision = decided(old, new, accept=frozenset({"new-namespace", "clear"}), declare_clear=True, strategy="recreate")
    assert (decision.exit_code, decision.accepted) == (30, False)
    assert "fault-unseparated-requests" in rules(decision)
    assert action_for(decision).kind == "none"


def test_replicas_batch_and_memory_are_reuse() -> None:
    new = {
        "parallelism.data": 8,
        "engine.args": {"gpu-memory-utilization": 0.5, "max-num-seqs": 512, "max-num-batched-tokens": 16384},
    }
    decision = decided({}, new)
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)


@pytest.mark.parametrize("base", [OFFLOAD, MP, LMCACHE, own("token_ids", "namespace"), own("token_ids")])
def test_the_loop_in_ci(base: dict[str, Any]) -> None:
    """Red with the settings to change, edit, green with the same verdict."""
    new = {**base, **OTHER["weights"]}
    red = decided(base, new)
    assert (red.verdict, red.exit_code) == (NAMESPACE, 10)
    action = action_for(red)
    assert action.kind == "set"
    typed = decided(base, {**new, "cache.namespace": "prod-b"})
    assert (typed.verdict, typed.exit_code) == (NAMESPACE, 10)
    for setting in action.settings:
        green = decided(base, {**new, setting.path: setting.value.replace("<folder or bucket>", "/kv")})
        assert (green.verdict, green.exit_code, green.derived.id) == (NAMESPACE, 0, red.derived.id)
        assert action_for(green).kind == "none"
        assert all("{namespace}" not in line for line in setting.how)


def test_going_back_to_a_used_name_is_no_boundary() -> None:
    """bf16 in a, fp8 in b, fp8 in a: the name differs from the last one, and holds the first one's entries."""
    second = {"precision.kv_cache": "fp8_e4m3", "cache.namespace": "b"}
    assert decided(second, {**second, "precision.compute": "float16", "cache.namespace": "prod-a"}).exit_code == 10


def test_a_hand_typed_name_counts_once_an_inventory_shows_it_empty() -> None:
    new = {**OTHER["weights"], "cache.namespace": "prod-b"}
    empty = about("inventory", "proved", {}, new, figures={"entries": 0})
    assert decided({}, new, evidence=[empty]).exit_code == 0
    full = about("inventory", "proved", {}, new, figures={"entries": 3})
    assert decided({}, new, evidence=[full]).exit_code == 10
    mine = about("inventory", "proved", {}, new, figures={"entries": 3, "namespaces": [derive(clean(new)).id]})
    assert decided({}, new, evidence=[mine]).exit_code == 0
    mixed = about("inventory", "proved", {}, new, figures={"entries": 3, "namespaces": [derive(clean(new)).id, "x"]})
    assert decided({}, new, evidence=[mixed]).exit_code == 10
    elsewhere = about("inventory", "proved", {}, {**new, "cache.namespace": "prod-c"}, figures={"entries": 0})
    assert decided({}, new, evidence=[elsewhere]).exit_code == 10


def test_a_kv_dtype_and_a_leak_need_both_obligations() -> None:
    salted = {"request_features": ["cache_salt"]}
    old = {**salted, "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}
    new = {**salted, "precision.kv_cache": "fp8_e4m3"}
    assert decided(old, new).exit_code == 20
    declared = decided(old, new, declare_clear=True)
    assert (declared.verdict, declared.exit_code, declared.accepted) == (CLEAR, 10, False)
    drained = decided(old, new, declare_clear=True, strategy="recreate")
    assert (drained.verdict, drained.exit_code) == (CLEAR, 0)
    moved = {**new, "cache.namespace": derive(clean(new)).id}
    assert decided(old, moved).exit_code == 20
    assert decided(old, moved, declare_clear=True).exit_code == 0


def test_reuse_does_not_compose() -> None:
    """A name that disappears in B and comes back in C with other bytes: each step is reuse, the way is not."""
    a = {**OFFLOAD, "adapters": [{"name": "billing", "digest": digest("1")}]}
    b = OFFLOAD
    c = {**OFFLOAD, "adapters": [{"name": "billing", "digest": digest("2")}]}
    assert decided(a, b).verdict == REUSE
    assert decided(b, c).verdict == REUSE
    assert decided([a, b], c).verdict == NAMESPACE
    assert decided([b, a], c).exit_code == 10


def test_the_verdict_is_the_strictest_over_all_old_ones() -> None:
    leaky = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}
    decision = decided([{}, OTHER["weights"], leaky], {})
    assert (decision.verdict, decision.exit_code) == (CLEAR, 20)
    assert {finding.baseline for finding in decision.findings} == {1, 2}
    assert [clear.baseline for clear in action_for(decision).clears] == [2]


# ---- what is installed ----

REBUILT = {"engine.image": "sha256:" + "9" * 64}


@pytest.mark.parametrize("connector", [OFFLOAD, {"cache.version": None}], ids=["part of the engine", "lmcache-mp"])
def test_a_rebuild_of_the_same_packages_holds_the_same_connector(connector: dict[str, Any]) -> None:
    decision = decided(connector, {**connector, **REBUILT})
    assert only(decision, "engine.build").rule == "engine-rebuilt"
    assert not any(finding.change.dimension == "cache.version" for finding in decision.findings)


def test_an_unnamed_connector_version_is_not_equal_where_nothing_shows_what_is_installed() -> None:
    bare = {"cache.version": None, "engine.image": None, "engine.packages": None}
    assert only(decided(bare, bare), "cache.version").unverified


@pytest.mark.parametrize(
    ("old", "new"),
    [("bfloat16", "bf16"), ("fp8", "FP8"), ("float16", "float16 "), ("float16", "half"), ("fp8", "fp8_e4m3")],
)
@pytest.mark.parametrize("connector", BASES)
def test_another_spelling_of_a_format_is_the_same_format(connector: str, old: str, new: str) -> None:
    base = BASES[connector]
    assert decided({**base, "precision.kv_cache": old}, {**base, "precision.kv_cache": new}).verdict == REUSE


@pytest.mark.parametrize("connector", BASES)
def test_a_format_that_is_not_understood_separates_nothing(connector: str) -> None:
    base = BASES[connector]
    decision = decided({**base, "precision.kv_cache": "mxfp8"}, {**base, "precision.kv_cache": "mx-fp8"})
    assert decision.exit_code == 10
