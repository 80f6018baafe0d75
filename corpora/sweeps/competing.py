"""Strings in which changed BPE merges compete with others: where a changed order shows, if it shows anywhere.

Merging takes the earliest merge that fits, until none does. So two orders can only part where two merges
stand in turned order, one of them a changed one, and both want the same token: as they stand, or after one of
them has made a token that goes into others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from kvgate.corpora.tokenizers.merges import Merge, MergeChange

_ALL = 60_000  # strings in all, for two tokenizers that have little in common
_EACH = 2_000  # of one changed merge
_LEAST = 8
_DESCENDANTS = 400  # tokens made with the help of one changed merge that are looked at
_FEW = 16  # changed merges, so few that looking for what they go into beats sorting all merges

_Index = defaultdict[str, list[Merge]]


class Competitions:
    """The strings for one change of merges, as the vocabulary writes them.

    Args:
        change: what changed.
        merges: all merges of both sides; twice is no harm.
        prefix: what the vocabulary writes in front of what continues a word; it goes when tokens are joined.

    """

    def __init__(self, change: MergeChange, merges: Iterable[Sequence[str]], prefix: str = "") -> None:
        self._change = change
        self._prefix = len(prefix)
        changed = change.changed
        self.examined = min(len(changed), _ALL // _LEAST)
        """How many of the changed merges :meth:`strings` looks at."""
        self._each = max(_LEAST, min(_EACH, _ALL // max(1, len(changed))))
        if len(changed) <= _FEW:
            # What is made of a token holds its string.
            made = {self._joined(*merge)[self._prefix :] for merge in changed}
            merges = [merge for merge in merges if any(one in merge[0] or one in merge[1] for one in made)]
        # Only merges between the first and the last changed place can stand in turned order.
        self._others = _indexed({**change.old, **change.new})
        self._joins = _indexed(dict.fromkeys((merge[0], merge[1]) for merge in merges))

    def strings(self) -> Iterator[str]:
        """Yield the strings."""
        for merge in self._change.changed[: self.examined]:
            yield from islice(self._of(merge), self._each)

    def _of(self, merge: Merge) -> Iterator[str]:
        left, right = merge
        turned, joined = self._change.turned, self._joined
        yield joined(left, right)
        # The two want the same token.
        others_by_left, others_by_right = self._others
        for other in others_by_right.get(left, ()):
            if turned(merge, other):
                yield joined(other[0], left, right)
        for other in others_by_left.get(right, ()):
            if turned(merge, other):
                yield joined(left, right, other[1])
        # A token made with the help of this merge wants its neighbour, as the other merge does.
        by_left, by_right = self._joins
        for token in self._descendants(joined(left, right)):
            for _, neighbour in by_left.get(token, ()):
                for other in others_by_left.get(neighbour, ()):
                    if turned(merge, other):
                        yield joined(token, neighbour, other[1])
            for neighbour, _ in by_right.get(token, ()):
                for other in others_by_right.get(neighbour, ()):
                    if turned(merge, other):
                        yield joined(other[0], neighbour, token)

    def _descendants(self, token: str) -> Iterator[str]:
        """Yield a token and those made of it, nearest first."""
        waiting, seen = [token], {token}
        by_left, by_right = self._joins
        for one in waiting:
            yield one
            for merge in (*by_left.get(one, ()), *by_right.get(one, ())):
                made = self._joined(*merge)
                if made not in seen and len(seen) < _DESCENDANTS:
                    seen.add(made)
                    waiting.append(made)

    def _joined(self, *pieces: str) -> str:
        return pieces[0] + "".join(piece[self._prefix :] for piece in pieces[1:])


def _indexed(merges: Iterable[Merge]) -> tuple[_Index, _Index]:
    """Return the merges by their left and by their right token."""
    by_left: _Index = defaultdict(list)
    by_right: _Index = defaultdict(list)
    for merge in merges:
        by_left[merge[0]].append(merge)
        by_right[merge[1]].append(merge)
    return by_left, by_right
