"""Records which branches of a chat template run. Used in the bounded child only, where templates are compiled.

The parsed template is marked before jinja2 compiles it: every branch begins with a note of its number. jinja2's own
code generator then does the rest, so the environment, its extensions and its filters stay the renderer's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, nodes

from kvgate.corpora.coverage.covered import Coverage, TemplateCoverage
from kvgate.corpora.coverage.detection import marks_of
from kvgate.corpora.coverage.tree import ARMS, SHAPES, Node, Part, walk
from kvgate.corpora.templates.syntax import grammar

_SURROGATE = re.compile("[\ud800-\udfff]")


# Names in the code that jinja2 makes of a template; no name of a template can meet them.
_RAN, _NOTE, _BEGAN = "kvgate_ran", "kvgate_note", "kvgate_began_"


class Notes:
    """What the code of one template writes down.

    Attributes:
        ran: for each branch 1, once it ran: what statements write, because it is the fastest.
        noted: the numbers of branches that ran: what expressions write.

    """

    def __init__(self, count: int) -> None:
        self.ran = [0] * count
        self.noted: set[int] = set()
        self._kept: tuple[list[int], set[int]] = (list(self.ran), set())

    def keep(self) -> None:
        """Let what was written down since the last time count."""
        if self.ran != self._kept[0] or len(self.noted) != len(self._kept[1]):
            self._kept = (list(self.ran), set(self.noted))

    def drop(self) -> None:
        """Forget what was written down since the last time. In place: the template's code holds both."""
        self.ran[:], kept = self._kept
        self.noted.intersection_update(kept)

    def executed(self, tree: Node) -> frozenset[int]:
        """Return the numbers of the branches that ran."""
        found = self.noted | {number for number, ran in enumerate(self.ran) if ran}
        for node in reversed(list(walk(tree))):
            # An elif is the else of what stands before it, and writes down only its own.
            if node.kind == "If" and len(node.many(2)) == 1 and not found.isdisjoint(node.many(2)[0].arms):
                found.add(node.arms[1])
        return frozenset(found)


class Recorder:
    """Collects which branches run, over all environments that :func:`covering` made for it."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Take the template texts in force, by name: ``default``, ``tool_use`` ..."""
        self._names = dict(texts)
        self._known: dict[str, tuple[Node | None, Notes]] = {}

    def mark(self, template: nodes.Template, text: str) -> Notes:
        """Mark a parsed template in place, so that the code made of it records its branches in what is returned."""
        marker = _Marker()
        tree = marker.read(template)
        return self._known.setdefault(text, (tree, Notes(marker.count)))[1]

    def settle(self, *, counts: bool) -> None:
        """Say whether the branches that ran since the last call count: those of a failed rendering do not."""
        for _, notes in self._known.values():
            if counts:
                notes.keep()
            else:
                notes.drop()

    def coverage(self) -> Coverage:
        """Return what ran so far. Templates that no conversation selected are in it, and nothing of them ran."""
        return Coverage({name: self._covered(text) for name, text in self._names.items()})

    def _covered(self, text: str) -> TemplateCoverage | None:
        if text not in self._known:
            self.mark(grammar().parse(text), text)
        tree, notes = self._known[text]
        return None if tree is None else TemplateCoverage(tree, notes.executed(tree), marks_of(text))


def covering(base: type[Environment], recorder: Recorder) -> type[Environment]:
    """Return a subclass of a renderer's environment whose templates tell ``recorder`` which branches ran.

    What they render is what those of ``base`` render, errors included.
    """

    class Covering(base):  # type: ignore[valid-type, misc] # the base is the renderer's choice
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._kvgate_notes: list[Notes] = []

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            parsed: nodes.Template = super()._parse(source, name, filename)
            self._kvgate_text = source
            return parsed

        def _generate(self, source: nodes.Template, *arguments: Any, **options: Any) -> str:
            notes = recorder.mark(source, self._kvgate_text)
            number = len(self._kvgate_notes)
            self._kvgate_notes.append(notes)
            code: str = super()._generate(source, *arguments, **options)
            # Behind all lines that errors count; the code runs with its environment at hand.
            own = f"environment._kvgate_notes[{number}]"
            return f"{code}\n{_RAN} = {own}.ran\n{_NOTE} = {own}.noted.add"

    return Covering


class _UnknownError(Exception):
    """A kind of node that this file knows nothing about: an extension of a renderer to come."""


