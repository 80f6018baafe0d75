"""Served weights: where the checkpoints speak for them, and that forgetting any of it never helps."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.errors import InputError
from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import NAMESPACE, REUSE, about, decided, kinds, rules
from tests.rules.served import served

SERVED = "weights.served"
SHOWN = {SERVED: served("9", checkpoint="a")}
SHOWN_OF_TWO = {SERVED: served("78", checkpoint="a")}
TAIL = {"weights.checkpoint.digest": digest("5")}
SILENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the same": ({SERVED: served("9")}, {SERVED: served("9")}),
    "only the new engine was asked, and holds its checkpoint": ({}, SHOWN),
    "only the old engine was asked, and held its checkpoint": (SHOWN, {}),
    "one rank and two, both hold the checkpoint": (SHOWN, SHOWN_OF_TWO),
    "the same buffers of their own": ({SERVED: served("9", "a", "6")}, {SERVED: served("78", "a", "6")}),
    "other tail": ({SERVED: served("9", "a", "6")}, {**TAIL, SERVED: served("8", "5", "6")}),
    "the ranks in another order": ({SERVED: served("78")}, {SERVED: served("78")[::-1]}),
}


@pytest.mark.parametrize("name", SILENT)
def test_where_nothing_is_to_be_said_of_them(name: str) -> None:
    decision = decided(*SILENT[name])
    assert decision.verdict == REUSE
    assert SERVED not in {dimension for dimension, _ in kinds(decision)}


DECLARED = {"provenance/weights.served": "declared"}
FORGOTTEN: list[dict[str, Any]] = [
    {SERVED: FORGET},
    {"provenance/weights": FORGET},
    DECLARED,
    {"provenance/weights.checkpoint": "declared"},
    {"weights.checkpoint.digest": FORGET, "weights.checkpoint.kv_digest": FORGET, "weights.checkpoint": FORGET},
    {"weights.checkpoint": None},
]


@pytest.mark.parametrize("forgotten", FORGOTTEN, ids=lambda forgotten: ", ".join(forgotten))
@pytest.mark.parametrize("name", SILENT)
def test_forgetting_never_helps(name: str, forgotten: dict[str, Any]) -> None:
    old, new = SILENT[name]
    for pair in (({**old, **forgotten}, new), (old, {**new, **forgotten})):
        if forgotten is DECLARED and any(side.keys() == DECLARED.keys() for side in pair):
            continue  # nobody was asked there, which is always declared
        decision = decided(*pair)
        assert (decision.verdict, decision.exit_code) in ((NAMESPACE, 11), (NAMESPACE, 10))


@pytest.mark.parametrize("field", ["own", "checkpoint"])
def test_what_is_left_out_of_a_rank_shows_nothing(field: str) -> None:
    less = [{name: value for name, value in entry.items() if name != field} for entry in served("78", "a")]
    assert kinds(decided(SHOWN, {SERVED: less})) == [(SERVED, "unverified")]


FORM = ["engine", "engine_version", "architecture", "tensor", "pipeline"]


@pytest.mark.parametrize("field", FORM)
@pytest.mark.parametrize("entries", [served("9"), served("9", "a")], ids=["not shown", "shown"])
def test_a_form_that_is_not_known_shows_nothing(field: str, entries: list[dict[str, Any]]) -> None:
    less = {SERVED: [{name: value for name, value in entry.items() if name != field} for entry in entries]}
    decision = decided(less, less)
    assert (decision.verdict, kinds(decision)) == (NAMESPACE, [(SERVED, "unverified")])
    assert derive(clean(less)).id is None
    against = about("kv-equivalence", "refuted", {SERVED: entries}, {SERVED: entries}, reason="found on purpose")
    assert any("kv" in rule for rule in rules(decided(less, less, evidence=[against])))


OTHER_FORMS = {"engine": "sglang", "engine_version": "0.34.0", "architecture": "Other"}


@pytest.mark.parametrize("field", OTHER_FORMS)
def test_equal_digests_of_two_forms_are_not_equal(field: str) -> None:
    other = [{**entry, field: OTHER_FORMS[field]} for entry in served("78")]
    assert kinds(decided({SERVED: served("78")}, {SERVED: other})) == [(SERVED, "unverified")]
    mixed = {SERVED: [served("78")[0], other[1]]}
    assert kinds(decided(mixed, mixed)) == [(SERVED, "unverified")]


@pytest.mark.parametrize("ranks", [[0], [1], [0, 0], [0, 2]], ids=str)
def test_some_of_the_ranks_are_not_all(ranks: list[int]) -> None:
    entries = [{**served("789", "a")[place], "rank": number} for number, place in enumerate(ranks)]
    less = {SERVED: [{**entry, "tensor": {**entry["tensor"], "size": 2}} for entry in entries]}
    for pair in ((less, less), ({}, less), (less, {})):
        assert kinds(decided(*pair)) == [(SERVED, "unverified")]


def test_buffers_belong_to_their_rank() -> None:
    def holding(*own: str) -> dict[str, Any]:
        entries = served("789"[: len(own)], "a")
        return {SERVED: [{**entry, "own": digest(letter)} for entry, letter in zip(entries, own, strict=True)]}

    for old, new in (("12", "21"), ("122", "112")):
        sides = holding(*old), {SERVED: [{**one, "digest": digest("3")} for one in holding(*new)[SERVED]]}
        assert kinds(decided(*sides)) == [(SERVED, "differs")]
        ids = [derive(clean(side)).id for side in sides]
        assert None not in ids
        assert ids[0] != ids[1]
    again = {SERVED: [{**one, "digest": digest("3")} for one in holding(*"12")[SERVED]]}
    assert decided(holding(*"12"), again).verdict == REUSE
    assert derive(clean(holding(*"12"))).id == derive(clean(again)).id


def test_one_rank_that_is_not_shown_is_enough() -> None:
    mixed = [*served("78", "a")[:1], *served("78")[1:]]
    assert kinds(decided({}, {SERVED: mixed})) == [(SERVED, "unverified")]


def test_a_difference_says_which_ranks() -> None:
    (finding,) = decided({SERVED: served("789")}, {SERVED: served("785")}).findings
    assert (finding.rule, finding.change.detail) == ("served-weights-changed", "rank 2 of 3 holds others")
    (finding,) = decided({SERVED: served("789")}, {SERVED: served("185")}).findings
    assert finding.change.detail == "ranks 0, 2 of 3 hold others"


def test_asking_does_not_move_the_derived_id_of_what_is_shown_to_be_the_checkpoint() -> None:
    assert derive(clean(SHOWN)).id == derive(clean(SHOWN_OF_TWO)).id == derive(clean()).id
    assert derive(clean({SERVED: served("9")})).id not in (derive(clean()).id, None)
    assert derive(clean({SERVED: served("9"), "provenance/weights.served": "declared"})).id is None


def test_buffers_that_compare_as_others_have_an_id_of_their_own() -> None:
    seven, eight = ({SERVED: served(ranks, "a", own)} for ranks, own in (("12", "7"), ("34", "8")))
    assert (SERVED, "differs") in kinds(decided(seven, eight))
    ids = [derive(clean(side)).id for side in (seven, eight, SHOWN)]
    assert None not in ids
    assert len(set(ids)) == 3
    assert derive(clean({SERVED: served("56", "a", "7")})).id == ids[0], "the same ones under other ranks"
    forgotten = [{name: value for name, value in entry.items() if name != "own"} for entry in served("12", "a", "7")]
    assert derive(clean({SERVED: forgotten})).id is None


def test_buffers_of_an_engine_that_was_not_asked_are_not_known() -> None:
    own = {SERVED: served("34", "a", "8")}
    nobody: dict[str, Any] = {}
    for old, new in ((nobody, own), (own, nobody)):
        decision = decided(old, new)
        assert (decision.exit_code, kinds(decision)) == (11, [(SERVED, "unverified")])


def test_a_refutation_reaches_whoever_may_hold_the_same_buffers() -> None:
    own = {SERVED: served("9", "a", "7")}
    against = about("kv-equivalence", "refuted", own, own, reason="found on purpose")
    for side in ({}, SHOWN, {SERVED: served("9")}, own):
        assert any("kv" in rule for rule in rules(decided(side, side, evidence=[against])))
    other = {SERVED: served("9", "a", "8")}
    assert rules(decided(other, other, evidence=[against])) == []


@pytest.mark.parametrize("asked", [{SERVED: served("9")}, SHOWN, {}], ids=["not shown", "shown", "not asked"])
@pytest.mark.parametrize("of", [{SERVED: served("9")}, SHOWN, {}], ids=["not shown", "shown", "not asked"])
def test_asking_sheds_no_refutation(of: dict[str, Any], asked: dict[str, Any]) -> None:
    """An engine that was not asked, or holds its checkpoint, is not another one than one that was."""
    against = about("kv-equivalence", "refuted", of, of, reason="found on purpose")
    assert any("kv" in rule for rule in rules(decided(asked, asked, evidence=[against])))


def test_a_refutation_of_other_weights_is_about_another_deployment() -> None:
    other = {SERVED: served("8")}
    against = about("kv-equivalence", "refuted", other, other, reason="found on purpose")
    mine = {SERVED: served("9")}
    assert rules(decided(mine, mine, evidence=[against])) == []


def test_no_ranks_are_no_answer() -> None:
    with pytest.raises(InputError, match=r"weights\.served"):
        clean({SERVED: []})
