"""Sums up, side by side, how much of what was measured held: prefixes of turns, ids of generated answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvgate.corpora.divergence.tally import Tally, Tallying


@dataclass(frozen=True)
class SideHolding:
    """One side.

    Attributes:
        measured: how many were measured.
        held: how many of them held.
        unmeasured: how many could not be measured.

    """

    measured: int
    held: int
    unmeasured: int


@dataclass(frozen=True)
class Holding:
    """Both sides, each measured by itself.

    Attributes:
        old: the old side.
        new: the new side.
        broken: ids of conversations in which all held on the old side and not on the new.
        mended: the other way round.
        failing: ids of those in which something failed on both.

    """

    old: SideHolding
    new: SideHolding
    broken: Tally[str]
    mended: Tally[str]
    failing: Tally[str]


class HoldingTally:
    """Takes conversation after conversation."""

    def __init__(self) -> None:
        self._sides = ([0, 0, 0], [0, 0, 0])
        self._broken: Tallying[str] = Tallying()
        self._mended: Tallying[str] = Tallying()
        self._failing: Tallying[str] = Tallying()

    def add(self, name: str, old: Iterable[bool | None] | None, new: Iterable[bool | None] | None) -> None:
        """Take what was measured in one conversation on each side; ``None``: nothing was recorded."""
        whole = [self._side(counts, found) for counts, found in zip(self._sides, (old, new), strict=True)]
        if whole == [True, False]:
            self._broken.add(name)
        elif whole == [False, True]:
            self._mended.add(name)
        elif whole == [False, False]:
            self._failing.add(name)

    def done(self) -> Holding | None:
        """Return the sums; ``None``: nothing was measured on either side."""
        if not any(any(counts) for counts in self._sides):
            return None
        old, new = (SideHolding(*counts) for counts in self._sides)
        return Holding(old, new, self._broken.done(), self._mended.done(), self._failing.done())

    @staticmethod
    def _side(counts: list[int], found: Iterable[bool | None] | None) -> bool | None:
        """Count one side; return whether all held, ``None``: nothing was measured."""
        whole: bool | None = None
        for held in found or ():
            if held is None:
                counts[2] += 1
                continue
            counts[0] += 1
            counts[1] += held
            whole = held and whole is not False
        return whole
