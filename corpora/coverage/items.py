"""The statements of a template as what they do: text, values, choices, and the rest as it is.

Different ways to write one thing come out equal here, where jinja2 gives them the same meaning: ``{{ 'a' + b }}`` and
``a{{ b }}``, ``{{ 'a' if c }}`` and ``{% if c %}a{% endif %}``, ``m['role']`` and ``m.role``. Where two ways differ
only in that one of them fails, they count as equal: a failed rendering leaves no tokens behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from kvgate.corpora.coverage.tree import Node, Part, walk


@dataclass(frozen=True)
class Text:
    """Fixed text."""

    text: str
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Value:
    """What an expression prints."""

    node: Node

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.node.line


@dataclass(frozen=True)
class Choice:
    """One of two things, by a condition."""

    test: Node
    then: tuple[Item, ...]
    otherwise: tuple[Item, ...]
    origin: Node = field(compare=False)

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.origin.line

    def arm(self, place: int) -> int | None:
        """Return the number of the branch that leads to ``then`` (0) or ``otherwise`` (1); ``None``: it is none.

        What stands left of ``and`` or ``or`` always runs.
        """
        if len(self.origin.arms) == 2:
            return self.origin.arms[place]
        return self.origin.arms[0] if (self.origin.kind == "And") == (place == 0) else None


@dataclass(frozen=True)
class Refusal:
    """``raise_exception``: no text at all, whatever the message says."""

    origin: Node = field(compare=False)

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.origin.line


@dataclass(frozen=True)
class Step:
    """Any other statement: a loop, an assignment, a macro."""

    node: Node

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.node.line


Item: TypeAlias = Text | Value | Choice | Refusal | Step

# Attributes of what a template can hold a value in: for these, m.x and m['x'] differ.
_ATTRIBUTES = frozenset(name for kind in (dict, list, tuple, str, int, float, range) for name in dir(kind))


def items_of(statements: tuple[Node, ...], *, settled: bool) -> tuple[Item, ...]:
    """Return what statements do, one after the other.

    Args:
        statements: of a canonical tree, see :func:`canonical`.
        settled: an expression means the same wherever it stands, so that other ways to write it can be told; if
            not, expressions are left as they are.

    """
    return _merged(item for statement in statements for item in _statement(statement, settled=settled))


def _statement(statement: Node, *, settled: bool) -> Iterator[Item]:
    if statement.kind == "Output":
        for each in statement.many(0):
            if settled:
                yield from _printed(each)
            else:
                yield Text(each.word(0), each.line) if each.kind == "TemplateData" else Value(each)
    elif statement.kind == "If":
        then, otherwise = (items_of(statement.many(place), settled=settled) for place in (1, 2))
        yield Choice(statement.one(0), then, otherwise, statement)
    else:
        yield Step(statement)


def _printed(node: Node) -> Iterator[Item]:
    """Return what printing an expression does."""
    if node.kind == "TemplateData":
        yield Text(node.word(0), node.line)
    elif node.kind == "Const" and node.word(0) in ("str", "int", "bool", "NoneType"):
        yield Text(node.word(1), node.line)
    elif node.kind == "Concat":
        for each in node.many(0):
            yield from _printed(each)
    elif node.kind == "Add" and any(map(_is_text, _sum(node))):
        # One string in a sum makes all of it strings, or fails.
        for each in _sum(node):
            yield from _printed(each)
    elif node.kind == "CondExpr":
        other = node.maybe(2)
        yield Choice(node.one(0), _all(node.one(1)), () if other is None else _all(other), node)
    elif node.kind == "Or":
        yield Choice(node.one(0), _all(node.one(0)), _all(node.one(1)), node)
    elif node.kind == "And":
        yield Choice(node.one(0), _all(node.one(1)), _all(node.one(0)), node)
    elif node.kind == "Call" and node.one(0).kind == "Name" and node.one(0).word(0) == "raise_exception":
        yield Refusal(node)
    else:
        yield Value(node)


def _all(node: Node) -> tuple[Item, ...]:
    return _merged(_printed(node))


def _sum(node: Node) -> Iterator[Node]:
    if node.kind == "Add":
        yield from _sum(node.one(0))
        yield from _sum(node.one(1))
    else:
        yield node


def _is_text(node: Node) -> bool:
    return node.kind == "Concat" or (node.kind == "Const" and node.word(0) == "str")


def _merged(items: Iterator[Item]) -> tuple[Item, ...]:
    merged: list[Item] = []
    for item in items:
        before = merged[-1] if merged else None
        if isinstance(item, Text) and isinstance(before, Text):
            merged[-1] = Text(before.text + item.text, before.line)
        elif not isinstance(item, Text) or item.text:
            merged.append(item)
    return tuple(merged)


def canonical(node: Node) -> Node:
    """Write the whole of a tree in one way where there are two that mean the same.

    ``m['x']`` becomes ``m.x`` where no kind of value has an attribute ``x``; the generation tag, which prints its
    body, is taken off where nothing is set in it.
    """
    parts = tuple(_canonical(part) for part in node.parts)
    if node.kind == "Getitem":
        subject, argument, use = parts
        if isinstance(argument, Node) and argument.kind == "Const" and argument.word(0) == "str":
            name = argument.word(1)
            if name not in _ATTRIBUTES and not name.startswith("_"):
                return Node("Getattr", (subject, name, use), node.line, node.arms)
    return Node(node.kind, parts, node.line, node.arms)


def _canonical(part: Part) -> Part:
    if isinstance(part, Node):
        return canonical(part)
    if not isinstance(part, tuple):
        return part
    found: list[Part] = []
    for each in map(_canonical, part):
        if isinstance(each, Node) and each.kind == "Scope" and _sets_nothing(each):
            found += each.many(0)
        else:
            found.append(each)
    return tuple(found)


# Names that mean something else within: the generation tag makes its body a call block.
_OF_CALLS = frozenset({"caller", "kwargs", "varargs"})


def _sets_nothing(scope: Node) -> bool:
    names = {node.word(0) for node in walk(scope) if node.kind == "Name"}
    return not names & _OF_CALLS and not any(map(_sets, scope.many(0)))


def _sets(statement: Node) -> bool:
    """Whether something that is set in a statement is there after it: what is set in a loop ends with it."""
    if statement.kind in ("Assign", "AssignBlock", "Macro", "CallBlock", "With", "Block"):
        return True
    bodies = () if statement.kind == "For" else statement.parts
    return any(_sets(each) for body in bodies if isinstance(body, tuple) for each in body if isinstance(each, Node))
