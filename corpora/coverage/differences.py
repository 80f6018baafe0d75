"""Where two templates differ, piece by piece, and of which pieces it is proved that they print the same.

Pieces before and after a difference are equal and leave the same state, so each difference stands for itself: if
every one of them prints the same from every state, the templates do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvgate.corpora.coverage.equivalence import Effort, equivalent
from kvgate.corpora.coverage.items import Choice, Item, Step, Text, canonical, items_of
from kvgate.corpora.coverage.tree import Node
from kvgate.corpora.coverage.unsettled import is_unsettled

# Aligning is cubic at worst; real templates have fewer statements in one place.
_MAX_ALIGNED = 300 * 300

# By kind: which parts are bodies, and the place of the branch that each is, where it is one.
_BODIES: dict[str, dict[int, int | None]] = {
    "For": {2: 0, 3: None},
    "Macro": {3: 0},
    "CallBlock": {3: 0},
    "FilterBlock": {0: None},
    "With": {2: None},
    "Block": {1: None},
    "AssignBlock": {2: None},
    "Scope": {0: None},
}


@dataclass(frozen=True)
class Difference:
    """One piece in which two templates differ; either side may be empty.

    Attributes:
        old: what the old template has here.
        new: what the new one has here.
        old_arm: the branch of the old template in which it stands; ``None``: in none.
        new_arm: the same of the new one.
        old_line: where it is in the old template.
        new_line: where it is in the new one.
        proved: both print the same for every conversation.

    """

    old: tuple[Item, ...]
    new: tuple[Item, ...]
    old_arm: int | None
    new_arm: int | None
    old_line: int
    new_line: int
    proved: bool


@dataclass(frozen=True)
class _Place:
    old_arm: int | None
    new_arm: int | None
    old_line: int
    new_line: int


def differences(old: Node, new: Node) -> Iterator[Difference]:
    """Every piece in which two templates differ, in order; nothing: they render alike.

    Args:
        old: a template's tree.
        new: the other's.

    """
    if old == new:
        return
    settled = not (is_unsettled(old) or is_unsettled(new))
    if settled:
        old, new = canonical(old), canonical(new)
    yield from _Comparison(settled=settled).bodies(old.many(0), new.many(0), _Place(None, None, 1, 1))


class _Comparison:
    """Compares two templates, piece by piece."""

    def __init__(self, *, settled: bool) -> None:
        self._settled = settled
        self._effort = Effort()

    def bodies(self, old: tuple[Node, ...], new: tuple[Node, ...], place: _Place) -> Iterator[Difference]:
        """Every difference between two bodies."""
        sides = [items_of(body, settled=self._settled) for body in (old, new)]
        yield from self._compare(sides[0], sides[1], place)

    def _compare(self, old: tuple[Item, ...], new: tuple[Item, ...], place: _Place) -> Iterator[Difference]:
        old, new, place = _stripped(old, new, place)
        if not old and not new:
            return
        if self._proved(old, new):
            yield _difference(old, new, place, proved=True)
            return
        for tag, i, j, k, m in _aligned(old, new):
            if tag == "equal":
                for before, after in zip(old[i:j], new[k:m], strict=True):
                    if before != after:
                        yield from self._within(before, after)
                if j:
                    place = _Place(place.old_arm, place.new_arm, old[j - 1].line, new[m - 1].line)
            else:
                yield _difference(old[i:j], new[k:m], place, proved=self._proved(old[i:j], new[k:m]))

    def _proved(self, old: tuple[Item, ...], new: tuple[Item, ...]) -> bool:
        return self._settled and equivalent(old, new, self._effort)

    def _within(self, old: Item, new: Item) -> Iterator[Difference]:
        """Compare the bodies of two items with equal heads."""
        if isinstance(old, Choice) and isinstance(new, Choice):
            sides = [(old.then, new.then), (old.otherwise, new.otherwise)]
            for place, (before, after) in enumerate(sides):
                yield from self._compare(before, after, _Place(old.arm(place), new.arm(place), old.line, new.line))
        elif isinstance(old, Step) and isinstance(new, Step):
            for body, branch in _BODIES[old.node.kind].items():
                arms = [None if branch is None else item.node.arms[branch] for item in (old, new)]
                place_within = _Place(arms[0], arms[1], old.line, new.line)
                yield from self.bodies(old.node.many(body), new.node.many(body), place_within)


def _difference(old: tuple[Item, ...], new: tuple[Item, ...], place: _Place, *, proved: bool) -> Difference:
    old_line = old[0].line if old else place.old_line
    new_line = new[0].line if new else place.new_line
    return Difference(old, new, place.old_arm, place.new_arm, old_line, new_line, proved)


def _stripped(
    old: tuple[Item, ...], new: tuple[Item, ...], place: _Place
) -> tuple[tuple[Item, ...], tuple[Item, ...], _Place]:
    """Cut off what both begin with and what both end with."""
    before, after = list(old), list(new)
    while before and after and _cut(before, after, 0, str.removeprefix):
        pass
    if len(before) < len(old) and len(after) < len(new):
        lines = old[-1 - len(before)].line, new[-1 - len(after)].line
        place = _Place(place.old_arm, place.new_arm, *lines)
    while before and after and _cut(before, after, -1, str.removesuffix):
        pass
    return tuple(before), tuple(after), place


def _cut(old: list[Item], new: list[Item], at: int, without: Callable[[str, str], str]) -> bool:
    """Take one item that both have at an end off both; of two texts, the one that the other begins or ends with."""
    one, other = old[at], new[at]
    if one == other:
        old.pop(at)
        new.pop(at)
        return True
    if not (isinstance(one, Text) and isinstance(other, Text)):
        return False
    for shorter, longer, items, rest in ((one, other, old, new), (other, one, new, old)):
        left = without(longer.text, shorter.text)
        if left != longer.text:
            items.pop(at)
            rest[at] = Text(left, longer.line)
            return True
    return False


def _aligned(old: tuple[Item, ...], new: tuple[Item, ...]) -> list[tuple[str, int, int, int, int]]:
    heads = [_head(item) for item in old], [_head(item) for item in new]
    if heads[0] == heads[1]:
        return [("equal", 0, len(old), 0, len(new))]
    if len(old) * len(new) > _MAX_ALIGNED:
        return [("replace", 0, len(old), 0, len(new))]
    return list(SequenceMatcher(None, *heads, autojunk=False).get_opcodes())


def _head(item: Item) -> Hashable:
    """Return what must be equal for two items to be looked into: all of it but the bodies."""
    if isinstance(item, Choice):
        return ("choice", item.test, item.origin.kind == "If")
    if isinstance(item, Step) and item.node.kind in _BODIES:
        bodies = _BODIES[item.node.kind]
        rest = tuple(part for place, part in enumerate(item.node.parts) if place not in bodies)
        return ("step", item.node.kind, rest)
    return item
