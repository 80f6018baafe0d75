"""What was approved against what came up, item by item, and whether that is enough to send it requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvgate.rules.canonical import canonical_json

ItemState = Literal["same", "differs", "not asked"]
ReadyState = Literal["ready", "not ready", "cannot tell"]

_LONGEST = 200


@dataclass(frozen=True)
class Item:
    """One thing that was approved.

    Attributes:
        name: a manifest path, or ``record``, ``pool``, ``process``, ``untold``, ``weights``, ``tokens``.
        state: ``not asked``: the server does not tell it, or the manifest holds nothing to compare it with.
        why: where it was told, or why it was not asked; one clause.
        approved: as the manifest has it, for reading.
        found: as the server has it.
    """

    name: str
    state: ItemState
    why: str
    approved: str = ""
    found: str = ""


@dataclass(frozen=True)
class Readiness:
    """Whether a worker is the one that was approved.

    Attributes:
        items: everything that was approved and that a worker could be asked.
        unasked: names of items that the operator accepts without an answer.
    """

    items: tuple[Item, ...]
    unasked: frozenset[str] = frozenset()

    @property
    def differing(self) -> int:
        """How many items are not as they were approved."""
        return sum(item.state == "differs" for item in self.items)

    @property
    def state(self) -> ReadyState:
        """Ready takes an answer to everything, apart from what the operator takes without one."""
        if self.differing:
            return "not ready"
        left = [item for item in self.items if item.state == "not asked" and item.name not in self.unasked]
        return "cannot tell" if left or not any(item.state == "same" for item in self.items) else "ready"


def compared(name: str, approved: Any, found: Any, where: str, *, equal: bool) -> Item:
    """Return an item of which both sides are known."""
    return Item(name, "same" if equal else "differs", where, shown(approved), shown(found))


def shown(value: Any) -> str:
    """Return a value for reading, one line and not long."""
    if value is None or value in ([], {}):
        return "none"
    text = value if isinstance(value, str) else canonical_json(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def unknown_names(names: Collection[str], items: Sequence[Item]) -> list[str]:
    """Return the names that are no item's, sorted: one that is mistyped would take nothing without an answer."""
    return sorted(set(names) - {item.name for item in items})
