"""The tokens on both sides round the place where two renderings part, so aligned that a person sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.corpora.divergence.pieces import Pieces

BEFORE = 4
AFTER = 6


@dataclass(frozen=True)
class Token:
    """One token of one side.

    Attributes:
        index: its place among the ids.
        id: its id.
        text: what it stands for; ``None``: its vocabulary string was not saved.

    """

    index: int
    id: int
    text: str | None

    def reads_as(self, other: Token) -> bool:
        """Whether both are the same token, or are known to stand for the same text."""
        return self.id == other.id or (self.text is not None and self.text == other.text)


@dataclass(frozen=True)
class Row:
    """What stands at one place; ``None`` where a side has nothing there."""

    old: Token | None
    new: Token | None

    @property
    def equal(self) -> bool:
        """Whether both sides have the same id."""
        return self.old is not None and self.new is not None and self.old.id == self.new.id


@dataclass(frozen=True)
class Window:
    """Rows in order.

    Attributes:
        rows: at most :data:`BEFORE` equal ones, then the first difference and what follows.
        first: index of the row with the first difference.
        apart: how many tokens of the old side and of the new stand between the equal ones; ``None``: they do
            not meet again in the window.

    """

    rows: tuple[Row, ...]
    first: int
    apart: tuple[int, int] | None


def window(old: Sequence[int], new: Sequence[int], shared: int, old_pieces: Pieces, new_pieces: Pieces) -> Window:
    """Return the rows round token ``shared``, the first that differs.

    Where a side has more tokens before both agree again, the other side's place is left empty, so that
    equal tokens stand side by side.
    """
    start = max(0, shared - BEFORE)
    left = _tokens(old, shared, old_pieces)
    right = _tokens(new, shared, new_pieces)
    rows = [
        Row(one, other)
        for one, other in zip(
            _tokens(old, start, old_pieces, shared), _tokens(new, start, new_pieces, shared), strict=True
        )
    ]
    first = len(rows)
    apart = _meeting(left, right, both_end=max(len(old), len(new)) <= shared + AFTER)
    gap = apart or (len(left), len(right))
    rows += _beside(left[: gap[0]], right[: gap[1]])
    rows += _beside(left[gap[0] :], right[gap[1] :])[: max(0, AFTER - max(gap))]
    return Window(tuple(rows), first, apart)


def _tokens(ids: Sequence[int], start: int, pieces: Pieces, end: int | None = None) -> list[Token]:
    stop = min(len(ids), start + AFTER) if end is None else end
    return [Token(index, ids[index], pieces.text(ids[index])) for index in range(start, stop)]


def _beside(old: Sequence[Token], new: Sequence[Token]) -> list[Row]:
    return [
        Row(old[index] if index < len(old) else None, new[index] if index < len(new) else None)
        for index in range(max(len(old), len(new)))
    ]


def _meeting(old: Sequence[Token], new: Sequence[Token], *, both_end: bool) -> tuple[int, int] | None:
    """Return after how many tokens both read alike: for two tokens, or for all that is left of both."""
    places = ((i, j) for i in range(len(old) + 1) for j in range(len(new) + 1) if i or j)
    for i, j in sorted(places, key=lambda at: (sum(at), at)):
        left, right = old[i : i + 2], new[j : j + 2]
        if all(one.reads_as(other) for one, other in zip(left, right, strict=False)) and (
            len(left) == len(right) == 2 or (both_end and len(old) - i == len(new) - j < 2)
        ):
            return i, j
    return None
