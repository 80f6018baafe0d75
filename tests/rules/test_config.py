"""Effective configs: equal meanings are equal, listed fields are told apart, whatever nobody listed counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.compare.maps import config_fields, counting_config, normal_config
from kvgate.rules.namespace import derive
from tests.rules.clean import CLEAN, FORGET, clean
from tests.rules.deciding import NAMESPACE, REUSE, decided, kinds

CONFIG: dict[str, Any] = CLEAN["model"]["config"]


def config(**fields: Any) -> dict[str, Any]:
    """Return the clean config with other fields; ``FORGET`` leaves one out."""
    changed = {**CONFIG, **fields}
    return {"model.config": {name: value for name, value in changed.items() if value is not FORGET}}


def verdicts(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the kinds of the config's findings, in both directions: they must agree."""
    there = [kind for name, kind in kinds(decided(old, new)) if name == "model.config"]
    back = [kind for name, kind in kinds(decided(new, old)) if name == "model.config"]
    assert there == back
    return there


# ---- the same config in other spellings ----

LLAMA3 = {"rope_type": "llama3", "factor": 8.0}
SPELLINGS = {
    "torch_dtype and dtype": (config(dtype=FORGET, torch_dtype="bfloat16"), config()),
    "both dtypes": (config(torch_dtype="float16"), config()),
    "half": (config(dtype="half"), config(dtype="float16")),
    "swish": (config(hidden_act="swish"), config(hidden_act="silu")),
    "swish, gemma": (config(hidden_activation="swish"), config(hidden_activation="silu")),
    "rope_theta at the top": (config(rope_parameters=FORGET, rope_theta=500000.0), config()),
    "an integer theta": (config(rope_parameters={"rope_type": "default", "rope_theta": 500000}), config()),
    "rope_scaling unset": (config(rope_parameters=FORGET, rope_theta=500000.0, rope_scaling=None), config()),
    "rope_scaling": (
        config(rope_parameters=FORGET, rope_theta=500000.0, rope_scaling=LLAMA3),
        config(rope_parameters={"rope_theta": 500000.0, **LLAMA3}),
    ),
    "rope_scaling with type": (
        config(rope_parameters=FORGET, rope_theta=500000.0, rope_scaling={"type": "linear", "factor": 2}),
        config(rope_parameters={"rope_theta": 500000, "rope_type": "linear", "factor": 2.0}),
    ),
    "no type is the default type": (config(rope_parameters={"rope_theta": 500000.0}), config()),
    "inside text_config": (
        config(text_config={"torch_dtype": "half", "rope_theta": 1e4, "hidden_act": "swish"}),
        config(
            text_config={
                "dtype": "float16",
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
                "hidden_act": "silu",
            }
        ),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_other_spellings_are_the_same_config(name: str) -> None:
    old, new = SPELLINGS[name]
    assert verdicts(old, new) in (["harmless"], [])
    assert decided(old, new).verdict == REUSE
    assert derive(clean(old)).id == derive(clean(new)).id is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (config(hidden_act="gelu_pytorch_tanh"), config(hidden_act="gelu_new")),
        (config(dtype="bfloat16"), config(dtype="float16")),
        (config(rope_parameters=FORGET, rope_theta=1e6), config()),
        # rope_scaling wins where both stand.
        (config(rope_scaling={"rope_type": "linear", "factor": 2.0}), config()),
        (config(text_config={"rope_theta": 1e6}), config(text_config={"rope_theta": 1e4})),
        # What cannot be read as RoPE settings is not thrown away.
        (config(rope_scaling="dynamic"), config(rope_scaling="linear")),
        (config(rope_parameters={"rope_theta": 5e5, "rope_type": "yarn"}), config()),
    ],
)
def test_another_meaning_is_another_config(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert set(verdicts(old, new)) & {"counts", "unclassified"}
    assert decided(old, new).verdict == NAMESPACE
    assert derive(clean(old)).id != derive(clean(new)).id


@given(st.dictionaries(st.sampled_from([*CONFIG, "torch_dtype", "rope_theta", "rope_scaling", "text_config", "x"]),
                       st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["silu", "half"]),
                                    lambda leaf: st.dictionaries(st.sampled_from(["type", "rope_type", "a"]), leaf),
                                    max_leaves=4)))  # fmt: skip
def test_the_normal_spelling_is_its_own(written: dict[str, Any]) -> None:
    once = normal_config(written)
    assert normal_config(once) == once
    assert counting_config(once) == counting_config(written)


# ---- listed fields ----


