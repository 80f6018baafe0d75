"""What answers show: proved only where every part held, refuted by any one that failed, and less is never more."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.probes.evaluation.comparison import Agreement
from kvgate.probes.rehearsal.judging import Observed, Tenants, Torn, _whole, judge
from kvgate.probes.rehearsal.seen import Hit, Part, Rehearsal
from kvgate.rules.shown import ENTRIES
from tests.probes.rehearsal.pairs import WEIGHTS, deployment

_OLD, _NEW = deployment(), deployment(WEIGHTS)
_STATES = ("held", "failed", "open", "not-run")


def hit(prompt: str = "a", cached: int = 0, answer: str = "same", right: bool | None = None) -> Hit:
    agreement = Agreement(answer, None, 0.0 if answer == "same" else 1.0, 1)  # type: ignore[arg-type]
    return Hit(prompt, None, cached, agreement, right)


STALE, READ, MISS = hit(cached=64, answer="different"), hit(cached=64), hit()
PROVED = Observed(
    "separate",
    control=(STALE,),
    inside=(MISS,),
    own=(READ,),
    tenants=Tenants(unguarded=(READ,), old=(MISS,), own=(MISS,)),
    lacking={},
    tolerance=0.01,
    alike=frozenset({MISS.key}),
    staged={"weights": "other random weights"},
    asked=1,
)


def seen(observed: Observed = PROVED, **changes: Any) -> Rehearsal:
    return judge(_OLD, _NEW, replace(observed, **changes))


def test_every_part_has_to_hold() -> None:
    assert seen().state == "proved"
    for states in itertools.product(_STATES, repeat=4):
        parts = [Part(state, state) for state in states]  # type: ignore[arg-type]
        state, _ = _whole(parts, (), ())
        assert (state == "proved") is (set(states) == {"held"})
        assert (state == "refuted") is ("failed" in states)


@pytest.mark.parametrize(
    ("changes", "part", "words"),
    [
        ({"control": ()}, "control", "nothing is hit"),
        ({"control": (READ,)}, "control", "the floor of this comparison"),
        ({"control": (), "lacking": {"control": "a third server"}}, "control", "a third server"),
        ({"inside": ()}, "isolation", "nothing was asked"),
        ({"inside": (hit(answer="different"),)}, "isolation", "no token is told"),
        ({"inside": (hit(answer="not comparable"),)}, "isolation", "cannot be told"),
        ({"inside": (hit("b", 64),), "unstaged": ("engine.version",)}, "isolation", "was not there: engine.version"),
        ({"inside": (hit("b", 64),), "control": (READ,)}, "isolation", "nothing shows that one could be wrong"),
        ({"alike": frozenset()}, "isolation", "no prompt is the same tokens on both sides"),
        ({"own": ()}, "equivalence", "is hit"),
        ({"own": (), "lacking": {"own": "no store of its own"}}, "equivalence", "no store of its own"),
        ({"own": (READ, hit(answer="different"))}, "equivalence", "not repeatable"),
        ({"tenants": Tenants((READ,), (MISS,), ())}, "tenants", "no other tenant asked"),
        ({"tenants": Tenants((MISS,), (MISS,), (MISS,))}, "tenants", "nothing is read either"),
    ],
)
def test_what_shows_nothing_proves_nothing(changes: dict[str, Any], part: str, words: str) -> None:
    found = seen(**changes)
    assert (found.state, getattr(found, part).state, found.of) == ("inconclusive", "open", ())
    assert words in getattr(found, part).why


@pytest.mark.parametrize(
    ("changes", "of"),
    [
        ({"inside": (STALE,)}, "old-entries"),
        ({"inside": (READ,)}, "old-entries"),  # right here, and wrong in the control
        ({"inside": (hit(cached=64, right=False),)}, "old-entries"),
        ({"own": (STALE,)}, "own-entries"),
        ({"tenants": Tenants((READ,), (READ,), (MISS,))}, "old-entries-of-tenants"),
        ({"tenants": Tenants((READ,), (MISS,), (READ,))}, "own-entries-of-tenants"),
    ],
)
def test_what_was_read_wrongly_is_told_apart(changes: dict[str, Any], of: str) -> None:
    found = seen(**changes)
    assert (found.state, found.of) == ("refuted", (of,))


def test_an_entry_that_is_still_right_may_be_read() -> None:
    """An adapter changed, and the model did not: its own old entries are what the new deployment computes."""
    found = seen(inside=(MISS, hit("b", 64)), control=(STALE, hit("b", 64)))
    assert (found.state, found.isolation.state) == ("proved", "held")


def test_old_entries_that_are_wrong_refute_a_claim_of_reuse_and_wrong_ones_of_its_own_are_its_own() -> None:
    reuse = replace(PROVED, claim="reuse", inside=(READ,), own=(), tenants=None)
    assert (seen(reuse).state, seen(reuse).of) == ("proved", ("old-entries",))
    assert (seen(reuse, inside=(STALE,)).state, seen(reuse, inside=(STALE,)).of) == ("refuted", ("old-entries",))
    both = seen(reuse, inside=(STALE,), own=(STALE,))
    assert (both.state, both.of) == ("refuted", ("old-entries", "own-entries"))


@pytest.mark.parametrize(
    ("torn", "lacking", "state"),
    [
        (Torn((READ,), (MISS,)), {}, "held"),
        (Torn((READ,), (READ,)), {}, "held"),  # what stands before the tear may be right
        (Torn((READ,), (STALE,)), {}, "failed"),
        (Torn((READ,), (hit(cached=64, answer="not comparable", right=False),)), {}, "failed"),  # it ended on it
        (Torn((READ,), (hit(answer="different"),)), {}, "open"),
        (Torn((MISS,), (MISS,)), {}, "open"),
        (Torn((READ,), ()), {"torn": "it cannot"}, "open"),
    ],
)
def test_torn_entries_are_a_thing_of_their_own(torn: Torn, lacking: dict[str, str], state: str) -> None:
    found = seen(torn=torn, lacking=lacking)
    assert (found.state, found.torn.state) == ("proved", state)
    assert seen().torn.state == "not-run"


_HITS = st.lists(
    st.builds(
        hit,
        prompt=st.sampled_from(["a", "b"]),
        cached=st.sampled_from([0, 64]),
        answer=st.sampled_from(["same", "near-tie", "different", "not comparable"]),
        right=st.sampled_from([None, True, False]),
    ),
    max_size=3,
).map(tuple)
_OBSERVED = st.builds(
    Observed,
    claim=st.sampled_from(["reuse", "separate"]),
    control=_HITS,
    inside=_HITS,
    own=_HITS,
    tenants=st.one_of(st.none(), st.builds(Tenants, _HITS, _HITS, _HITS)),
    lacking=st.dictionaries(st.sampled_from(["control", "own", "tenants"]), st.just("there is no way to"), max_size=2),
    tolerance=st.just(0.01),
    alike=st.sampled_from([frozenset(), frozenset({MISS.key})]),
    unstaged=st.sampled_from([(), ("engine.version",)]),
    staged=st.dictionaries(
        st.sampled_from(["weights", "cache.tenancy", "chat_template"]), st.just("other"), max_size=2
    ),
)


@given(_OBSERVED)
def test_a_proof_is_one_of_all_its_parts_and_of_nothing_that_it_did_not_see(observed: Observed) -> None:
    found = judge(_OLD, _NEW, observed)
    parts = [found.control, found.isolation, found.equivalence]
    parts += [] if observed.tenants is None else [found.tenants]
    assert (found.state == "proved") <= all(part.state == "held" for part in parts)
    assert (found.state == "refuted") is bool(found.of) or found.state == "proved"
    assert set(found.of) <= set(ENTRIES)
    if found.state == "proved":
        assert any(one.cached for one in (*observed.control, *(observed.tenants or Tenants()).unguarded))
        assert ("own-entries" in found.of) <= any(one.cached for one in observed.own)
        assert not any(one.wrong for one in (*observed.inside, *observed.own))


@given(_OBSERVED, st.sampled_from(["inside", "own"]))
def test_nothing_else_makes_up_for_what_was_read_wrongly(observed: Observed, where: str) -> None:
    """Whatever held beside it, whatever a back end has no way to."""
    changes: dict[str, Any] = {where: (*getattr(observed, where), STALE)}
    found = judge(_OLD, _NEW, replace(observed, **changes))
    assert found.state == "refuted"
    assert ("old-entries" if where == "inside" else "own-entries") in found.of


@given(_OBSERVED, st.sampled_from(["control", "inside", "own", "tenants", "alike", "staged"]))
def test_seeing_less_proves_nothing(observed: Observed, what: str) -> None:
    """What was not asked is no proof; a refutation alone may be lost with what it was seen by."""
    less: dict[str, Any] = {what: {"tenants": Tenants(), "alike": frozenset(), "staged": {}}.get(what, ())}
    if what == "tenants" and observed.tenants is None:
        return
    before, after = judge(_OLD, _NEW, observed), judge(_OLD, _NEW, replace(observed, **less))
    assert after.state != "proved" or before.state in ("proved", "refuted")
    if what in ("inside", "tenants"):
        assert after.state != "proved"
