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
        old: rank by merge, the lower the earlier it is applied; of those between the first and the last
            place in which the lists differ. All others are in the same order to these and to each other.
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
        """Whether two of ``old`` and ``new`` stand in another order in the new list; a missing one is last."""
        last = float("inf")
        before = self.old.get(one, last) < self.old.get(other, last)
        return before != (self.new.get(one, last) < self.new.get(other, last))


def change(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> MergeChange:
    """Compare two lists of merges, pairs in the order in which they are applied; of equal ones the last counts."""
    shorter = min(len(old), len(new))
    start = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    tail = next((back for back in range(shorter - start) if old[-1 - back] != new[-1 - back]), shorter - start)
    before, after = _ranks(old, start, tail), _ranks(new, start, tail)
    removed = tuple(merge for merge in before if merge not in after)
    added = tuple(merge for merge in after if merge not in before)
    common = sorted((merge for merge in before if merge in after), key=before.__getitem__)
    kept = _longest_rising([after[merge] for merge in common])
    moved = tuple(merge for place, merge in enumerate(common) if place not in kept)
    # Two that changed places say more than one of them and what stands between them.
    displaced = tuple(merge for merge in common if before[merge] != after[merge])
    if len(displaced) <= len(moved):
        moved = displaced
    return MergeChange(moved, removed, added, before, after)


def _ranks(merges: Sequence[Sequence[str]], start: int, tail: int) -> dict[Merge, int]:
    return {(merges[rank][0], merges[rank][1]): rank for rank in range(start, len(merges) - tail)}


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