@pytest.mark.parametrize("name", sorted(config_fields().harmless))
def test_a_harmless_field_is_harmless_whatever_it_holds(name: str) -> None:
    for value in (1, "other", None, [1, 2], {"0": "LABEL_0"}):
        assert verdicts(config(**{name: FORGET}), config(**{name: value})) == ["harmless"]
    assert set(verdicts(config(**{name: {"0": "a", "1": "b"}}), config(**{name: {"0": "c"}}))) == {"harmless"}
    decision = decided(config(**{name: 1}), config(**{name: 2}))
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert derive(clean(config(**{name: 1}))).id == derive(clean(config(**{name: 2}))).id
    assert verdicts(config(text_config={name: 1}), config(text_config={name: 2})) == ["harmless"]


@pytest.mark.parametrize("name", sorted({*config_fields().counts} - {"rope_parameters"}))
def test_a_field_that_counts_counts(name: str) -> None:
    for old, new in ((1, 2), (1, None), (1, FORGET), (True, 1), ([1], [1, 2]), ({"a": 1}, {"a": 2})):
        assert verdicts(config(**{name: old}), config(**{name: new})) == ["counts"]
    assert verdicts(config(text_config={name: 1}), config(text_config={name: 2})) == ["counts"]
    assert derive(clean(config(**{name: 1}))).id != derive(clean(config(**{name: 2}))).id


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (config(), config(something_new=1)),
        (config(something_new=1), config(something_new=True)),
        (config(something_new=[True]), config(something_new=[1])),
        (config(something_new=None), config()),
        (config(something_new={"a": {"b": 1}}), config(something_new={"a": {"b": 2}})),
        # The same name in a vision tower means something else.
        (config(vision_config={"use_cache": True}), config(vision_config={"use_cache": False})),
        (config(vision_config={"hidden_size": 1}), config(vision_config={"hidden_size": 2})),
        (config(text_config={"a": 1}), config()),
    ],
)
def test_whatever_nobody_listed_counts(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert verdicts(old, new) == ["unclassified"]
    assert decided(old, new).exit_code == 10


def test_a_harmless_change_hides_no_other() -> None:
    old, new = config(use_cache=True, something_new=[True]), config(use_cache=False, something_new=[1])
    assert verdicts(old, new) == ["unclassified", "harmless"]


def test_a_field_is_on_one_list() -> None:
    fields = config_fields()
    lists = [*fields.harmless, *fields.counts, *fields.length_limits]
    assert sorted({name for name in lists if lists.count(name) > 1}) == []
    assert not set(fields.aliases) & set(lists)  # aliases are renamed before they are classified
    # Inert in transformers, read by vLLM (deepseek_v2.py): these stay off the list of harmless ones.
    assert not {"norm_topk_prob", "scoring_func", "pretraining_tp", "mlp_bias"} & set(fields.harmless)


def test_every_field_that_differs_is_a_finding_of_its_own() -> None:
    decision = decided(config(), config(rms_norm_eps=1e-6, head_dim=64, eos_token_id=1, what=2))
    assert [(finding.change.path, finding.change.kind) for finding in decision.findings] == [
        ("model.config.eos_token_id", "harmless"),
        ("model.config.head_dim", "counts"),
        ("model.config.rms_norm_eps", "counts"),
        ("model.config.what", "unclassified"),
    ]


def test_a_missing_config_is_unverified_and_so_is_an_empty_one() -> None:
    assert kinds(decided(config(), {"model.config": FORGET})) == [
        ("model.config", "unverified"),
    ]
    assert decided({"model.config": FORGET}, {"model.config": FORGET}).exit_code == 11
    assert decided(config(), {"model.config": {}}).exit_code == 11
    assert decided({"model.config": {}}, {"model.config": {}}).exit_code == 11


# ---- length limits ----

ROPES: dict[str, tuple[Any, bool, str]] = {
    # RoPE settings: whether max_position_embeddings counts, what max_model_len is
    "default": ({"rope_type": "default", "rope_theta": 5e5}, False, "inert"),
    "linear": ({"rope_type": "linear", "factor": 2.0}, False, "inert"),
    "llama3": ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, False, "inert"),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, False, "inert"),
    "yarn without original": ({"rope_type": "yarn", "factor": 4.0}, True, "inert"),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, True, "rope-dependent"),
    "longrope": ({"rope_type": "longrope", "original_max_position_embeddings": 6000}, True, "rope-dependent"),
    "longrope, not crossed": ({"rope_type": "longrope", "original_max_position_embeddings": 2048}, True, "inert"),
    "longrope without original": ({"rope_type": "longrope"}, True, "unverified"),
    "unheard of": ({"rope_type": "spiral"}, True, "unverified"),
    "one of two is dynamic": (
        {"full_attention": {"rope_type": "dynamic"}, "sliding_attention": {"rope_type": "default"}},
        True,
        "rope-dependent",
    ),
    "two that are fixed": (
        {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}},
        False,
        "inert",
    ),
    "one of two has no type": ({"full_attention": {"factor": 1}, "sliding_attention": {}}, True, "inert"),
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("where", ["top", "text_config", "rope_scaling", "both"])
def test_length_limits_count_where_rope_reads_them(name: str, where: str) -> None:
    rope, counts, length = ROPES[name]
    if where == "text_config":
        base = config(rope_parameters=FORGET, text_config={"rope_parameters": rope})
    elif where == "rope_scaling":
        base = config(rope_parameters=FORGET, rope_scaling=rope)
    elif where == "both":
        base = config(rope_parameters=None, rope_scaling=rope)
    else:
        base = config(rope_parameters=rope)
    limited = {"model.config": {**base["model.config"], "max_position_embeddings": 4096}}
    assert verdicts(base, limited) == ["counts" if counts else "harmless"]
    assert kinds(decided(base, {**base, "engine.max_model_len": 4096})) == [("engine.max_model_len", length)]
    assert kinds(decided({**base, "engine.max_model_len": 4096}, base)) == [("engine.max_model_len", length)]
    if length in ("inert", "rope-dependent") and "not crossed" not in name:
        same = derive(clean(base)).id == derive(clean({**base, "engine.max_model_len": 4096})).id
        assert same is (length == "inert")


