"""What a changed template may do that equal output on a corpus does not show.

Equal output of both templates proves nothing of what no conversation ran, and little of what one did: ``content`` and
``content|trim`` print the same until a conversation ends in a space. So a change is accepted only where it is proved,
without regard to any corpus, that both ways of writing it print the same
(:mod:`kvgate.corpora.coverage.equivalence`), and where, as the check on that proof, every branch of it ran on both
sides. Everything else is named: first the branches that a change adds, edits or reaches and that no conversation ran,
because another conversation may show a divergence there; and where all of them ran, the change itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kvgate.corpora.coverage.covered import Coverage, TemplateCoverage
from kvgate.corpora.coverage.differences import Difference, differences
from kvgate.corpora.coverage.items import Choice, Item, Refusal, Step, Text
from kvgate.corpora.coverage.taint import reached
from kvgate.corpora.coverage.tree import Node, walk
from kvgate.corpora.coverage.wording import branch_words, cut, quoted

Reason = Literal["unexecuted", "undecided", "unrecorded", "one-sided"]


@dataclass(frozen=True)
class UncoveredArm:
    """One thing about a changed template that the corpus leaves open.

    Attributes:
        reason: ``unexecuted``: a branch that a change touches or reaches ran in no conversation; ``undecided``: all
            branches ran, and whether the change prints the same for other values is not proved; ``unrecorded``:
            which branches a template has, or ran, is not known; ``one-sided``: only one side has the template.
        side: whose template it is: ``old`` or ``new``.
        template: the template's name.
        line: where it is in that side's template.
        condition: the branch in words (``else of `if tools```), or what changed.
        change: what changed, in words; empty where ``condition`` says it.

    """

    reason: Reason
    side: Literal["old", "new"]
    template: str
    line: int
    condition: str
    change: str = field(default="", compare=False)

    def __str__(self) -> str:
        name = "" if self.template == "default" else f" {self.template!r}"
        where = f"{self.side} template{name}, line {self.line}"
        if self.reason == "unexecuted":
            return f"{where}: {self.condition} ran in no conversation" + (f" ({self.change})" if self.change else "")
        if self.reason == "undecided":
            return f"{where}: {self.condition}: equal on this corpus, not proved for other values"
        return f"{self.side} template {self.template!r}: {self.condition}"


def uncovered_changes(old: Coverage, new: Coverage) -> tuple[UncoveredArm, ...]:
    """Return what equal output on the whole corpus does not show; nothing: it shows that the templates are alike.

    To be asked where both sides rendered the same conversations to the same text and ids, each with its own
    renderer, and only the template differs: an upgrade of the renderer itself is not looked at here.

    Args:
        old: what ran on the old side.
        new: what ran on the new side.

    """
    found: dict[UncoveredArm, None] = {}
    for name in sorted(old.templates.keys() | new.templates.keys()):
        if name not in old.templates or name not in new.templates:
            side: Literal["old", "new"] = "old" if name in old.templates else "new"
            found[UncoveredArm("one-sided", side, name, 1, "the other side has no template of this name")] = None
            continue
        before, after = old.templates[name], new.templates[name]
        if before is None or after is None:
            side = "old" if before is None else "new"
            found[UncoveredArm("unrecorded", side, name, 1, "its branches could not be told apart")] = None
            continue
        found.update(dict.fromkeys(_changes(name, before, after)))
    return tuple(found)


def _changes(name: str, old: TemplateCoverage, new: TemplateCoverage) -> Iterator[UncoveredArm]:
    try:
        found = list(differences(old.tree, new.tree))
        open_ones = [each for each in found if not each.proved]
        reaches = (
            reached(old.tree, (node for each in open_ones for node in _heads(each.old))),
            reached(new.tree, (node for each in open_ones for node in _heads(each.new))),
        )
    except RecursionError:
        yield UncoveredArm("undecided", "new", name, 1, "nested too deeply to be compared")
        return
    sides = _Side("old", name, old), _Side("new", name, new)
    for difference in found:
        change = change_words(difference)
        unexecuted = _unexecuted(sides, (_enclosing(difference.old_arm), _enclosing(difference.new_arm)), change)
        if not unexecuted:
            # What stands unchanged within a proof is no part of the change.
            arms_of = _arms_of_choices if difference.proved else _arms_of
            unexecuted = _unexecuted(sides, (arms_of(difference.old), arms_of(difference.new)), change)
        yield from unexecuted
        if not difference.proved and not unexecuted:
            side: Literal["old", "new"] = "new" if difference.new else "old"
            line = difference.new_line if difference.new else difference.old_line
            yield UncoveredArm("undecided", side, name, line, change)
    yield from _unexecuted(sides, reaches, "it reads what a change sets")


class _Side:
    """One side's template, with its branches at hand by number."""

    def __init__(self, side: Literal["old", "new"], name: str, covered: TemplateCoverage) -> None:
        self._side: Literal["old", "new"] = side
        self._name = name
        self._executed = covered.executed
        self._branches = {
            number: (node, place) for node in walk(covered.tree) for place, number in enumerate(node.arms)
        }

    def missing(self, arms: frozenset[int], change: str) -> list[UncoveredArm]:
        """Say of each of these branches that ran in no conversation where it is."""
        return [
            UncoveredArm("unexecuted", self._side, self._name, node.line, branch_words(node, branch), change)
            for node, branch in (self._branches[number] for number in sorted(arms - self._executed))
        ]


def _unexecuted(
    sides: tuple[_Side, _Side], arms: tuple[frozenset[int], frozenset[int]], change: str
) -> list[UncoveredArm]:
    """Name branches that ran in no conversation; once where both templates have them."""
    new = sides[1].missing(arms[1], change)
    named = {arm.condition for arm in new}
    return new + [arm for arm in sides[0].missing(arms[0], change) if arm.condition not in named]


def _enclosing(arm: int | None) -> frozenset[int]:
    return frozenset(() if arm is None else (arm,))


def _arms_of(items: tuple[Item, ...]) -> frozenset[int]:
    """Return the branches that a piece of a template has."""
    return frozenset(number for head in _heads(items) for node in walk(head) for number in node.arms)


def _arms_of_choices(items: tuple[Item, ...]) -> frozenset[int]:
    """Return the branches that a piece of a template has, without those within its loops."""
    arms: frozenset[int] = frozenset()
    for item in items:
        if isinstance(item, Choice):
            tests = (number for node in walk(item.test) for number in node.arms)
            arms |= frozenset(item.origin.arms) | frozenset(tests)
            arms |= _arms_of_choices(item.then) | _arms_of_choices(item.otherwise)
        elif not isinstance(item, (Text, Step)):
            arms |= _arms_of((item,))
    return arms


def _heads(items: tuple[Item, ...]) -> Iterator[Node]:
    for item in items:
        if not isinstance(item, Text):
            yield item.origin if isinstance(item, (Choice, Refusal)) else item.node


def change_words(difference: Difference) -> str:
    """Say what a difference is: ``{{ a|trim }}`` instead of ``{{ a }}``."""
    old, new = _words(difference.old), _words(difference.new)
    if not difference.old:
        return f"{new} is new"
    if not difference.new:
        return f"{old} is gone"
    return f"{new} instead of {old}" if old != new else f"a change within {new}"


def _words(items: tuple[Item, ...]) -> str:
    return " ".join([_word(item) for item in items[:2]] + ["…"] * (len(items) > 2))


def _word(item: Item) -> str:
    if isinstance(item, Text):
        return cut(repr(item.text))
    return quoted(item.origin if isinstance(item, (Choice, Refusal)) else item.node)
