"""What of the chat templates ran while a corpus was rendered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvgate.corpora.coverage.tree import Node, tree_as_data, tree_from, walk
from kvgate.corpora.coverage.wording import branch_words
from kvgate.rules.errors import InputError

_MAX_NAMED = 64


@dataclass(frozen=True)
class Arm:
    """One branch of a template: what may run or not.

    Attributes:
        template: the template's name.
        line: where the statement or expression begins that has the branch.
        condition: in words: ``else of `if tools```.
        executed: whether any conversation ran it.

    """

    template: str
    line: int
    condition: str
    executed: bool

    def __str__(self) -> str:
        return f"{place(self.template, self.line)}: {self.condition}"


@dataclass(frozen=True)
class TemplateCoverage:
    """One template, and what of it ran.

    Attributes:
        tree: its statements, with the branches numbered.
        executed: the numbers of the branches that ran.
        marks: what of its text engines look at; see :func:`kvgate.corpora.coverage.detection.marks_of`.

    """

    tree: Node
    executed: frozenset[int]
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """The templates that rendered a corpus, by name, with what of them ran.

    Attributes:
        templates: ``None`` for a template that cannot be told apart into branches: nothing is known of it.

    """

    templates: Mapping[str, TemplateCoverage | None]

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """Every branch, by template and in the order in which they stand."""
        return tuple(
            Arm(name, node.line, branch_words(node, place), number in covered.executed)
            for name, covered in sorted(self.templates.items())
            if covered is not None
            for node in walk(covered.tree)
            for place, number in enumerate(node.arms)
        )

    @property
    def unexecuted(self) -> tuple[Arm, ...]:
        """The branches that no conversation ran."""
        return tuple(arm for arm in self.arms if not arm.executed)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data; :func:`coverage_from` reads it."""
        return {
            name: None
            if covered is None
            else {
                "tree": tree_as_data(covered.tree),
                "executed": sorted(covered.executed),
                "marks": list(covered.marks),
            }
            for name, covered in sorted(self.templates.items())
        }


def place(template: str, line: int) -> str:
    """Say where something stands: the template is named where it is not the default one."""
    return f"line {line}" if template == "default" else f"template {template!r}, line {line}"


def coverage_from(data: Any, where: str) -> Coverage:
    """Return coverage from its JSON.

    Raises:
        InputError: naming ``where``: it has another shape.

    """
    if not isinstance(data, dict) or len(data) > _MAX_NAMED:
        raise InputError("the template coverage is no object of templates", where=where)
    return Coverage({name: _template_from(value, f"{where}: template {name!r}") for name, value in data.items()})


def _template_from(value: Any, where: str) -> TemplateCoverage | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"tree", "executed", "marks"}:
        raise InputError("expected an object with tree, executed and marks", where=where)
    if not isinstance(value["executed"], list) or not isinstance(value["marks"], list):
        raise InputError("executed and marks are no lists", where=where)
    if not all(isinstance(mark, str) for mark in value["marks"]):
        raise InputError("the marks are no words", where=where)
    tree = tree_from(value["tree"], where)
    count = sum(len(node.arms) for node in walk(tree))
    if not all(type(number) is int and 0 <= number < count for number in value["executed"]):
        raise InputError("the executed branches are no numbers of branches", where=where)
    return TemplateCoverage(tree, frozenset(value["executed"]), tuple(value["marks"]))
