"""Templates in which an expression may mean something else each time, or elsewhere: nothing is proved of those.

The proofs take text for text, a value for the same value wherever it is read, and a name that jinja2 or the renderer
gives a meaning for what it means there. Two kinds of values of jinja2 are neither text nor a value: text marked as
safe, which turns ``<`` in what is added to it into ``&lt;``, and iterators, which are empty once they were read.
Source: jinja2, src/jinja2/filters.py, 3.1.6.
"""

from __future__ import annotations

from kvgate.corpora.coverage.equivalence import METHODS
from kvgate.corpora.coverage.tree import Node, Part, walk

_MARKING = frozenset({"e", "escape", "forceescape", "safe", "urlize", "xmlattr"})
_ITERATING = frozenset(
    {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
)
_CONSUMING = frozenset({"count", "first", "groupby", "join", "last", "length", "list", "max", "min", "sort", "sum"})


def is_unsettled(tree: Node) -> bool:
    """Whether a template marks text as safe, keeps an iterator, takes in another template, or redefines a name."""
    return _redefines(tree) or any(
        (node.kind == "Filter" and node.word(1) in _MARKING)
        or any(_iterates(part) and not _reads_at_once(node, place) for place, part in _nodes_in(node))
        for node in walk(tree)
    )


def _redefines(tree: Node) -> bool:
    """Whether a name that is understood here may have another meaning.

    A macro kept in a namespace or an object under the name of a method of text would be taken for that method.
    """
    macros = False
    kept = False
    for node in walk(tree):
        if node.kind in ("Import", "FromImport", "Include", "Extends"):
            return True
        if node.kind in ("Name", "Macro") and node.word(0) == "raise_exception" and node.parts[1] != "load":
            return True
        macros = macros or node.kind == "Macro"
        kept = kept or (node.kind in _KEEPERS and _keeps(node) in METHODS)
    return macros and kept


_KEEPERS = frozenset({"Assign", "AssignBlock", "Keyword", "Pair"})


def _keeps(node: Node) -> str | None:
    """Return the name under which something is kept that may be a macro."""
    if node.kind == "Keyword":
        return None if node.one(1).kind == "Const" else node.word(0)
    target = node.one(0)
    if node.kind == "Pair":
        return target.word(1) if target.kind == "Const" and node.one(1).kind != "Const" else None
    if node.kind == "Assign" and node.one(1).kind == "Const":
        return None
    return next((each.word(1) for each in walk(target) if each.kind == "NSRef" and each.word(1) in METHODS), None)


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
