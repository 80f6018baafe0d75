"""Remembering millions of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.conversations.seen import Seen


@given(st.lists(st.text(st.characters(codec=None), max_size=4)))
def test_it_is_a_set(names: list[str]) -> None:
    seen, known = Seen(), set[str]()
    for name in names:
        assert seen.add(name) is (name not in known)
        known.add(name)
    assert len(seen) == len(known)


def test_it_grows_and_stays_small() -> None:
    seen = Seen()
    assert all(seen.add(f"line-{number}") for number in range(50_000))
    assert not any(seen.add(f"line-{number}") for number in range(0, 50_000, 7))
    assert len(seen) == 50_000
    assert seen._table.itemsize * len(seen._table) <= 32 * len(seen)
