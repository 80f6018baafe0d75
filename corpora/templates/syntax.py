"""What a chat template is, apart from how it is laid out. Runs in the bounded child only.

Nothing here compiles a template or evaluates a constant of it: jinja2 folds ``'a' * 10 ** 9`` while it
compiles, even in a branch that never runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.meta import TrackingCodeGenerator
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvgate.rules.errors import InputError

# What the renderer's environment offers beside jinja2's own functions: not an input of the conversation.
# Source: huggingface/transformers, src/transformers/utils/chat_template_utils.py, 5.24.0.
_OFFERED = {"raise_exception", "strftime_now"}
_CLOCK = {"strftime_now"}
_CHANCE = {"lipsum"}

Period = Literal["second", "minute", "hour", "day", "month", "year"]
PERIODS: tuple[Period, ...] = ("second", "minute", "hour", "day", "month", "year")
"""How long what a template prints of the clock stays the same, the shortest first."""

# What changes once in each period, of the directives of Python's strftime (datetime, "Format Codes"); all others
# count as changing each second, but for those that print no time.
_DIRECTIVES: dict[str, Period] = {
    **dict.fromkeys("MR", "minute"),
    **dict.fromkeys("HIp", "hour"),
    **dict.fromkeys("aAwdjUWuVGgxDFe", "day"),
    **dict.fromkeys("bBmh", "month"),
    **dict.fromkeys("yYC", "year"),
}
_TIMELESS = frozenset("%ntzZ")  # the renderer's clock has no time zone
_DIRECTIVE = re.compile(r"%[-_0^#]?\d*([EO]?)(.?)", re.DOTALL)

_DUNDER = re.compile(r"__\w+__")


@dataclass(frozen=True)
class Syntax:
    """One template, parsed.

    Attributes:
        tree: the syntax tree as JSON, without lines, comments and joints between pieces of text.
        reads: variables it looks up that nothing in it sets, the environment's functions left out.
        reads_clock: it asks for the time of day.
        clock: how long what it prints of the clock stays the same: the shortest period that it prints; ``None``: it
            prints nothing of it. What is not known to be longer is a ``second``.
        reads_chance: it draws random text, so that equal requests give different tokens.

    """

    tree: Any
    reads: frozenset[str]
    reads_clock: bool
    clock: Period | None
    reads_chance: bool


def parse_template(text: str, where: str) -> Syntax:
    """Parse a chat template with the grammar that transformers gives it.

    Raises:
        InputError: it is no template, or asks for Python's internals.

    """
    environment = grammar()
    try:
        template = environment.parse(text)
        _refuse_internals(template, where)
        names = _undeclared(template, environment)
        tree = _tree(template)
    except TemplateSyntaxError as error:
        raise InputError(
            f"not a chat template that transformers can compile: {_one_line(error.message or '')}",
            where=f"{where}:{error.lineno}",
        ) from None
    except RecursionError:
        raise InputError("the chat template is nested too deeply", where=where) from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise InputError(f"not readable as a chat template: {_one_line(str(error))}", where=where) from None
    filters = {node.name for node in template.find_all(nodes.Filter)}
    called = {node.name for node in template.find_all(nodes.Name) if node.ctx == "load"}
    return Syntax(
        tree=tree,
        reads=frozenset(names - _OFFERED),
        reads_clock=bool(names & _CLOCK),
        clock=_clock(template),
        reads_chance="random" in filters or bool(called & _CHANCE),
    )


def _clock(template: nodes.Template) -> Period | None:
    called = {
        id(call.node): _period(call)
        for call in template.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name in _CLOCK
    }
    asked = {id(test.node) for test in template.find_all(nodes.Test) if test.name in ("defined", "undefined")}
    shortest = len(PERIODS)
    for name in template.find_all(nodes.Name):
        if name.name in _CLOCK and name.ctx == "load" and id(name) not in asked:
            period = called.get(id(name), "second")  # kept under another name, or handed on: nothing is known
            if period is not None:
                shortest = min(shortest, PERIODS.index(period))
    return PERIODS[shortest] if shortest < len(PERIODS) else None


def _period(call: nodes.Call) -> Period | None:
    """Return how long the answer to one call stays the same; ``None``: always."""
    formats = [*call.args, *(each.value for each in call.kwargs)]
    if call.dyn_args or call.dyn_kwargs or len(formats) != 1:
        return "second"
    text = formats[0].value if isinstance(formats[0], nodes.Const) else None
    if not isinstance(text, str):
        return "second"
    periods: list[Period] = [
        "second" if modifier else _DIRECTIVES.get(directive, "second")
        for modifier, directive in _DIRECTIVE.findall(text)
        if directive not in _TIMELESS
    ]
    return min(periods, key=PERIODS.index, default=None)


class _Generation(Extension):
    """The tag by which templates mark what the assistant said; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _AnyFilter(dict[str, Any]):
    """Filters and tests of a renderer newer than this file are no reason to fail on its templates."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, _placeholder if default is None else default)


def _placeholder(value: object) -> object:
    return value


def grammar() -> ImmutableSandboxedEnvironment:
    """Return an environment that parses chat templates as transformers does; nothing is rendered with it."""
    # trim_blocks, lstrip_blocks and the two extensions are transformers' (same source as above).
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters = _AnyFilter(environment.filters)
    environment.tests = _AnyFilter(environment.tests)
    return environment


class _Undeclared(TrackingCodeGenerator):
    """Finds undeclared names as ``jinja2.meta`` does, but folds no constant on the way."""

    def __init__(self, environment: ImmutableSandboxedEnvironment) -> None:
        CodeGenerator.__init__(self, environment, "<chat template>", "<chat template>", optimized=False)
        self.undeclared_identifiers = set()

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


def _undeclared(template: nodes.Template, environment: ImmutableSandboxedEnvironment) -> set[str]:
    generator = _Undeclared(environment)
    generator.visit(template)
    return generator.undeclared_identifiers


def _refuse_internals(template: nodes.Template, where: str) -> None:
    """Refuse what no chat template needs and every escape from the sandbox does."""
    for node in template.find_all((nodes.Getattr, nodes.Getitem, nodes.Filter)):
        asked: list[object] = []
        if isinstance(node, nodes.Getattr):
            asked = [node.attr]
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            asked = [node.arg.value]
        elif isinstance(node, nodes.Filter):
            asked = [argument.value for argument in node.args or () if isinstance(argument, nodes.Const)]
        for name in asked:
            if isinstance(name, str) and _DUNDER.fullmatch(name):
                raise InputError(
                    f"the chat template asks for Python internals ({name})",
                    where=f"{where}:{node.lineno}",
                    hint="no chat template needs them: do not serve this one",
                )


def _tree(node: nodes.Node) -> Any:
    """Return a node as JSON: its class and fields; neither line numbers nor the environment."""
    if isinstance(node, nodes.Const):
        # The type stands beside the value: True is 1 in Python, and 1 prints differently.
        return ["Const", type(node.value).__name__, _constant(node.value)]
    return [type(node).__name__, *([name, _field(value)] for name, value in node.iter_fields())]


def _field(value: Any) -> Any:
    if isinstance(value, nodes.Node):
        return _tree(value)
    if isinstance(value, list):
        return [_tree(item) if isinstance(item, nodes.Node) else _field(item) for item in _joined(value)]
    if isinstance(value, tuple):
        return [_field(item) for item in value]
    return value


def _constant(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, str)) else repr(value)


def _joined(items: list[Any]) -> list[Any]:
    """Join neighbouring output, and neighbouring text within it: a comment between them leaves no trace."""
    joined: list[Any] = []
    for item in items:
        if isinstance(item, nodes.TemplateData):
            if joined and isinstance(joined[-1], nodes.TemplateData):
                joined[-1] = nodes.TemplateData(joined[-1].data + item.data)
            elif item.data:
                joined.append(item)
        elif isinstance(item, nodes.Output):
            if joined and isinstance(joined[-1], nodes.Output):
                joined[-1] = nodes.Output([*joined[-1].nodes, *item.nodes])
            elif _joined(item.nodes):
                joined.append(item)
        else:
            joined.append(item)
    return joined


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
