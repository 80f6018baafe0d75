"""Counting without keeping: every item counts, the first ones are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

KEPT = 1000
"""Items that are kept in full."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Tally(Generic[Item]):
    """How many there are, and the first :data:`KEPT` of them."""

    count: int
    first: tuple[Item, ...]


class Tallying(Generic[Item]):
    """A tally that is being made."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[Item] = []

    @property
    def full(self) -> bool:
        """Whether what comes next will only be counted."""
        return len(self._first) >= KEPT

    def add(self, item: Item) -> None:
        """Count one, and keep it where there is room."""
        self.count()
        if not self.full:
            self._first.append(item)

    def count(self) -> None:
        """Count one that is not worth making."""
        self._count += 1

    def done(self) -> Tally[Item]:
        """Return what was counted."""
        return Tally(self._count, tuple(self._first))
