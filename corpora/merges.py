"""What changed between two lists of BPE merges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Merge = tuple[str, str]


@dataclass(frozen=True)
class MergeChange:
    """The merges that stand in another order, and those of one side alone.

    Attributes:
        moved: a smallest set of merges without which both sides have the rest in the same order.
        removed: merges of the old side alone, in its order.
        added: merges of the new side alone, in its order.
        old: rank by merge, the lower the earlier it is applied.
        new: likewise.

    """

    moved: tuple[Merge, ...]
    removed: tuple[Merge, ...]
    added: tuple[Merge, ...]
    old: Mapping[Merge, int]
    new: Mapping[Merge, int]

    @property
    def changed(self) -> tuple[Merge, ...]:
        """All that moved, went or came."""
        return self.moved + self.removed + self.added

    def turned(self, one: Merge, other: Merge) -> bool:
        """Whether the two stand in another order in the new list than in the old one; a missing one is last."""
        last = len(self.old) + len(self.new)
        before = self.old.get(one, last) < self.old.get(other, last)
        return before != (self.new.get(one, last) < self.new.get(other, last))


def ranks(merges: Sequence[Sequence[str]]) -> dict[Merge, int]:
    """Return rank by merge of a list as tokenizers writes it, pairs in order; of equal ones the last counts."""
    return {(left, right): rank for rank, (left, right) in enumerate(merges)}


def change(old: Mapping[Merge, int], new: Mapping[Merge, int]) -> MergeChange:
    """Compare two lists of merges, given as rank by merge."""
    removed = tuple(merge for merge in old if merge not in new)
    added = tuple(merge for merge in new if merge not in old)
    common = sorted((merge for merge in old if merge in new), key=old.__getitem__)
    kept = _longest_rising([new[merge] for merge in common])
    moved = tuple(merge for place, merge in enumerate(common) if place not in kept)
    return MergeChange(moved, removed, added, old, new)


def _longest_rising(values: Sequence[int]) -> set[int]:
    """Return the places of a longest rising subsequence of distinct values."""
    ends: list[int] = []  # the smallest value in which a rising run of each length can end
    places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(value)
            places.append(place)
        else:
            ends[length] = value
            places[length] = place
    kept: set[int] = set()
    place = places[-1] if places else -1
    while place >= 0:
        kept.add(place)
        place = before[place]
    return kept