class _Marker:
    """Numbers the branches of one template, marks them in place, and returns the tree as plain data."""

    def __init__(self) -> None:
        self._line = 1
        self.count = 0

    def read(self, template: nodes.Template) -> Node | None:
        """Return the template's tree; ``None``: it cannot be told, and what was marked does no harm."""
        try:
            return self._node(template)
        except (RecursionError, _UnknownError):
            return None

    def _node(self, node: nodes.Node) -> Node:
        line = self._line = node.lineno or self._line  # helpers of expressions have none
        if isinstance(node, nodes.Const):
            kind, value = type(node.value).__name__, node.value
            if not isinstance(value, str) or _SURROGATE.search(value):
                kind, value = ("escaped" if isinstance(value, str) else kind), ascii(value)
            return Node("Const", (kind, value), line)
        if isinstance(node, nodes.TemplateData):
            if _SURROGATE.search(node.data):
                raise _UnknownError  # no JSON can carry it, and no UTF-8 output either
            return Node("TemplateData", (node.data,), line)
        if isinstance(node, nodes.If):
            return self._if(node, node.elif_, node.else_)
        if isinstance(node, nodes.For):
            return self._for(node)
        if isinstance(node, nodes.CondExpr):
            arms = self._arms("CondExpr")
            made = Node("CondExpr", self._parts(node), line, arms)
            node.test = nodes.Or(node.test, self._code(f"{_NOTE}({arms[1]})", node), lineno=node.lineno)
            node.expr1 = nodes.Or(self._code(f"{_NOTE}({arms[0]})", node), node.expr1, lineno=node.lineno)
            return made
        if isinstance(node, (nodes.And, nodes.Or)):
            arms = self._arms(type(node).__name__)
            made = Node(type(node).__name__, self._parts(node), line, arms)
            node.right = nodes.Or(self._code(f"{_NOTE}({arms[0]})", node), node.right, lineno=node.lineno)
            return made
        if isinstance(node, nodes.CallBlock) and _is_generation(node):
            return Node("Scope", (self._body(node.body),), line)
        if isinstance(node, (nodes.Macro, nodes.CallBlock)):
            arms = self._arms(type(node).__name__)
            made = Node(type(node).__name__, self._parts(node), line, arms)
            node.body.insert(0, self._statement(f"{_RAN}[{arms[0]}] = 1", node))
            return made
        if type(node).__name__ not in SHAPES:
            raise _UnknownError
        return Node(type(node).__name__, self._parts(node), line)

    def _if(self, node: nodes.If, others: list[nodes.If], otherwise: list[nodes.Node]) -> Node:
        arms, line = self._arms("If"), node.lineno
        test, body = self._node(node.test), self._body(node.body)
        if others:
            rest: tuple[Node, ...] = (self._if(others[0], others[1:], otherwise),)
        else:
            rest = self._body(otherwise)
            otherwise.insert(0, self._statement(f"{_RAN}[{arms[1]}] = 1", node))
        node.body.insert(0, self._statement(f"{_RAN}[{arms[0]}] = 1", node))
        return Node("If", (test, body, rest), line, arms)

    def _for(self, node: nodes.For) -> Node:
        arms, line = self._arms("For"), node.lineno
        made = Node("For", self._parts(node), line, arms)
        # The body of a recursive loop is a function of its own, and cannot say to the outside that it began.
        code = f"{_RAN}[{arms[0]}] = 1" if node.recursive else f"{_BEGAN}{arms[0]} = 1"
        node.body.insert(0, self._statement(code, node))
        return made

    def _parts(self, node: nodes.Node) -> tuple[Part, ...]:
        return tuple(
            self._body(value) if name in ("body", "else_") else self._part(value) for name, value in node.iter_fields()
        )

    def _part(self, value: Any) -> Part:
        if isinstance(value, nodes.Node):
            return self._node(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._part(each) for each in value)
        if isinstance(value, nodes.EvalContext) or not (value is None or isinstance(value, (str, bool))):
            raise _UnknownError
        return value

    def _body(self, body: list[nodes.Node]) -> tuple[Node, ...]:
        """Read statements; round each loop goes a note of whether it began."""
        made: list[Node] = []
        marked: list[nodes.Node] = []
        for statement in body:
            read = self._node(statement)
            made.append(read)
            if isinstance(statement, nodes.For) and not statement.recursive:
                began = f"{_BEGAN}{read.arms[0]}"
                marked.append(self._statement(f"{began} = 0", statement))
                marked.append(statement)
                marked.append(self._statement(f"{_RAN}[{read.arms[1]} - {began}] = 1", statement))
            else:
                marked.append(statement)
        body[:] = marked
        return tuple(made)

    def _arms(self, kind: str) -> tuple[int, ...]:
        first = self.count
        self.count += len(ARMS[kind])
        return tuple(range(first, self.count))

    def _statement(self, code: str, beside: nodes.Node) -> nodes.ExprStmt:
        return nodes.ExprStmt(self._code(code, beside), lineno=beside.lineno)

    def _code(self, code: str, beside: nodes.Node) -> nodes.InternalName:
        """Return a node that stands for Python code, word for word.

        jinja2's parser makes such nodes in this way (``free_identifier``, src/jinja2/parser.py, 3.1.6); no name of
        a template can meet them, and the optimizer takes them for no constant.
        """
        node: nodes.InternalName = object.__new__(nodes.InternalName)
        nodes.Node.__init__(node, code, lineno=beside.lineno)
        return node


def _is_generation(node: nodes.CallBlock) -> bool:
    """Whether it is the tag by which templates mark what the assistant said: it renders its body.

    Source: huggingface/transformers, src/transformers/utils/chat_template_utils.py, ``AssistantTracker``, 5.24.0.
    """
    called = node.call.node
    return isinstance(called, nodes.ExtensionAttribute) and called.name == "_generation_support"
