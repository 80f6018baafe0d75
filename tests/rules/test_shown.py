"""A refuted rehearsal: what it obliges to, what answers it, and that saying less of it is never the better answer."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.decide import Decision
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Evidence
from kvgate.rules.namespace import derive
from kvgate.rules.pack import parse_pack
from kvgate.rules.packaged import packaged_bytes
from kvgate.rules.record import record_of
from kvgate.rules.shown import ENTRIES, OF_OLD, Entries, Model, Ran, Shown, Where, lacks
from tests.rules.clean import clean, digest
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, STALE, about, decided

WEIGHTS: dict[str, Any] = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("8")}
NAMED = {**WEIGHTS, "cache.namespace": derive(clean(WEIGHTS)).id}
NO_KNOB = {"cache.connector": "trtllm", "cache.version": None, "engine.name": "trtllm"}
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"declare_clear": True},
    {"declare_clear": True, "strategy": "recreate"},
    {"accept": frozenset({NAMESPACE, CLEAR})},
]


def refuted(shown: Shown | None, new: dict[str, Any]) -> Evidence:
    return about("isolation", "refuted", {}, new, reason="seen", shown=shown)


def test_old_entries_that_a_rehearsal_read_are_to_be_kept_out_of_reach_and_no_name_alone_does() -> None:
    """The name was edited after it: whether it holds, only another rehearsal shows."""
    assert decided({}, NAMED).exit_code == 0
    stale = refuted(STALE, WEIGHTS)
    for new in (WEIGHTS, NAMED):
        decision = decided({}, new, evidence=[stale])
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
        assert decided({}, new, evidence=[stale], declare_clear=True).exit_code == 10
        drained = decided({}, new, evidence=[stale], declare_clear=True, strategy="recreate")
        assert (drained.verdict, drained.accepted) == (NAMESPACE, True)
    proof = about("isolation", "proved", {}, NAMED, shown=STALE, supersedes=[stale.digest])
    assert decided({}, NAMED, evidence=[stale, proof]).exit_code == 0
    assert decided({}, WEIGHTS, evidence=[stale, proof]).exit_code == 10


@pytest.mark.parametrize("of", ["own-entries", "own-entries-of-tenants"])
def test_what_goes_wrong_among_its_own_entries_is_a_self_fault(of: str) -> None:
    shown = STALE.model_copy(update={"of": ["old-entries", of]})
    seen = refuted(shown, NAMED)
    for options in _OPTIONS[:3]:
        decision = decided({}, NAMED, evidence=[seen], **options)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 30)
    assert decided({}, NAMED, evidence=[seen], accept=frozenset({NAMESPACE})).exit_code == 30
    proof = about("isolation", "proved", {}, NAMED, shown=shown, supersedes=[seen.digest])
    assert decided({}, NAMED, evidence=[seen, proof]).exit_code == 0


def test_where_customers_are_served_they_are_deleted() -> None:
    seen = refuted(STALE.model_copy(update={"where": "service"}), NAMED)
    decision = decided({}, NAMED, evidence=[seen])
    assert (decision.verdict, decision.exit_code) == (CLEAR, 20)
    assert decided({}, NAMED, evidence=[seen], declare_clear=True).exit_code == 0


def test_what_is_not_said_is_the_worst_that_it_can_be() -> None:
    for shown in (None, Shown(), Shown(of=["old-entries"])):
        decision = decided({}, NAMED, evidence=[refuted(shown, NAMED)], declare_clear=True, strategy="recreate")
        assert (decision.verdict, decision.exit_code) == (CLEAR, 30)


def test_where_a_connector_has_no_way_to_keep_them_apart_they_are_deleted_too() -> None:
    seen = about("isolation", "refuted", NO_KNOB, NO_KNOB, shown=STALE)
    decision = decided(NO_KNOB, NO_KNOB, evidence=[seen])
    assert decision.verdict in (NAMESPACE, CLEAR)
    assert not decision.accepted
    assert not decided(NO_KNOB, NO_KNOB, evidence=[seen], declare_clear=True).accepted


def test_a_cache_that_is_implicated_is_not_kept_apart_by_a_plan() -> None:
    """What runs read wrong entries: a name in a manifest is no news of that."""
    seen = about("bypass-diff", "refuted", {}, NAMED, reason="6 of 6 requests differ")
    assert (decided({}, NAMED, evidence=[seen]).verdict, decided({}, NAMED, evidence=[seen]).exit_code) == (
        NAMESPACE,
        10,
    )
    assert decided({}, NAMED, evidence=[seen], declare_clear=True, strategy="recreate").exit_code == 0
    again = about("bypass-diff", "proved", {}, NAMED, supersedes=[seen.digest])
    assert decided({}, NAMED, evidence=[seen, again]).exit_code == 0


# ---- the law ----

_OF: list[tuple[Entries, ...]] = [(), ("old-entries",), ("own-entries",), OF_OLD, ("old-entries", "own-entries")]
_ORDER = [REUSE, NAMESPACE, CLEAR]


@cache
def _answers(where: Where | None, of: tuple[Entries, ...]) -> list[Decision]:
    seen = refuted(STALE.model_copy(update={"where": where, "of": list(of) or None}), NAMED)
    return [decided({}, NAMED, evidence=[seen], **options) for options in _OPTIONS]


def test_saying_less_of_a_refutation_never_helps() -> None:
    for where, of in itertools.product((None, *get_args(Where)), _OF):
        more = [(where, one) for one in _OF if of and set(of) < set(one)]
        for less in [(None, of), (where, ()), *more]:
            for before, after in zip(_answers(where, of), _answers(*less), strict=True):
                assert _ORDER.index(after.verdict) >= _ORDER.index(before.verdict)
                assert before.accepted or not after.accepted


_ANY = st.builds(
    Shown,
    where=st.sampled_from([None, *get_args(Where)]),
    of=st.one_of(st.none(), st.lists(st.sampled_from(ENTRIES), unique=True)),
    model=st.sampled_from([None, *get_args(Model)]),
    ran=st.sampled_from([None, *get_args(Ran)]),
    differences=st.one_of(st.none(), st.lists(st.sampled_from(["weights", "adapters"]), unique=True)),
    prompts=st.one_of(st.none(), st.integers(0, 3)),
    tokens=st.one_of(st.none(), st.integers(0, 3)),
)


@given(_ANY, _ANY, st.sampled_from(sorted(Shown.model_fields)))
def test_a_proof_that_says_less_answers_no_more(proof: Shown, wanted: Shown, field: str) -> None:
    if lacks(proof, wanted) is not None:
        assert lacks(proof.model_copy(update={field: None}), wanted) is not None
        assert lacks(proof, wanted.model_copy(update={field: None})) is not None


_FULL = Shown(
    where="scratch",
    of=[*ENTRIES],
    model="real",
    ran="servers",
    differences=["adapters", "weights"],
    prompts=9,
    tokens=600,
)


@pytest.mark.parametrize(
    ("shows", "words"),
    [
        ({"of": [*OF_OLD]}, "nothing of own-entries, own-entries-of-tenants"),
        ({"of": ["old-entries", "own-entries"]}, "of-tenants"),
        ({"model": "stand-in"}, "stand-ins answered"),
        ({"ran": "launch-files"}, "the engine by its launch files ran, and for the refutation servers"),
        ({"differences": ["weights"]}, "adapters did not differ in it"),
        ({"prompts": 8}, "8 prompts were asked, and 9 for the refutation"),
        ({"tokens": 599}, "prompts had 599 tokens, and 600 for the refutation"),
        ({"where": "service"}, "another place"),
    ],
)
def test_a_proof_of_less_is_no_answer(shows: dict[str, Any], words: str) -> None:
    assert lacks(_FULL, _FULL) is None
    assert words in str(lacks(_FULL.model_copy(update=shows), _FULL))
    assert lacks(_FULL, _FULL.model_copy(update=shows)) is None or "where" in shows


# ---- packs ----

_DEFAULT = packaged_bytes("packs", "default.yaml").decode()
_WITHOUT = _DEFAULT[: _DEFAULT.index("  - id: refuted-isolation\n")]
_WITHOUT += _DEFAULT[_DEFAULT.index("  - id: refuted-lifecycle-audit\n") :]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_WITHOUT, "no rule answers every refutation of the kind isolation"),
        (_DEFAULT.replace("obligations: [separate, delete]", "obligations: [separate]"), "is milder than"),
        (_DEFAULT.replace("    when: {where: scratch}\n", ""), "answers nothing that refuted-rehearsal-own does not"),
    ],
)
def test_a_pack_is_complete_and_never_milder_where_less_is_said(text: str, words: str) -> None:
    assert text != _DEFAULT
    with pytest.raises(InputError, match=words):
        parse_pack(text.encode(), "own.yaml")


# ---- whose evidence it is ----


def test_evidence_about_others_is_told_from_evidence_that_decided_nothing() -> None:
    proof = about("isolation", "proved", {}, {}, shown=STALE)
    assert proof.about_others(clean(), clean()) == []
    assert proof.about_others(clean(), clean({"cache.namespace": "b"})) == ["cache"]
    assert proof.about_others(None, clean()) == ["an old one"]
    assert about("bypass-diff", "proved", None, {}).about_others(clean(), clean()) == []
    seen = about("isolation", "refuted", {}, WEIGHTS, shown=STALE)
    assert seen.about_others(clean(), clean({**WEIGHTS, "cache.namespace": "b"})) == []
    assert seen.about_others(clean(), clean()) == ["weights.checkpoint.digest"]
    for item in (proof, seen):
        record = record_of(decided({}, {**WEIGHTS, "engine.version": "0.32.0"}, evidence=[item]), "0")
        assert record["predicate"]["evidence"][0]["others"]


# ---- pools ----

_FLAG: dict[str, Any] = {"engine.args/what": 1}
_OWN_STORE = {"cache.connector": "own-store", "cache.version": None, "cache.key_fields": ["namespace"]}


@pytest.mark.parametrize("edited", ["afterwards", "before"])
def test_a_proof_of_the_whole_is_none_of_what_a_pool_sets(edited: str) -> None:
    """Whether the pools were there when it was made, or were added to the manifest after it."""
    old, plain = _OWN_STORE, {**_OWN_STORE, **_FLAG}
    pooled = {**plain, "roles": [{"name": "all", "set": {"engine.version": "0.32.0"}}]}
    proof = about("kv-equivalence", "proved", old, plain if edited == "afterwards" else pooled)
    assert decided(old, plain, evidence=[about("kv-equivalence", "proved", old, plain)]).verdict == REUSE
    assert decided(old, pooled, evidence=[proof]).verdict == NAMESPACE


def test_a_proof_of_the_whole_speaks_for_pools_that_only_file_elsewhere() -> None:
    keyed = {**_OWN_STORE, "cache.key_fields": ["model.id"]}
    places = [{"name": name, "set": {"cache.location": f"db://{name}"}} for name in ("one", "two")]
    old = {**keyed, "roles": places}
    new = {**old, "chat_template.digest": digest("8"), "chat_template.tree": digest("9")}
    assert decided(old, new).verdict == NAMESPACE
    assert decided(old, new, evidence=[about("token-identity", "proved", old, new)]).verdict == REUSE
    # A store is part of what stored KV was compared in: each pool has another.
    flag = {**old, **_FLAG}
    assert decided(old, flag, evidence=[about("kv-equivalence", "proved", old, flag)]).verdict == NAMESPACE


def test_equal_tokens_of_the_whole_are_not_those_of_a_pool_with_another_template() -> None:
    keyed = {**_OWN_STORE, "cache.key_fields": ["model.id"]}
    template = {"chat_template.digest": digest("8"), "chat_template.tree": digest("9")}
    pooled = {**keyed, "roles": [{"name": "all", "set": template}]}
    proof = about("token-identity", "proved", keyed, pooled)
    assert decided(keyed, pooled, evidence=[proof]).verdict == NAMESPACE
