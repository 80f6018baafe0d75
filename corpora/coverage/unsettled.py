"""Templates in which an expression may mean something else each time, or elsewhere: nothing is proved of those.

The proofs take text for text, a value for the same value wherever it is read, and a name that jinja2 or the renderer
gives a meaning for what it means there. Two kinds of values of jinja2 are neither text nor a value: text marked as
safe, which turns ``<`` in what is added to it into ``&lt;``, and iterators, which are empty once they were read.
Source: jinja2, src/jinja2/filters.py, 3.1.6.
"""

from __future__ import annotations

from kvgate.corpora.coverage.tree import Node, Part, walk

_MARKING = frozenset({"e", "escape", "forceescape", "safe", "urlize", "xmlattr"})
_ITERATING = frozenset(
    {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
)
_CONSUMING = frozenset({"count", "first", "groupby", "join", "last", "length", "list", "max", "min", "sort", "sum"})


_STATEFUL = frozenset({"caller", "cycler", "joiner", "lipsum", "loop", "self"})


def is_unsettled(tree: Node) -> bool:
    """Whether a template marks text as safe, keeps an iterator or a callable, takes in another template, or redefines.

    What is kept may be found again under the name of a method of text, and would be taken for that method.
    """
    macros = _STATEFUL | {node.word(0) for node in walk(tree) if node.kind == "Macro"}
    return any(_unsettles(node, macros) for node in walk(tree))


def _unsettles(node: Node, callables: frozenset[str]) -> bool:
    if node.kind in ("Import", "FromImport", "Include", "Extends", "Block"):
        return True
    if node.kind in ("Name", "Macro") and node.word(0) == "raise_exception" and node.parts[1] != "load":
        return True
    if node.kind == "Filter" and (node.word(1) in _MARKING or not _applies_known(node)):
        return True
    return any(
        (_iterates(part) and not _reads_at_once(node, place))
        or (part.kind == "Name" and part.word(0) in callables and part.word(1) == "load" and not _uses(node, place))
        for place, part in _nodes_in(node)
    )


def _applies_known(node: Node) -> bool:
    """Whether a filter that applies another one by its name neither marks nor makes iterators by it."""
    if node.word(1) != "map":
        return True
    if node.parts[4] is not None or node.parts[5] is not None:
        return False
    applied = node.many(2)[:1]
    return all(
        each.kind == "Const" and each.word(0) == "str" and each.word(1) not in _MARKING | _ITERATING for each in applied
    )


def _uses(node: Node, place: int) -> bool:
    """Whether a callable, or the loop, is used where it stands: called, or asked for what it says of itself."""
    if node.kind == "Call":
        return place == 0 and not _is_named(node.one(0), _STATEFUL - {"caller"})
    return node.kind == "Getattr" and _is_of(node, "loop") and node.word(1) in _SAYING


_SAYING = frozenset(
    {"depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"}
)


def _is_of(node: Node, name: str) -> bool:
    return _is_named(node.one(0), frozenset({name}))


def _is_named(node: Node, names: frozenset[str]) -> bool:
    return node.kind == "Name" and node.word(0) in names


def _nodes_in(node: Node) -> list[tuple[int, Node]]:
    found = []
    for place, part in enumerate(node.parts):
        parts: tuple[Part, ...] = part if isinstance(part, tuple) else (part,)
        found += [(place, one) for one in parts if isinstance(one, Node)]
    return found


def _iterates(node: Node) -> bool:
    return node.kind == "Filter" and node.word(1) in _ITERATING


def _reads_at_once(node: Node, place: int) -> bool:
    if node.kind == "For":
        return place == 1
    return node.kind == "Filter" and place == 0 and node.word(1) in _CONSUMING | _ITERATING
