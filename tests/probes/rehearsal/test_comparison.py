"""When two answers are the same: log-probabilities before tokens, near-ties told from another context."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kvgate.probes.evaluation.comparison import compare_answers

_Steps = list[Mapping[int, float]]
_Said = tuple[list[int], _Steps]


def _said(*steps: Mapping[int, float]) -> _Said:
    return [max(step, key=lambda token: step[token]) for step in steps], list(steps)


_TIE, _TURNED = {1: -0.700, 2: -0.701}, {1: -0.701, 2: -0.700}
_CLEAR, _OTHER = {1: -0.01, 2: -5.0}, {2: -0.01, 1: -5.0}


def test_equal_tokens_with_other_probabilities_are_not_the_same() -> None:
    found = compare_answers(_said(_CLEAR, _CLEAR), _said(_CLEAR, {1: -0.02, 2: -4.2}), 0.001)
    assert (found.answer, found.divergence) == ("different", None)


def test_a_near_tie_is_told_from_another_context() -> None:
    near = compare_answers(_said(_CLEAR, _TIE, _CLEAR), _said(_CLEAR, _TURNED, _OTHER), 0.002)
    assert (near.answer, near.divergence, near.steps, near.same) == ("near-tie", 1, 2, True)
    wrong = compare_answers(_said(_CLEAR, _CLEAR), _said(_CLEAR, _OTHER), 0.002)
    assert (wrong.answer, wrong.same) == ("different", False)


def test_what_follows_a_divergence_is_another_context_and_does_not_count() -> None:
    assert compare_answers(_said(_TIE, _CLEAR), _said(_TURNED, _OTHER), 0.002).steps == 1


def test_tokens_that_only_one_side_lists_are_at_least_so_far_apart() -> None:
    assert compare_answers(_said({1: -0.1, 2: -3.0}), _said({3: -0.2, 4: -4.0}), 1.0).answer == "different"
    last = compare_answers(_said({1: -0.1, 2: -3.0001}), _said({1: -0.1, 3: -3.0002}), 0.001)
    assert last.answer == "same"


def test_nothing_is_not_the_same() -> None:
    assert compare_answers(([], []), ([], []), 1.0).answer == "not comparable"
    assert not compare_answers(([], []), ([], []), 1.0).same


def test_a_nan_is_no_agreement() -> None:
    assert compare_answers(_said({1: math.nan, 2: -1.0}), _said({1: -0.1, 2: -1.0}), 1.0).answer == "different"


_STEP = st.dictionaries(st.integers(0, 5), st.floats(-20, 0), min_size=2, max_size=4)


@given(st.lists(_STEP, min_size=1, max_size=4), st.lists(_STEP, min_size=1, max_size=4), st.floats(0, 2))
def test_it_does_not_matter_which_comes_first(
    one: list[Mapping[int, float]], two: list[Mapping[int, float]], tolerance: float
) -> None:
    forth = compare_answers(_said(*one), _said(*two), tolerance)
    back = compare_answers(_said(*two), _said(*one), tolerance)
    assert forth == back
    assert compare_answers(_said(*one), _said(*one), tolerance).answer == "same"
