"""Records which branches of a chat template run. Used in the bounded child only, where templates are compiled.

The parsed template is marked before jinja2 compiles it: every branch begins with a note of its number. jinja2's own
code generator then does the rest, so the environment, its extensions and its filters stay the renderer's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, nodes

from kvgate.corpora.coverage.covered import Coverage, TemplateCoverage
from kvgate.corpora.coverage.tree import ARMS, SHAPES, Node, Part
from kvgate.corpora.syntax import grammar

_SURROGATE = re.compile("[\ud800-\udfff]")


class Recorder:
    """Collects which branches run, over all environments that :func:`covering` made for it."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Take the template texts in force, by name: ``default``, ``tool_use`` ..."""
        self._names = dict(texts)
        self._trees: dict[str, Node | None] = {}
        self._ran: dict[str, bytearray] = {}

    def mark(self, template: nodes.Template, text: str) -> tuple[int, bytearray]:
        """Mark a parsed template in place, so that the code made of it records its branches.

        Returns:
            A number for this template, and one byte for each branch, which becomes 1 when it runs.

        """
        number = list(self._trees).index(text) if text in self._trees else len(self._trees)
        marker = _Marker(number)
        self._trees[text] = marker.read(template)
        return number, self._ran.setdefault(text, bytearray(marker.count))

    def coverage(self) -> Coverage:
        """Return what ran so far. Templates that no conversation selected are in it, and nothing of them ran."""
        return Coverage({name: self._covered(text) for name, text in self._names.items()})

    def _covered(self, text: str) -> TemplateCoverage | None:
        if text not in self._trees:
            self.mark(grammar().parse(text), text)
        tree = self._trees[text]
        if tree is None:
            return None
        return TemplateCoverage(tree, frozenset(number for number, ran in enumerate(self._ran[text]) if ran))


@contextlib.contextmanager
def recording(texts: Mapping[str, str]) -> Iterator[Recorder | None]:
    """Let every template that transformers compiles from here on tell a recorder what runs of it.

    transformers makes its environment from the class that a name of its module holds, and sets up filters, extensions
    and globals itself; it keeps compiled templates by their text, so those are forgotten on the way in and out.
    Source: huggingface/transformers, src/transformers/utils/chat_template_utils.py, 5.24.0,
    ``_cached_compile_jinja_template``.

    Args:
        texts: the templates in force, by name.

    Returns:
        The recorder; ``None`` where this release of transformers makes its environment in another way: nothing is
        known of what ran then.

    """
    from transformers.utils import chat_template_utils

    base = getattr(chat_template_utils, "ImmutableSandboxedEnvironment", None)
    forget = getattr(getattr(chat_template_utils, "_compile_jinja_template", None), "cache_clear", None)
    if base is None or forget is None:
        yield None
        return
    recorder = Recorder(texts)
    forget()
    chat_template_utils.ImmutableSandboxedEnvironment = covering(base, recorder)
    try:
        yield recorder
    finally:
        chat_template_utils.ImmutableSandboxedEnvironment = base
        forget()


def covering(base: type[Environment], recorder: Recorder) -> type[Environment]:
    """Return a subclass of a renderer's environment whose templates tell ``recorder`` which branches ran.

    What they render is what those of ``base`` render, errors included.
    """

    class Covering(base):  # type: ignore[valid-type, misc] # the base is the renderer's choice
        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            parsed: nodes.Template = super()._parse(source, name, filename)
            self._kvgate_text = source
            return parsed

        def _generate(self, source: nodes.Template, *arguments: Any, **options: Any) -> str:
            number, ran = recorder.mark(source, self._kvgate_text)
            setattr(self, f"kvgate_ran_{number}", ran)
            setattr(self, f"kvgate_note_{number}", ran.__setitem__)
            code: str = super()._generate(source, *arguments, **options)
            return code

    return Covering


class _UnknownError(Exception):
    """A kind of node that this file knows nothing about: an extension of a renderer to come."""


class _Marker:
    """Numbers the branches of one template, marks them in place, and returns the tree as plain data."""

    def __init__(self, number: int) -> None:
        self._ran = f"environment.kvgate_ran_{number}"
        self._note = f"environment.kvgate_note_{number}"
        self._began = f"kvgate_began_{number}_"
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
            node.test = nodes.Or(node.test, self._code(f"{self._note}({arms[1]}, 1)", node), lineno=node.lineno)
            node.expr1 = nodes.Or(self._code(f"{self._note}({arms[0]}, 1)", node), node.expr1, lineno=node.lineno)
            return made
        if isinstance(node, (nodes.And, nodes.Or)):
            arms = self._arms(type(node).__name__)
            made = Node(type(node).__name__, self._parts(node), line, arms)
            node.right = nodes.Or(self._code(f"{self._note}({arms[0]}, 1)", node), node.right, lineno=node.lineno)
            return made
        if isinstance(node, nodes.CallBlock) and _is_generation(node):
            return Node("Scope", (self._body(node.body),), line)
        if isinstance(node, (nodes.Macro, nodes.CallBlock)):
            arms = self._arms(type(node).__name__)
            made = Node(type(node).__name__, self._parts(node), line, arms)
            node.body.insert(0, self._statement(f"{self._ran}[{arms[0]}] = 1", node))
            return made
        if type(node).__name__ not in SHAPES:
            raise _UnknownError
        return Node(type(node).__name__, self._parts(node), line)

    def _if(self, node: nodes.If, others: list[nodes.If], otherwise: list[nodes.Node]) -> Node:
        arms, line = self._arms("If"), node.lineno
        test, body = self._node(node.test), self._body(node.body)
        rest = (self._if(others[0], others[1:], otherwise),) if others else self._body(otherwise)
        # What is done else may be absent or an elif: that the test failed is noted where it fails.
        node.test = nodes.Or(node.test, self._code(f"{self._note}({arms[1]}, 1)", node), lineno=node.test.lineno)
        node.body.insert(0, self._statement(f"{self._ran}[{arms[0]}] = 1", node))
        return Node("If", (test, body, rest), line, arms)

    def _for(self, node: nodes.For) -> Node:
        arms, line = self._arms("For"), node.lineno
        made = Node("For", self._parts(node), line, arms)
        code = f"{self._ran}[{arms[0]}] = 1"
        if not node.recursive:  # the body of a recursive loop is a function of its own
            code += f"; {self._began}{arms[0]} = 1"
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
                began = f"{self._began}{read.arms[0]}"
                marked.append(self._statement(f"{began} = 0", statement))
                marked.append(statement)
                never = f"{began} or {self._note}({read.arms[1]}, 1)"
                marked.append(self._statement(never, statement))
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
