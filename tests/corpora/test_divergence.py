"""What is said of one divergence: where, round which tokens, and why."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.cause import Sides
from kvgate.corpora.divergence.description import Divergence, describe
from kvgate.corpora.divergence.pieces import NO_TEXT, Pieces
from kvgate.corpora.divergence.window import AFTER, BEFORE, window
from kvgate.corpora.snapshots.snapshot import Rendered, text_digest
from kvgate.corpora.tokenizers.structure import PartDifference

_PIECES = {
    0: "<s>",
    1: "a",
    2: "b",
    3: "c",
    4: "d",
    5: "<think>",
    6: "<",
    7: "think",
    8: ">",
    9: "ab",
    10: "a",
    11: "</s>",
}
_NONE = Pieces({})


def _said(
    old: tuple[str | None, list[int]],
    new: tuple[str | None, list[int]],
    pieces: Mapping[int, str] = _PIECES,
    *,
    parts: tuple[PartDifference, ...] = (),
    same_tokenizer: bool | None = None,
    only_on_this_date: bool = False,
) -> Divergence:
    sides = Sides(Pieces(pieces), Pieces(pieces), same_tokenizer, parts)
    left, right = (Rendered(text, array("I", ids)) for text, ids in (old, new))
    return describe("name", 0, left, right, sides, only_on_this_date=only_on_this_date)


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_the_common_beginning(old: list[int], new: list[int]) -> None:
    naive = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    assert common(old, new) == common(array("I", old), array("I", new)) == naive
    assert common("".join(map(str, old)), "".join(map(str, new))) == naive


# ---- the window ----


@given(st.lists(st.integers(0, 9), max_size=20), st.lists(st.integers(0, 9), max_size=20))
def test_a_window_holds_each_side_in_order(old: list[int], new: list[int]) -> None:
    shared = common(old, new)
    if shared == len(old) == len(new):
        return
    seen = window(old, new, shared, Pieces(_PIECES), _NONE)
    assert len(seen.rows) <= BEFORE + AFTER
    assert seen.first == min(shared, BEFORE)
    assert all(row.equal for row in seen.rows[: seen.first])
    assert not seen.rows[seen.first].equal
    for side, ids in (("old", old), ("new", new)):
        tokens = [token for row in seen.rows if (token := getattr(row, side)) is not None]
        start = max(0, shared - BEFORE)
        assert [token.index for token in tokens] == list(range(start, start + len(tokens)))
        assert [token.id for token in tokens] == ids[start : start + len(tokens)]


def test_equal_tokens_stand_side_by_side_again() -> None:
    seen = window([1, 6, 7, 8, 2, 3, 4], [1, 5, 2, 3, 4], 1, Pieces(_PIECES), Pieces(_PIECES))
    assert seen.apart == (3, 1)
    assert [(row.old and row.old.id, row.new and row.new.id) for row in seen.rows] == [
        (1, 1), (6, 5), (7, None), (8, None), (2, 2), (3, 3), (4, 4),
    ]  # fmt: skip
    # Nothing follows, and nothing is left on either side: they meet at the end.
    assert window([1, 6, 7, 8], [1, 5], 1, Pieces(_PIECES), _NONE).apart == (3, 1)
    assert window([1, 2], [3, 4], 0, Pieces(_PIECES), _NONE).apart == (2, 2)
    # What follows is not known to be equal.
    assert window([1, *[2] * 9], [3, *[4] * 9], 0, Pieces(_PIECES), _NONE).apart is None


# ---- why ----


def test_the_template_writes_another_text() -> None:
    found = _said(("ab", [1, 2]), ("ac", [1, 3]))
    assert (found.cause.kind, found.token, found.character, found.same_text) == ("template", 1, 1, False)
    assert found.cause.words == "the rendered text differs from character 1 on"


@pytest.mark.parametrize(("old", "new", "side"), [("ab", "abc", "old"), ("abc", "ab", "new")])
def test_one_side_goes_on_where_the_other_ends(old: str, new: str, side: str) -> None:
    # Incident I07: the generation prompt now ends with more.
    ids = {"ab": [1, 2], "abc": [1, 2, 3]}
    found = _said((old, ids[old]), (new, ids[new]))
    assert (found.begins, found.token, found.character, found.cause.kind) == (side, 2, 2, "template")
    assert f"the {side} text is the beginning" in found.cause.words


def test_tokens_that_part_before_the_text_does_may_be_the_tokenizers_doing() -> None:
    old, new = ("abcd", [1, 2, 3, 4]), ("abcb", [9, 3, 2])
    assert "the tokens part before that" in _said(old, new).cause.words
    # The same tokenizer on both sides: then only the text can be why.
    assert "the tokens part" not in _said(old, new, same_tokenizer=True).cause.words
    assert "the tokens part" not in _said(("abc", [1, 2, 3]), ("abd", [1, 2, 4])).cause.words


def test_only_one_date_differs() -> None:
    found = _said(("ab", [1, 2]), ("ac", [1, 3]), only_on_this_date=True)
    assert found.cause.kind == "clock"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([0, 1, 2], [1, 2], "1 more token stands in front on the old side"),
        ([1, 2], [0, 0, 1, 2], "2 more tokens stand in front on the new side"),
        ([0, 0, 1, 2], [0, 1, 2], "1 more token stands in front on the old side"),  # incident I13
    ],
)
def test_the_bos_rule_moved(old: list[int], new: list[int], words: str) -> None:
    found = _said(("ab", old), ("ab", new))
    assert (found.cause.kind, found.character) == ("front", 0)
    assert words in found.cause.words


def test_another_token_in_front() -> None:
    assert _said(("ab", [0, 1, 2]), ("ab", [11, 1, 2])).cause.kind == "front"
    # Text, not a token in front of it.
    assert _said(("ab", [1, 2]), ("ab", [9, 2]), {1: "a", 2: "b", 9: "A"}).cause.kind != "front"


def test_a_token_is_added_at_the_end() -> None:
    found = _said(("ab", [1, 2]), ("ab", [1, 2, 11]))
    assert (found.cause.kind, found.begins) == ("end", "old")
    assert "the new side only adds at the end" in found.cause.words


def test_an_empty_text_has_no_front_and_no_end() -> None:
    found = _said(("", []), ("", [0]))
    assert found.cause.kind == "front"
    assert "the new side adds its own" in found.cause.words


def test_an_id_moved() -> None:
    assert _said(("ab", [1, 2]), ("ab", [10, 2])).cause.kind == "vocabulary"


@pytest.mark.parametrize("turned", [False, True])
def test_one_token_on_one_side_is_several_on_the_other(turned: bool) -> None:
    several, one = ("a<think>bc", [1, 6, 7, 8, 2, 3]), ("a<think>bc", [1, 5, 2, 3])
    found = _said(one, several) if turned else _said(several, one)
    side, other = ("old", "new") if turned else ("new", "old")
    assert found.cause.kind == "one-piece"
    assert f"one token on the {side} side is 3 on the {other}" in found.cause.words


def test_the_text_is_cut_otherwise() -> None:
    pieces = {1: "ab", 2: "c", 3: "a", 4: "bc", 5: "d", 6: "e"}
    assert _said(("abcde", [1, 2, 5, 6]), ("abcde", [3, 4, 5, 6]), pieces).cause.kind == "segmentation"


def test_without_text_nothing_is_claimed_of_template_or_tokenizer() -> None:
    found = _said((None, [1, 2]), (None, [1, 3]))
    assert (found.cause.kind, found.same_text, found.character, found.character_unknown) == (
        "unknown", None, None, NO_TEXT
    )  # fmt: skip
    assert "only the beginning differs" in _said((None, [0, 1, 2]), (None, [1, 2])).cause.words
    sides = Sides(_NONE, _NONE)
    hidden = Rendered(None, array("I", [1, 2]), None, text_digest("ab"))
    other = Rendered(None, array("I", [1, 3]), None, text_digest("ab"))
    found = describe("name", 0, hidden, other, sides, only_on_this_date=False)
    assert (found.same_text, found.cause.kind) == (True, "segmentation")


def test_the_part_that_alone_differs_is_named() -> None:
    part = PartDifference("pre-tokenizer", "settings", 1, ("Split: other",))
    inert = PartDifference("decoder", "settings", 1, (), inert="decoder")
    old, new = ("abcde", [9, 3, 4]), ("abcde", [1, 2, 3, 4])
    found = _said(old, new, parts=(part, inert))
    assert found.cause.kind == "tokenizer-part"
    assert "only this can be why: pre-tokenizer (settings)" in found.cause.words
    several = (part, PartDifference("merges", "swapped", 3, ()))
    assert "differ in pre-tokenizer (settings), merges (swapped)" in _said(old, new, parts=several).cause.words
    # Of several, only the post-processor puts tokens behind a text.
    added = PartDifference("post-processor", "settings", 1, ())
    behind = _said(("ab", [1, 2, 11]), ("ab", [1, 2]), parts=(*several, added))
    assert "only this can be why: post-processor" in behind.cause.words


def test_words_quote_no_prompt() -> None:
    for old, new in (
        (("secret a", [1, 2]), ("secret b", [1, 3])),
        (("secret", [1, 2]), ("secret", [1, 3])),
        (("secret", [1, 2]), ("secret", [9])),
    ):
        words = _said(old, new, {1: "secret", 2: "hidden", 3: "hushed", 9: "private"}).cause.words
        assert not any(word in words for word in ("secret", "hidden", "hushed", "private"))


def test_what_looks_alike_is_of_one_kind() -> None:
    assert _said(("ab", [1, 2]), ("ac", [1, 3])).kind == _said(("aab", [1, 1, 2]), ("aac", [1, 1, 3])).kind
    assert _said(("ab", [1, 2]), ("ac", [1, 3])).kind != _said(("ab", [1, 2]), ("ad", [1, 4])).kind
    # Whatever the text begins with.
    assert _said(("ab", [0, 1, 2]), ("ab", [1, 2])).kind == _said(("bb", [0, 2, 2]), ("bb", [2, 2])).kind
