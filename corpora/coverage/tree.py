"""A chat template as plain data: its statements and expressions, with the branches numbered.

The bounded child makes it (:mod:`kvgate.corpora.coverage.recording`) and a snapshot carries it as JSON, so that two
templates can be compared without parsing either of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

from kvgate.rules.errors import InputError

Part: TypeAlias = Union["Node", str, bool, tuple["Part", ...], None]


@dataclass(frozen=True)
class Node:
    """One statement or expression; equal where the template says the same, wherever it stands.

    Attributes:
        kind: the name that jinja2 gives it; :data:`SHAPES` holds them all.
        parts: its fields in the order of :data:`SHAPES`; an ``elif`` is an ``If`` in the else part.
        line: where it begins in the template.
        arms: the numbers of its branches, in the order of :data:`ARMS`.

    """

    kind: str
    parts: tuple[Part, ...]
    line: int = field(default=0, compare=False)
    arms: tuple[int, ...] = field(default=(), compare=False)

    def one(self, place: int) -> Node:
        """Return the part at ``place``, where the shape says that it is one node."""
        part = self.parts[place]
        assert isinstance(part, Node)  # noqa: S101 - checked by the shape
        return part

    def maybe(self, place: int) -> Node | None:
        """Return the part at ``place``, where the shape says that it may be missing."""
        return None if self.parts[place] is None else self.one(place)

    def many(self, place: int) -> tuple[Node, ...]:
        """Return the part at ``place``, where the shape says that it is any number of nodes."""
        part = self.parts[place]
        assert isinstance(part, tuple)  # noqa: S101 - checked by the shape
        return tuple(each for each in part if isinstance(each, Node))

    def word(self, place: int) -> str:
        """Return the part at ``place``, where the shape says that it is text."""
        part = self.parts[place]
        assert isinstance(part, str)  # noqa: S101 - checked by the shape
        return part


# One letter for each part. n: a node; ?: a node or nothing; *: nodes; s: text; f: true or false; w: words, alone or
# in pairs. The kinds and the order of their fields are jinja2's (src/jinja2/nodes.py, 3.1.6), except that If has its
# test, what is done, and what is done else; that Const has its type and value as text; and that Scope also stands
# for transformers' generation tag.
_BINARY = dict.fromkeys(["Mul", "Div", "FloorDiv", "Add", "Sub", "Mod", "Pow", "And", "Or"], "nn")
SHAPES = {
    **_BINARY,
    **dict.fromkeys(["Not", "Neg", "Pos"], "n"),
    "Template": "*", "Output": "*", "For": "nn**?f", "If": "n**", "Macro": "s***", "CallBlock": "n***",
    "FilterBlock": "*n", "With": "***", "Block": "s*ff", "Include": "nff", "Import": "nsf", "FromImport": "nwf",
    "Extends": "n", "ExprStmt": "n", "Assign": "nn", "AssignBlock": "n?*", "Scope": "*", "Continue": "", "Break": "",
    "Name": "ss", "NSRef": "ss", "Const": "ss", "TemplateData": "s", "Tuple": "*s", "List": "*", "Dict": "*",
    "Pair": "nn", "Keyword": "sn", "CondExpr": "nn?", "Filter": "?s**??", "Test": "ns**??", "Call": "n**??",
    "Getitem": "nns", "Getattr": "nss", "Slice": "???", "Concat": "*", "Compare": "n*", "Operand": "sn",
    "ExtensionAttribute": "ss",
}  # fmt: skip
"""The parts of every kind of node."""

ARMS = {
    "If": ("if", "else"),
    "For": ("body", "none"),
    "CondExpr": ("then", "else"),
    "And": ("right",),
    "Or": ("right",),
    "Macro": ("body",),
    "CallBlock": ("body",),
}
"""The branches that each kind of node has: what may run or not."""

_Check: TypeAlias = Callable[[Part], bool]
_CHECKS: dict[str, _Check] = {
    "n": lambda part: isinstance(part, Node),
    "?": lambda part: part is None or isinstance(part, Node),
    "*": lambda part: isinstance(part, tuple) and all(isinstance(each, Node) for each in part),
    "s": lambda part: isinstance(part, str),
    "f": lambda part: isinstance(part, bool),
    "w": lambda part: isinstance(part, tuple) and all(_is_word(each) for each in part),
}


def _is_word(part: Part) -> bool:
    return isinstance(part, str) or (
        isinstance(part, tuple) and len(part) == 2 and all(isinstance(each, str) for each in part)
    )


def well_formed(node: Node) -> bool:
    """Whether the node has the parts and branches of its kind; its children are not looked at."""
    shape = SHAPES.get(node.kind)
    return (
        shape is not None
        and len(node.parts) == len(shape)
        and all(_CHECKS[letter](part) for letter, part in zip(shape, node.parts, strict=True))
        and len(node.arms) == len(ARMS.get(node.kind, ()))
    )


def walk(root: Node | tuple[Node, ...]) -> Iterator[Node]:
    """Every node of a tree, in the order in which they stand in the template."""
    waiting: list[Part] = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Node):
            yield part
            waiting.extend(reversed(part.parts))
        elif isinstance(part, tuple):
            waiting.extend(reversed(part))


def tree_as_data(node: Node) -> list[Any]:
    """Return a tree as JSON: ``[kind, line, [arm, ...], part, ...]``; several nodes as ``["", node, ...]``."""
    return [node.kind, node.line, list(node.arms), *(_part_as_data(part) for part in node.parts)]


def _part_as_data(part: Part) -> Any:
    if isinstance(part, Node):
        return tree_as_data(part)
    return ["", *(_part_as_data(each) for each in part)] if isinstance(part, tuple) else part


def tree_from(data: Any, where: str) -> Node:
    """Return a tree from its JSON.

    Raises:
        InputError: it has another shape, or is nested too deeply.

    """
    try:
        node = _part_from(data, where)
    except RecursionError:
        raise InputError("a template's tree is nested too deeply", where=where) from None
    if not isinstance(node, Node) or node.kind != "Template":
        raise _malformed(where)
    numbers = [number for each in walk(node) for number in each.arms]
    if sorted(numbers) != list(range(len(numbers))):
        raise _malformed(where)
    return node


def _part_from(data: Any, where: str) -> Part:
    if data is None or isinstance(data, (str, bool)):
        return data
    if not isinstance(data, list) or not data or not isinstance(data[0], str):
        raise _malformed(where)
    if not data[0]:
        return tuple(_part_from(each, where) for each in data[1:])
    if len(data) < 3 or type(data[1]) is not int or not isinstance(data[2], list):
        raise _malformed(where)
    if any(type(number) is not int for number in data[2]):
        raise _malformed(where)
    node = Node(data[0], tuple(_part_from(each, where) for each in data[3:]), data[1], tuple(data[2]))
    if not well_formed(node):
        raise _malformed(where)
    return node


def _malformed(where: str) -> InputError:
    return InputError("a template's tree is malformed", where=where, hint="take the snapshot again")
