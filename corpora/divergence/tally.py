"""Counting without keeping: every item counts, the first ones are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KEPT = 1000
"""Items, or kinds of items, that are kept in full."""

_NAMED = 20  # of one kind

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

    def add(self, item: Item) -> None:
        """Count one, and keep it where there is room."""
        self._count += 1
        if len(self._first) < KEPT:
            self._first.append(item)

    def done(self) -> Tally[Item]:
        """Return what was counted."""
        return Tally(self._count, tuple(self._first))


@dataclass(frozen=True)
class Group(Generic[Item]):
    """What is alike.

    Attributes:
        example: the first of it.
        count: how many there are.
        names: where the first of them are.

    """

    example: Item
    count: int
    names: tuple[str, ...]


class Grouping(Generic[Item]):
    """Groups that are being made: of the first :data:`KEPT` kinds."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, tuple[Item, list[str]]] = {}
        self._counts: Counter[Hashable] = Counter()

    def add(self, kind: Hashable, name: str, item: Item) -> None:
        """Add an item to its kind."""
        if kind not in self._groups:
            if len(self._groups) >= KEPT:
                return
            self._groups[kind] = (item, [])
        self._counts[kind] += 1
        if len(names := self._groups[kind][1]) < _NAMED:
            names.append(name)

    def done(self) -> tuple[Group[Item], ...]:
        """Return the groups, the largest first, and in order of appearance where they are as large."""
        return tuple(
            Group(self._groups[kind][0], count, tuple(self._groups[kind][1]))
            for kind, count in self._counts.most_common()
        )
