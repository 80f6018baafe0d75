"""What a change reaches beyond its own place: names that it sets, and the branches that read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kvgate.corpora.coverage.tree import Node, walk

# What gives a name a value, or decides whether it gets one.
_CARRIERS = frozenset({"Assign", "AssignBlock", "For", "If", "Macro", "CallBlock", "With"})
_BRANCHES = {("If", 1): 0, ("If", 2): 1, ("For", 2): 0, ("Macro", 3): 0, ("CallBlock", 3): 0}


def reached(tree: Node, changed: Iterable[Node]) -> frozenset[int]:
    """Return the numbers of the branches in which something reads what the changed pieces set.

    Names are followed through assignments, and through conditions under which something is assigned. A name stands
    for every variable of that name: scopes are not told apart.

    Args:
        tree: the whole template.
        changed: pieces of it.

    """
    waiting = list({name for node in changed for name in _assigned(node)})
    if not waiting:
        return frozenset()
    carried: dict[str, list[set[str]]] = defaultdict(list)
    for node in walk(tree):
        if node.kind in _CARRIERS:
            assigned = _assigned(node)
            for name in _read(node) if assigned else ():
                carried[name].append(assigned)
    names: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            for assigned in carried.pop(name, ()):
                waiting.extend(assigned - names)
    return frozenset(_readers(tree, names, ()))


def _assigned(node: Node) -> set[str]:
    return {
        each.word(0)
        for each in walk(node)
        if (each.kind == "Name" and each.word(1) != "load") or each.kind in ("NSRef", "Macro")
    }


def _read(node: Node) -> set[str]:
    return {each.word(0) for each in walk(node) if each.kind == "Name" and each.word(1) == "load"}


def _readers(node: Node, names: set[str], arms: tuple[int, ...]) -> Iterator[int]:
    """The branches round every place that reads one of the names, and those that the reading decides."""
    if node.kind == "Name" and node.word(1) == "load" and node.word(0) in names:
        yield from arms
    for place, part in enumerate(node.parts):
        if isinstance(part, Node):
            # A head decides which of the branches runs; within a body, the branches round it suffice.
            yield from _readers(part, names, (*arms, *node.arms))
        elif isinstance(part, tuple):
            branch = _BRANCHES.get((node.kind, place))
            inner = arms if branch is None else (*arms, node.arms[branch])
            for each in part:
                if isinstance(each, Node):
                    yield from _readers(each, names, inner)
