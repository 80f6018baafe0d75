"""What the comparisons find: typed changes, before any rule has spoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.rules.values import Field, Known

UNVERIFIED = "unverified"
"""The kind, or the end of the kind, of every change that is one only because something is not known."""


PROFILE = "profile"
"""What is lacking where nobody knows what the key holds: no value in a manifest settles it."""


UNCLASSIFIED = "unclassified"
"""Dimension and kind of a change that no comparison claimed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference, or one thing that could not be compared.

    Attributes:
        dimension: id in the catalogue.
        kind: what sort of difference; each comparison names its own, :data:`UNVERIFIED` is common to all.
        path: the manifest path, with the entry of a complete collection after it where it is about one.
        old: the old side's field; ``Unknown`` for what only the new deployment has to answer for.
        new: the new side's field.
        scope: which entries it concerns: ``all``, ``adapter:NAME``, ``media``, ``tenant``.
        lacks: the path whose value would settle it, where that is another than ``path``, or :data:`PROFILE`.
        detail: what was seen, one clause; empty where old and new say it all.

    """

    dimension: str
    kind: str
    path: str
    old: Field
    new: Field
    scope: str = "all"
    detail: str = ""
    lacks: str | None = None

    @property
    def unverified(self) -> bool:
        """Whether it is a change only because something is not known."""
        return self.kind.endswith(UNVERIFIED)


def same(old: Field, new: Field) -> bool | None:
    """Whether two fields hold the same value: ``None`` where either is unknown."""
    if not isinstance(old, Known) or not isinstance(new, Known):
        return None
    return alike(old.value, new.value)


def alike(old: Any, new: Any) -> bool:
    """Whether two canonical values are the same; a boolean is no number, at any depth, although True == 1."""
    if old is new:
        return True
    if old is None or isinstance(old, (str, int, float)):
        return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(alike(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(alike, old, new))
    return bool(old == new)


def measured(field: Field) -> bool:
    """Whether a field was computed or observed, not merely declared."""
    return isinstance(field, Known) and field.basis != "declared"