def test_no_rope_at_all_counts() -> None:
    """Learned positions: the table's size is the limit."""
    base = config(rope_parameters=FORGET)
    limited = config(rope_parameters=FORGET, max_position_embeddings=4096)
    assert verdicts(base, limited) == ["counts"]
    assert kinds(decided(base, {**base, "engine.max_model_len": 4096})) == [("engine.max_model_len", "unverified")]


def test_a_rope_of_another_kind_on_one_side_counts() -> None:
    dynamic = config(rope_parameters={"rope_type": "dynamic"}, max_position_embeddings=4096)
    decision = decided(config(), {**dynamic, "engine.max_model_len": 4096})
    assert ("engine.max_model_len", "rope-dependent") in kinds(decision)
    assert ("model.config", "harmless") not in kinds(decision)


def test_max_model_len_without_a_config_counts() -> None:
    decision = decided({"model.config": FORGET}, {"model.config": FORGET, "engine.max_model_len": 4096})
    assert ("engine.max_model_len", "unverified") in kinds(decision)


def test_an_unset_limit_is_equal_where_its_default_is() -> None:
    dynamic = config(rope_parameters={"rope_type": "dynamic"})
    unset = {**dynamic, "engine.max_model_len": None}
    assert decided(unset, unset).verdict == REUSE
    assert ("engine.max_model_len", "unverified") in kinds(decided(unset, {**unset, "engine.version": "0.32.0"}))
    fixed = {"engine.max_model_len": None}
    assert ("engine.max_model_len", "unverified") not in kinds(decided(fixed, {**fixed, "engine.version": "0.32.0"}))
    assert ("engine.max_model_len", "rope-dependent") in kinds(decided(unset, dynamic))


# ---- null is known to be unset, and equal only where its default is ----

DEFAULTS = {
    "engine.attention_backend": ["engine.name", "engine.version", "engine.accelerator"],
    "engine.block_size": ["engine.name", "engine.version", "engine.accelerator", "engine.attention_backend"],
    "engine.kv_layout": ["engine.name", "engine.version", "engine.accelerator", "engine.attention_backend"],
    "cache.chunk_size": ["cache.version", "engine.version"],
    "cache.serde": ["cache.version", "engine.version"],
}
ANOTHER = {
    "engine.name": "sglang",
    "engine.version": "0.32.0",
    "engine.accelerator": "B200",
    "engine.attention_backend": "TRITON",
    "cache.version": "0.5.5",
}


@pytest.mark.parametrize("path", DEFAULTS)
def test_two_nulls_are_equal_where_what_sets_the_default_is(path: str) -> None:
    unset = {path: None}
    assert decided(unset, unset).verdict == REUSE
    assert (path, "unverified") in kinds(decided(unset, {}))  # the default may be this very value
    for source in DEFAULTS[path]:
        assert (path, "unverified") in kinds(decided(unset, {**unset, source: ANOTHER[source]}))
        assert (path, "unverified") in kinds(decided({**unset, source: FORGET}, {**unset, source: FORGET}))


