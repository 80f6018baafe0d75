"""Walks two snapshots side by side, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotFile
from kvgate.rules.errors import InputError

MAX_WAITING = 64 << 20
"""Token ids and characters of conversations that may wait for their other side at once."""


@dataclass(frozen=True)
class Pair:
    """What both sides have under one id; ``None``: nothing."""

    id: str
    old: SnapshotEntry | None
    new: SnapshotEntry | None


def paired(old: SnapshotFile, new: SnapshotFile) -> Iterator[Pair]:
    """Yield what each side has under one id, and last what only one side has.

    Snapshots of one corpus have its order, so that nothing waits. What stands elsewhere in the other file waits
    until it is found.

    Raises:
        InputError: a snapshot is malformed, or the two hold so much in another order that it cannot be kept.

    """
    waiting_old, waiting_new = _Waiting(), _Waiting()
    for left, right in zip_longest(old.entries(), new.entries()):
        if left is not None and right is not None and left.id == right.id:
            yield Pair(left.id, left, right)
            continue
        if left is not None and (found := waiting_old.meet(left, waiting_new)) is not None:
            yield Pair(left.id, left, found)
        if right is not None and (found := waiting_new.meet(right, waiting_old)) is not None:
            yield Pair(right.id, found, right)
        if waiting_old.weight + waiting_new.weight > MAX_WAITING:
            raise InputError(
                "the two snapshots hold too many other conversations, or the same ones in another order",
                where=str(new.path),
                hint="render one corpus on both sides",
            )
    yield from (Pair(entry.id, entry, None) for entry in waiting_old.entries.values())
    yield from (Pair(entry.id, None, entry) for entry in waiting_new.entries.values())


class _Waiting:
    """What one side has and the other has not shown yet."""

    def __init__(self) -> None:
        self.entries: dict[str, SnapshotEntry] = {}
        self.weight = 0

    def meet(self, entry: SnapshotEntry, others: _Waiting) -> SnapshotEntry | None:
        """Return what of the other side waits for ``entry``; else let it wait here."""
        found = others.entries.pop(entry.id, None)
        if found is None:
            self.entries[entry.id] = entry
            self.weight += _weight(entry)
        else:
            others.weight -= _weight(found)
        return found


def _weight(entry: SnapshotEntry) -> int:
    return 1 + sum(len(render.ids) + len(render.text or "") for render in entry.renders)


def renderings(old: SnapshotEntry, new: SnapshotEntry) -> Iterator[tuple[Rendered, Rendered]]:
    """Yield what each side made of one conversation on each date.

    Where only one side's template reads the clock, the other side's one rendering stands for both dates.
    """
    for date in range(max(len(old.renders), len(new.renders))):
        yield old.renders[min(date, len(old.renders) - 1)], new.renders[min(date, len(new.renders) - 1)]
