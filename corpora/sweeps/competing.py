"""Strings in which changed BPE merges compete with others: where a changed order shows, if it shows anywhere.

Merging takes the earliest merge that fits, until none does. So two orders can only part where two merges
stand in turned order, one of them a changed one, and a token that one of them makes, or takes, is wanted by
the other: they share a token, or the product of one is joined to a token of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kvgate.corpora.merges import Merge, MergeChange

_ALL = 60_000  # strings in all, for two tokenizers that have little in common
_EACH = 2_000  # of one changed merge
_LEAST = 8
_DESCENDANTS = 400  # tokens made with the help of one changed merge that are looked at


class Competitions:
    """The strings for one change of merges, as the vocabulary writes them.

    Args:
        change: what changed.
        prefix: what the vocabulary writes in front of what continues a word; it goes when tokens are joined.

    """

    def __init__(self, change: MergeChange, prefix: str = "") -> None:
        self._change = change
        self._prefix = len(prefix)
        self._by_left: dict[str, list[Merge]] = defaultdict(list)
        self._by_right: dict[str, list[Merge]] = defaultdict(list)
        self._making: dict[str, list[Merge]] = defaultdict(list)
        for merge in {**change.old, **change.new}:
            self._by_left[merge[0]].append(merge)
            self._by_right[merge[1]].append(merge)
            self._making[self._joined(*merge)].append(merge)
        changed = change.changed
        self.examined = min(len(changed), _ALL // _LEAST)
        """How many of the changed merges :meth:`strings` looks at."""
        self._each = max(_LEAST, min(_EACH, _ALL // max(1, len(changed))))

    def strings(self) -> Iterator[str]:
        """Yield the strings."""
        for merge in self._change.changed[: self.examined]:
            found = self._of(merge)
            yield from (string for string, _ in zip(found, range(self._each), strict=False))

    def _of(self, merge: Merge) -> Iterator[str]:
        left, right = merge
        turned, joined = self._change.turned, self._joined
        yield joined(left, right)
        # The two want the same token.
        for other in self._by_right[left]:
            if turned(merge, other):
                yield joined(other[0], left, right)
        for other in self._by_left[right]:
            if turned(merge, other):
                yield joined(left, right, other[1])
        # A token made with this merge is wanted, next to one that the other merge takes.
        for token in self._descendants(joined(left, right)):
            for _, neighbour in self._by_left[token]:
                for other in self._by_left[neighbour]:
                    if turned(merge, other):
                        yield joined(token, neighbour, other[1])
            for neighbour, _ in self._by_right[token]:
                for other in self._by_right[neighbour]:
                    if turned(merge, other):
                        yield joined(other[0], neighbour, token)
        # A token that the other merge makes is wanted, next to one that this merge takes.
        for _, made in self._by_left[right]:
            if any(turned(merge, other) for other in self._making[made]):
                yield joined(left, right, made)
        for made, _ in self._by_right[left]:
            if any(turned(merge, other) for other in self._making[made]):
                yield joined(made, left, right)

    def _descendants(self, token: str) -> Iterator[str]:
        """Yield a token and those made of it, nearest first."""
        waiting, seen = [token], {token}
        for one in waiting:
            yield one
            for left, right in (*self._by_left[one], *self._by_right[one]):
                made = self._joined(left, right)
                if made not in seen and len(seen) < _DESCENDANTS:
                    seen.add(made)
                    waiting.append(made)

    def _joined(self, *pieces: str) -> str:
        return pieces[0] + "".join(piece[self._prefix :] for piece in pieces[1:])