NAMELESS = {"engine.accelerator": None}
LEFT = {path: None for path, sources in DEFAULTS.items() if "engine.accelerator" in sources}


def test_null_names_no_accelerator_and_every_engine_runs_on_one() -> None:
    """`unset: [engine]` writes it; backend, layout and block size are other ones on another GPU where they are left."""
    for old, new in ((NAMELESS, NAMELESS), (NAMELESS, {}), ({}, NAMELESS)):
        decision = decided(old, new)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
        (only,) = decision.findings
        assert (only.change.path, only.change.kind) == ("engine.accelerator", "unverified")
        assert only.settle == "--set engine.accelerator=H200 (cpu for none)"
    both = {**NAMELESS, **LEFT}
    found = decided(both, both).findings
    assert {one.change.path for one in found if one.unverified} == {"engine.accelerator", *LEFT}
    assert {one.settle for one in found} == {"--set engine.accelerator=H200 (cpu for none)"}


@pytest.mark.parametrize("name", ["H200", "cpu"])
def test_an_accelerator_that_is_named_answers_for_all_that_is_left_to_it(name: str) -> None:
    named = {"engine.accelerator": name, **LEFT}
    assert decided(named, named).verdict == REUSE
    assert decided({**NAMELESS, "cache.connector": None}, {**NAMELESS, "cache.connector": None}).exit_code == 0


# ---- defaults of two libraries ----

OTHER_CLASS = {"model.config_class": {"name": "LlamaConfig", "transformers": "5.25.0"}}
TWO_LIBRARIES = "the defaults were filled in by transformers 5.24.0 and 5.25.0: capture both with one version"


def details(new: dict[str, Any]) -> dict[str, str]:
    """Return what is said of each field of the config."""
    changes = [finding.change for finding in decided({}, new).findings]
    return {one.path.removeprefix("model.config."): one.detail for one in changes if one.dimension == "model.config"}


def test_fields_that_another_library_s_defaults_may_have_brought_say_so() -> None:
    new = {**config(brand_new=False, rms_norm_eps=FORGET, hidden_size=1234, id2label={"0": "a"}), **OTHER_CLASS}
    said = details(new)
    assert said["brand_new"] == said["rms_norm_eps"] == TWO_LIBRARIES
    assert said["hidden_size"] == ""  # listed, and set on both sides: somebody changed the model
    assert "" in {text for name, text in said.items() if name.startswith("id2label")}


@pytest.mark.parametrize(
    "origin", [{}, {"model.config_class": None}, {"model.config_class": FORGET}, {"model.config_class/name": "Other"}]
)
def test_nothing_is_said_of_defaults_of_one_library_or_of_unknown_ones(origin: dict[str, Any]) -> None:
    assert details({**config(brand_new=False), **origin}) == {"brand_new": ""}


# ---- launch flags ----


@pytest.mark.parametrize(("one", "other"), [(None, {}), (None, None), ({}, {})])
def test_no_flags_are_no_flags_however_they_are_written(one: Any, other: Any) -> None:
    """They are one identity too, so no namespace would keep them apart."""
    for old, new in ((one, other), (other, one)):
        decision = decided({"engine.args": old}, {"engine.args": new})
        assert (decision.verdict, decision.exit_code, decision.findings) == (REUSE, 0, ())
        assert decided({"engine.args": old}, {"engine.args": {"enable-dbo": True}}).exit_code == 10
        assert decided({"engine.args": old}, {"engine.args": FORGET}).exit_code == 11


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({}, {"engine.args/max-num-seqs": 256}, ["harmless"]),
        ({}, {"engine.args/enable-dbo": True}, ["unclassified"]),
        ({}, {"engine.args": None}, ["harmless"]),
        ({"engine.args": None}, {"engine.args": {}}, []),
        ({"engine.args/x": True}, {"engine.args/x": 1}, ["unclassified"]),
        ({"engine.args/x": [True]}, {"engine.args/x": [1]}, ["unclassified"]),
        ({"engine.name": "sglang"}, {"engine.name": "sglang", "engine.args/max-num-seqs": 256}, ["unclassified"]),
        ({"engine.name": FORGET}, {"engine.args/max-num-seqs": 256}, ["unclassified"]),
    ],
)
def test_launch_flags(old: dict[str, Any], new: dict[str, Any], found: list[str]) -> None:
    assert [kind for name, kind in kinds(decided(old, new)) if name == "engine.args"] == found
