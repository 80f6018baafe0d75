"""Proves, where it can, that two pieces of a template print the same whatever the conversation holds.

Both are run on every combination of what their conditions can come out as. A condition on one value (``x``,
``x is none``, ``x == 'user'``) is decided for each sort of value that the conditions tell apart, so that two of them
on one value cannot contradict each other; any other condition is true or false on its own. A value that is printed
stays a symbol. Nothing is assumed that a corpus merely suggests: values that look alike on it prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.corpora.coverage.items import Choice, Item, Refusal, Step, Text, Value
from kvgate.corpora.coverage.tree import Node, walk

# Steps for one proof, and for all about one pair of templates: about a third of a second, and three.
_MAX_STEPS = 200_000
_MAX_ALL_STEPS = 2_000_000

# Without an effect, and the same each time: what else is called may count, remember or draw.
METHODS = frozenset({
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace", "upper",
    "lower", "title", "capitalize", "join", "removeprefix", "removesuffix", "find", "rfind", "index", "count", "get",
    "items", "keys", "values", "format", "isdigit",
})  # fmt: skip
"""Names of methods that have no effect, on whatever a conversation holds."""
_FILTERS = frozenset({
    "trim", "tojson", "length", "count", "upper", "lower", "title", "capitalize", "replace", "default", "d", "join",
    "first", "last", "string", "list", "int", "float", "abs", "items", "indent", "safe", "dictsort",
})  # fmt: skip
_TESTS = frozenset({
    "defined", "undefined", "none", "string", "mapping", "boolean", "true", "false", "number", "integer", "float",
    "iterable", "sequence", "callable", "eq", "ne", "equalto", "in", "gt", "lt", "ge", "le", "odd", "even",
    "divisibleby",
})  # fmt: skip
_OPAQUE = frozenset({"And", "Or", "Not", "CondExpr", "Compare", "Test", "Const"})

_UNDEFINED = object()
_TRUTHY_OBJECT = object()
_FALSY_OBJECT = object()


class Effort:
    """How much work the proofs about one pair of templates may still take; without any, nothing is proved."""

    def __init__(self) -> None:
        self._all = _MAX_ALL_STEPS
        self._left = 0

    def begin(self) -> None:
        """Begin a proof: it gets its share of what is left."""
        self._all += max(0, self._left)
        self._left = min(_MAX_STEPS, self._all)
        self._all -= self._left

    def spend(self) -> None:
        """Spend one step.

        Raises:
            TooLongError: none is left.

        """
        self._left -= 1
        if self._left < 0:
            raise TooLongError


class TooLongError(Exception):
    """A proof would take too long."""


def equivalent(old: tuple[Item, ...], new: tuple[Item, ...], effort: Effort) -> bool:
    """Whether both print the same for every conversation, each run from the same state; ``False``: not shown."""
    if not _is_plain(old) or not _is_plain(new):
        return False
    effort.begin()
    try:
        return _Proof(old, new, effort).holds()
    except (TooLongError, RecursionError):
        return False


def _is_plain(items: tuple[Item, ...]) -> bool:
    """Whether the items only print and choose, by expressions that have no effect."""
    for item in items:
        if isinstance(item, Step) and not _only_prints(item.node):
            return False
        if isinstance(item, Value) and not _is_pure(item.node):
            return False
        if isinstance(item, Choice) and not (
            _is_pure(item.test) and _is_plain(item.then) and _is_plain(item.otherwise)
        ):
            return False
    return True


def _only_prints(statement: Node) -> bool:
    """Whether a statement is a loop that leaves nothing behind but text: what is set in a loop ends with it."""
    return (
        statement.kind == "For"
        and not any(node.kind in ("NSRef", "Macro", "CallBlock", "Block", "Scope") for node in walk(statement))
        and _is_pure(statement)
    )


def _is_pure(expression: Node) -> bool:
    for node in walk(expression):
        if node.kind == "Call":
            called = node.one(0)
            if not (called.kind == "Getattr" and called.word(1) in METHODS):
                return False
        elif (
            (node.kind == "Filter" and node.word(1) not in _FILTERS)
            or (node.kind == "Test" and node.word(1) not in _TESTS)
            or node.kind == "ExtensionAttribute"
        ):
            return False
    return True


class _NeededError(Exception):
    """The run depends on a value that nothing is assumed of yet."""

    def __init__(self, subject: Node) -> None:
        super().__init__()
        self.subject = subject


class _Proof:
    """Runs both pieces on every sort of value."""

    def __init__(self, old: tuple[Item, ...], new: tuple[Item, ...], effort: Effort) -> None:
        self._old, self._new = old, new
        self._effort = effort
        self._asked: dict[Node, set[Node]] = {}
        self._printed: set[Node] = set()
        for items in (old, new):
            self._collect(items)
        self._sorts: dict[Node, list[Any]] = {}

    def holds(self) -> bool:
        return self._same({})

    def _same(self, world: Mapping[Node, Any]) -> bool:
        try:
            return self._run(self._old, world) == self._run(self._new, world)
        except _NeededError as needed:
            subject = needed.subject
        return all(self._same({**world, subject: value}) for value in self._values(subject))

    # ---- running ----

    def _run(self, items: tuple[Item, ...], world: Mapping[Node, Any]) -> list[str | Node] | None:
        """Return what is printed, text and symbols; ``None``: the template refuses."""
        printed: list[str | Node] = []
        return printed if self._print(items, world, printed) else None

    def _print(self, items: tuple[Item, ...], world: Mapping[Node, Any], printed: list[str | Node]) -> bool:
        for item in items:
            self._effort.spend()
            if isinstance(item, Refusal):
                return False
            if isinstance(item, Choice):
                chosen = item.then if self._truth(item.test, world) else item.otherwise
                if not self._print(chosen, world, printed):
                    return False
                continue
            piece: str | Node
            if isinstance(item, Text):
                piece = item.text
            else:
                piece = self._shown(item.node, world) if isinstance(item, Value) else item.node
            if isinstance(piece, str) and printed and isinstance(printed[-1], str):
                printed[-1] += piece
            elif piece != "":
                printed.append(piece)
        return True

    def _shown(self, node: Node, world: Mapping[Node, Any]) -> str | Node:
        """Return the text that a value of a known sort prints, or the value as a symbol."""
        if node not in self._asked:
            return node
        if node not in world:
            raise _NeededError(node)
        text = _text_of(world[node], _constants(self._asked[node]))
        return node if text is None else text

    def _truth(self, test: Node, world: Mapping[Node, Any]) -> bool:
        self._effort.spend()
        test = _without_length(test)
        kind = test.kind
        if kind == "Not":
            return not self._truth(test.one(0), world)
        if kind == "And":
            return self._truth(test.one(0), world) and self._truth(test.one(1), world)
        if kind == "Or":
            return self._truth(test.one(0), world) or self._truth(test.one(1), world)
        if kind == "CondExpr":
            if self._truth(test.one(0), world):
                return self._truth(test.one(1), world)
            other = test.maybe(2)
            return other is not None and self._truth(other, world)
        if kind == "Const":
            return test.parts not in _FALSE
        subject = _subject(test)
        if subject not in world:
            raise _NeededError(subject)
        value = world[subject]
        return bool(value) if subject is test and test.kind in _OPAQUE else _holds(test, value)

    # ---- what conditions tell apart ----

    def _collect(self, items: tuple[Item, ...]) -> None:
        for item in items:
            if isinstance(item, Choice):
                self._collect_test(item.test)
                self._collect(item.then)
                self._collect(item.otherwise)
            elif isinstance(item, Value):
                self._printed.add(item.node)

    def _collect_test(self, test: Node) -> None:
        test = _without_length(test)
        if test.kind in ("Not", "And", "Or", "CondExpr"):
            for place in range(len(test.parts)):
                if (part := test.maybe(place)) is not None:
                    self._collect_test(part)
        elif test.kind != "Const":
            self._asked.setdefault(_subject(test), set()).add(test)

    def _values(self, subject: Node) -> list[Any]:
        """Return one value for each sort that the conditions, or the output, tell apart."""
        if subject not in self._sorts:
            tests = sorted(self._asked[subject], key=repr)
            if subject.kind in _OPAQUE:
                self._sorts[subject] = [True, False]
            else:
                constants = _constants(self._asked[subject])
                found: dict[Any, Any] = {}
                for value in _samples(constants):
                    shown = _text_of(value, constants) if subject in self._printed else None
                    found.setdefault((tuple(_holds(test, value) for test in tests), shown), value)
                self._sorts[subject] = list(found.values())
        return self._sorts[subject]


def _without_length(test: Node) -> Node:
    """Write ``x|length > 0`` as ``x``: what has a length is true where that is not 0, and the rest fails."""
    if test.kind == "Filter":
        measured = _measured(test)
        return test if measured is None else measured
    if test.kind != "Compare" or len(test.many(1)) != 1:
        return test
    operand = test.many(1)[0]
    measured, constant = _measured(test.one(0)), operand.one(1)
    if measured is None or constant.kind != "Const" or constant.word(0) != "int":
        return test
    compared = (operand.word(0), constant.word(1))
    if compared in (("gt", "0"), ("ne", "0"), ("gteq", "1")):
        return measured
    return Node("Not", (measured,), test.line) if compared in (("eq", "0"), ("lt", "1")) else test


def _measured(node: Node) -> Node | None:
    return node.maybe(0) if node.kind == "Filter" and node.word(1) in ("length", "count") else None


_FALSE = (("bool", "False"), ("NoneType", "None"), ("int", "0"), ("str", ""), ("float", "0.0"))


def _subject(test: Node) -> Node:
    """Return the value that a condition is about; the condition itself where it is about no single value."""
    if test.kind == "Test" and test.word(1) in _SORT_TESTS and not any(test.parts[2:]):
        return _unless_opaque(test.one(0), test)
    if test.kind == "Compare" and len(test.many(1)) == 1:
        operand = test.many(1)[0]
        if operand.word(0) in ("eq", "ne", "in", "notin") and _members(operand) is not None:
            return _unless_opaque(test.one(0), test)
    return test


def _unless_opaque(subject: Node, test: Node) -> Node:
    return test if subject.kind in _OPAQUE else subject


def _members(operand: Node) -> list[Any] | None:
    """Return the constants that a value is compared with; ``None``: they are not all constants."""
    compared = operand.one(1)
    if operand.word(0) in ("eq", "ne"):
        listed: tuple[Node, ...] = (compared,)
    elif compared.kind in ("List", "Tuple"):
        listed = compared.many(0)
    else:
        return None
    values = []
    for node in listed:
        if node.kind != "Const" or node.word(0) not in ("str", "int", "bool", "NoneType"):
            return None
        values.append(_constant(node))
    return values


def _constant(node: Node) -> Any:
    kind, text = node.word(0), node.word(1)
    if kind == "str":
        return text
    return int(text) if kind == "int" else {"True": True, "False": False, "None": None}[text]


def _constants(tests: set[Node]) -> list[Any]:
    found: list[Any] = []
    for test in sorted(tests, key=repr):
        if test.kind == "Compare":
            found += _members(test.many(1)[0]) or []
    return found


def _samples(constants: list[Any]) -> list[Any]:
    """Return a value of every sort that conditions can tell apart, the constants themselves among them."""
    texts = [each for each in constants if isinstance(each, str)]
    numbers = [each for each in constants if isinstance(each, int) and not isinstance(each, bool)]
    other = max([0, *numbers]) + 1
    return [
        _UNDEFINED, None, True, False, "", *texts, "".join(texts) + "?", 0, 1, *numbers, other, 0.0, 1.0,
        *map(float, numbers), other + 0.5, [], [0], {}, {"": 0}, _TRUTHY_OBJECT, _FALSY_OBJECT,
    ]  # fmt: skip


# jinja2, src/jinja2/tests.py, 3.1.6. What is no value of JSON (a loop, a macro, a namespace) is none of these.
_SORT_TESTS = {
    "defined": lambda value: value is not _UNDEFINED,
    "undefined": lambda value: value is _UNDEFINED,
    "none": lambda value: value is None,
    "string": lambda value: isinstance(value, str),
    "mapping": lambda value: isinstance(value, dict),
    "boolean": lambda value: value is True or value is False,
    "true": lambda value: value is True,
    "false": lambda value: value is False,
    "number": lambda value: isinstance(value, (int, float)),
    "integer": lambda value: isinstance(value, int) and value is not True and value is not False,
    "float": lambda value: isinstance(value, float),
}


def _holds(test: Node, value: Any) -> bool:
    """Whether a condition on one value holds for it."""
    if test.kind == "Test":
        return _SORT_TESTS[test.word(1)](value)
    if test.kind == "Compare":
        operand = test.many(1)[0]
        return (value in (_members(operand) or ())) == (operand.word(0) in ("eq", "in"))
    return value is not _UNDEFINED and value is not _FALSY_OBJECT and bool(value)


def _text_of(value: Any, constants: list[Any]) -> str | None:
    """Return what a value prints; ``None``: it stands for others of its sort, which print something else."""
    if value is _UNDEFINED:
        return ""
    if isinstance(value, str):
        return value if not value or value in constants else None
    return str(value) if value is None or isinstance(value, bool) else None
