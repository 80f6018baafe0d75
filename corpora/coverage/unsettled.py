"""Templates in which an expression may mean something else each time, or elsewhere: nothing is proved of those.

The proofs take text for text and a value for the same value wherever it is read. Two kinds of values of jinja2 are
neither: text marked as safe, which turns ``<`` in what is added to it into ``&lt;``, and iterators, which are empty
once they were read. Source: jinja2, src/jinja2/filters.py, 3.1.6.
"""

from __future__ import annotations

from kvgate.corpora.coverage.tree import Node, Part, walk

_MARKING = frozenset({"e", "escape", "forceescape", "safe", "urlize", "xmlattr"})
_ITERATING = frozenset(
    {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
)
_CONSUMING = frozenset({"count", "first", "groupby", "join", "last", "length", "list", "max", "min", "sort", "sum"})


def is_unsettled(tree: Node) -> bool:
    """Whether a template marks text as safe, or keeps an iterator beyond the place where it is made."""
    return any(
        (node.kind == "Filter" and node.word(1) in _MARKING)
        or any(_iterates(part) and not _reads_at_once(node, place) for place, part in _nodes_in(node))
        for node in walk(tree)
    )


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
