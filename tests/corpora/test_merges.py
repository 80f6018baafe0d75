"""Changed merges: the smallest set of those that moved, and strings in which every order that matters shows."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.sweeps.competing import Competitions
from kvgate.corpora.tokenizers.merges import change

from .trained import Backend, edited

_MERGES = [["a", "b"], ["c", "d"], ["ab", "c"], ["e", "f"], ["ef", "ab"]]


def test_equal_lists_have_no_change() -> None:
    assert change(_MERGES, _MERGES).changed == ()


def test_what_moved_went_and_came() -> None:
    found = change(_MERGES, [_MERGES[4], *_MERGES[:3], ["x", "y"]])
    assert (found.moved, found.removed, found.added) == ((("ef", "ab"),), (("e", "f"),), (("x", "y"),))
    assert found.turned(("a", "b"), ("ef", "ab"))
    assert not found.turned(("a", "b"), ("c", "d"))
    # What is missing is never applied: it comes after everything.
    assert found.turned(("e", "f"), ("ef", "ab"))
    assert not found.turned(("e", "f"), ("a", "b"))
    assert not found.turned(("e", "f"), ("e", "f"))


@given(st.permutations(range(9)))
def test_what_did_not_move_is_in_order_and_no_smaller_set_will_do(order: list[int]) -> None:
    names = [(str(number), "x") for number in range(9)]
    found = change(names, [names[place] for place in order])
    stayed = [merge for merge in names if merge not in found.moved]
    assert sorted(stayed, key=lambda merge: order.index(int(merge[0]))) == stayed
    assert len(found.moved) == 9 - max(
        len(some)
        for size in range(1, 10)
        for some in itertools.combinations(range(9), size)
        if sorted(some, key=order.index) == list(some)
    )


def _tokenizer(chance: random.Random, alphabet: str) -> Backend:
    from tokenizers import Tokenizer, models, trainers

    parts = ["".join(chance.choices(alphabet, k=chance.randint(1, 4))) for _ in range(12)]
    words = ["".join(chance.choices(parts, k=chance.randint(1, 5))) for _ in range(300)]
    made = Tokenizer(models.BPE())
    made.train_from_iterator(words, trainers.BpeTrainer(vocab_size=chance.choice([15, 30, 60]), show_progress=False))
    backend: Backend = json.loads(made.to_str())
    return backend


@pytest.mark.parametrize("seed", range(5))
def test_two_merges_exchanged_show_wherever_they_matter(seed: int) -> None:
    """Against every string up to a length, and every two entries: if one shows the change, a competition does."""
    from tokenizers import Tokenizer

    chance = random.Random(seed)
    showed = 0
    for alphabet in ("ab", "abc", "abcd"):
        old = _tokenizer(chance, alphabet)
        every = ["".join(some) for size in range(1, 7) for some in itertools.product(alphabet, repeat=size)]
        every += ["".join(two) for two in itertools.product(old["model"]["vocab"], repeat=2)]
        for _ in range(5):
            one, other = chance.sample(range(len(old["model"]["merges"])), 2)

            def exchange(backend: Backend, one: int = one, other: int = other) -> None:
                merges = backend["model"]["merges"]
                merges[one], merges[other] = merges[other], merges[one]

            new = edited(old, exchange)
            sides: list[Any] = [Tokenizer.from_str(json.dumps(side)) for side in (old, new)]

            def differ(texts: list[str], sides: list[Any] = sides) -> bool:
                before, after = ([found.ids for found in side.encode_batch(texts)] for side in sides)
                return before != after

            competing = Competitions(change(old["model"]["merges"], new["model"]["merges"]), old["model"]["merges"])
            matters = differ(every)
            assert differ(list(competing.strings())) >= matters, (alphabet, one, other)
            showed += matters
    assert showed > 5


def test_the_strings_are_bounded_and_what_is_left_out_is_counted() -> None:
    letters = [chr(0x4E00 + number) for number in range(9000)]
    old = [(letters[number], letters[number + 1]) for number in range(8998)]
    found = Competitions(change(old, old[::-1]), old)
    assert found.examined == 7500
    assert len(list(found.strings())) <= 60_000


def test_a_mark_of_what_follows_goes_when_tokens_are_joined() -> None:
    old = [["a", "##b"], ["##b", "##c"]]
    found = Competitions(change(old, old[::-1]), old, "##")
    assert "abc" in set(found.strings())
    assert not any("#" in one[1:] for one in found.strings() if not one.startswith("##"))
