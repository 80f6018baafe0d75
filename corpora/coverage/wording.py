"""Says in words where a branch of a template is and when it runs."""

from __future__ import annotations

from collections.abc import Callable

from kvgate.corpora.coverage.tree import Node, Part

_LONGEST = 70
_BINARY = {
    "Mul": "*", "Div": "/", "FloorDiv": "//", "Add": "+", "Sub": "-", "Mod": "%", "Pow": "**", "And": "and", "Or": "or",
}  # fmt: skip
_UNARY = {"Not": "not ", "Neg": "-", "Pos": "+"}
_BRACKETS = {"List": ("[", "]"), "Tuple": ("(", ")"), "Dict": ("{", "}")}
_COMPARED = {
    "eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in",
}  # fmt: skip


def branch_words(node: Node, place: int) -> str:
    """Say which branch of a node it is: ``else of `if tools```.

    Args:
        node: a node that has branches.
        place: which of them, as in :data:`kvgate.corpora.coverage.tree.ARMS`.

    """
    if node.kind == "If":
        return ("" if place == 0 else "else of ") + quoted(node)
    if node.kind == "For":
        return ("body of " if place == 0 else "no iteration of ") + quoted(node)
    if node.kind == "CondExpr":
        return ("then of " if place == 0 else "else of ") + quoted(node)
    if node.kind in ("And", "Or"):
        return "right side of " + quoted(node)
    return "body of " + quoted(node)


def quoted(node: Node) -> str:
    """Quote a statement's head, or an expression, cut to one line that a person can read."""
    return f"`{cut(source(node))}`"


def cut(text: str) -> str:
    """Put text on one line and cut it to a length that a person can read."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def source(node: Node) -> str:
    """Write an expression, or the head of a statement, as a template has it."""
    writer = _STATEMENTS.get(node.kind)
    return _expression(node) if writer is None else writer(node)


def _if(node: Node) -> str:
    return f"if {_expression(node.one(0))}"


def _for(node: Node) -> str:
    test = node.maybe(4)
    filtered = "" if test is None else f" if {_expression(test)}"
    return f"for {_expression(node.one(0))} in {_expression(node.one(1))}{filtered}"


def _output(node: Node) -> str:
    return "".join(
        each.word(0) if each.kind == "TemplateData" else f"{{{{ {_expression(each)} }}}}" for each in node.many(0)
    )


_STATEMENTS: dict[str, Callable[[Node], str]] = {
    "If": _if,
    "For": _for,
    "Output": _output,
    "Macro": lambda node: f"macro {node.word(0)}({', '.join(map(_expression, node.many(1)))})",
    "CallBlock": lambda node: f"call {_expression(node.one(0))}",
    "FilterBlock": lambda node: f"filter {_expression(node.one(1)).lstrip('|')}",
    "Assign": lambda node: f"set {_expression(node.one(0))} = {_expression(node.one(1))}",
    "AssignBlock": lambda node: f"set {_expression(node.one(0))}",
    "With": lambda _: "with",
    "Scope": lambda _: "generation",
    "Block": lambda node: f"block {node.word(0)}",
    "ExprStmt": lambda node: f"do {_expression(node.one(0))}",
    "Continue": lambda _: "continue",
    "Break": lambda _: "break",
}


def _expression(node: Node) -> str:
    kind = node.kind
    if kind == "Name":
        return node.word(0)
    if kind == "NSRef":
        return f"{node.word(0)}.{node.word(1)}"
    if kind == "Const":
        return repr(node.word(1)) if node.word(0) == "str" else node.word(1).lower()
    if kind == "TemplateData":
        return repr(node.word(0))
    if kind in ("And", "Or"):
        return f" {_BINARY[kind]} ".join(_term(node.one(each), kind) for each in (0, 1))
    if kind in _BINARY:
        left = _expression(node.one(0)) if node.one(0).kind == kind else _operand(node.one(0))
        return f"{left} {_BINARY[kind]} {_operand(node.one(1))}"
    if kind == "Not" and node.one(0).kind == "Test":
        return _test(node.one(0), "is not")
    if kind in _UNARY:
        return _UNARY[kind] + _operand(node.one(0))
    if kind == "CondExpr":
        otherwise = node.maybe(2)
        tail = "" if otherwise is None else f" else {_term(otherwise, 'Or')}"
        return f"{_term(node.one(1), 'Or')} if {_expression(node.one(0))}{tail}"
    if kind == "Getattr":
        return f"{_operand(node.one(0))}.{node.word(1)}"
    if kind == "Getitem":
        return f"{_operand(node.one(0))}[{_expression(node.one(1))}]"
    if kind == "Slice":
        return ":".join("" if part is None else _expression(part) for part in map(node.maybe, (0, 1)))
    if kind == "Compare":
        tail = " ".join(f"{_COMPARED[each.word(0)]} {_operand(each.one(1))}" for each in node.many(1))
        return f"{_operand(node.one(0))} {tail}"
    if kind == "Concat":
        return " ~ ".join(map(_operand, node.many(0)))
    if kind == "Filter":
        subject = node.maybe(0)
        return ("" if subject is None else _operand(subject)) + f"|{node.word(1)}{_arguments(node, 2)}"
    if kind == "Test":
        return _test(node, "is")
    if kind == "Call":
        return _operand(node.one(0)) + (_arguments(node, 1) or "()")
    if kind == "Keyword":
        return f"{node.word(0)}={_expression(node.one(1))}"
    if kind == "Pair":
        return f"{_expression(node.one(0))}: {_expression(node.one(1))}"
    if kind in _BRACKETS:
        left, right = _BRACKETS[kind]
        return left + ", ".join(map(_expression, node.many(0))) + right
    return f"{kind.lower()} {' '.join(map(_word, node.parts))}".strip()


def _word(part: Part) -> str:
    return _expression(part) if isinstance(part, Node) else str(part)


def _test(node: Node, verb: str) -> str:
    return f"{_operand(node.one(0))} {verb} {node.word(1)}{_arguments(node, 2)}"


def _term(node: Node, kind: str) -> str:
    mixed = node.kind in ("And", "Or", "CondExpr") and node.kind != kind
    return f"({_expression(node)})" if mixed else _expression(node)


def _operand(node: Node) -> str:
    text = _expression(node)
    return f"({text})" if node.kind in _BINARY or node.kind in ("CondExpr", "Compare", "Concat", "Test") else text


def _arguments(node: Node, first: int) -> str:
    given = [_expression(each) for place in (first, first + 1) for each in node.many(place)]
    for stars, place in (("*", first + 2), ("**", first + 3)):
        if (more := node.maybe(place)) is not None:
            given.append(stars + _expression(more))
    return f"({', '.join(given)})" if given else ""
