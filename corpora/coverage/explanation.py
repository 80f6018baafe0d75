"""Says which lines of two templates make one conversation render differently, as far as that can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvgate.corpora.coverage.changes import change_words
from kvgate.corpora.coverage.covered import Coverage, place
from kvgate.corpora.coverage.differences import Difference, differences
from kvgate.corpora.coverage.items import Choice, Item, Step, Text
from kvgate.corpora.coverage.tree import walk

# A reader needs the likely ones; the templates themselves hold the rest.
_NAMED = 3


@dataclass(frozen=True)
class TemplateCause:
    """One change between two templates that can be why a conversation renders differently.

    Attributes:
        template: the template's name.
        old_line: where it is in the old template.
        new_line: where it is in the new one.
        change: what changed, in words: ``'a' instead of 'b'``.
        only: no other change of the templates ran in any conversation.

    """

    template: str
    old_line: int
    new_line: int
    change: str
    only: bool

    def __str__(self) -> str:
        return f"{place(self.template, self.new_line)} of the template: {self.change}"


class Explainer:
    """Explains differences between texts that two templates rendered; made once for a pair of snapshots.

    The words that it gives quote the templates, never a conversation.

    Args:
        old: which branches ran on the old side, as the snapshot's footer has it.
        new: the same of the new side.

    """

    def __init__(self, old: Coverage, new: Coverage) -> None:
        self._ran = [
            (name, difference)
            for name in sorted(old.templates.keys() & new.templates.keys())
            for difference in _ran(old, new, name)
        ]

    def explain(self, old: str, new: str, at: int) -> tuple[TemplateCause, ...]:
        """Return what can be why these texts differ, the likeliest first; nothing: it is not the templates' text.

        A change that ran in no conversation, or is proved to print the same, is none. Of several, those come first
        whose own text stands where the texts part.

        Args:
            old: what the old template rendered of a conversation.
            new: what the new one rendered of it.
            at: how many characters both begin with.

        """
        found = [(self._seen(difference, old, new, at), name, difference) for name, difference in self._ran]
        found.sort(key=lambda each: -each[0])  # stable: the order of the template else
        if found and found[0][0]:
            found = [each for each in found if each[0]]
        return tuple(
            TemplateCause(name, each.old_line, each.new_line, change_words(each), len(self._ran) == 1)
            for _, name, each in found[:_NAMED]
        )

    def _seen(self, difference: Difference, old: str, new: str, at: int) -> int:
        """Return how much text of the change stands where the texts part."""
        lengths = [
            len(piece)
            for items, text in ((difference.old, old), (difference.new, new))
            for piece in _texts(items)
            if piece and text.find(piece, max(0, at - len(piece)), at + len(piece) + 1) >= 0
        ]
        return max(lengths, default=0)


def _ran(old: Coverage, new: Coverage, name: str) -> Iterator[Difference]:
    before, after = old.templates[name], new.templates[name]
    if before is None or after is None:
        return
    try:
        found = list(differences(before.tree, after.tree))
    except RecursionError:
        return
    for each in found:
        executed = each.old_arm is None or each.old_arm in before.executed or each.new_arm in after.executed
        if executed and not each.proved:
            yield each


def _texts(items: tuple[Item, ...]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Text):
            yield item.text
        elif isinstance(item, Choice):
            yield from _texts(item.then)
            yield from _texts(item.otherwise)
        elif isinstance(item, Step):
            for node in walk(item.node):
                if node.kind == "TemplateData" or (node.kind == "Const" and node.word(0) == "str"):
                    yield node.word(len(node.parts) - 1)
