"""Adapters: content decides; a name that stays says nothing about the bytes behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import UNVERIFIED, Change, same
from kvgate.rules.compare.sides import Sides
from kvgate.rules.values import UNKNOWN, Basis, Field, Known


def compare_adapters(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare adapters by name.

    Kinds: ``replaced``, ``replaced-in-place``, ``added``, ``removed``, ``forgotten``, ``moved``, ``unverified``.
    A tombstone (``removed: true``) keeps the digest under which a name was used, so that the name coming
    back with other bytes is a replacement. It speaks of what the store holds, so its bytes are those of the entry
    that it follows, or it would clear them for the next one; and where it is left out, that is said.
    In place: adapters can be loaded while readers share the store.
    """
    path = dimension.paths[0]
    if sides.same(path) is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    old: Mapping[str, Any] = sides.old.value(path) or {}
    new: Mapping[str, Any] = sides.new.value(path) or {}
    in_place = _in_place(sides)
    changes = []
    for name in sorted({*old, *new}):
        found = _one(old.get(name), new.get(name), sides.old.basis(path), sides.new.basis(path), in_place)
        if found is not None:
            kind, before, after, detail = found
            changes.append(Change(dimension.id, kind, f"{path}.{name}", before, after, f"adapter:{name}", detail))
    return changes


def _in_place(sides: Sides) -> bool | None:
    """Whether adapters can be swapped while readers share the store; ``None`` where either side does not say."""
    if sides.old_cover.absent:
        return False  # there are no old entries that readers could go on hitting
    features = [side.get("request_features") for side in (sides.old, sides.new)]
    if any(isinstance(field, Known) and "lora_hot_load" in (field.value or ()) for field in features):
        return True
    return False if all(isinstance(field, Known) for field in features) else None


def _one(
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    old_basis: Basis,
    new_basis: Basis,
    in_place: bool | None,
) -> tuple[str, Field, Field, str] | None:
    before, after = _digest(old, old_basis), _digest(new, new_basis)
    was_gone = old is not None and old.get("removed") is True
    if new is None:
        if was_gone:
            return "forgotten", before, after, "its entries stay on the cleanup list, of bytes that no manifest tells"
        return None if old is None else ("removed", before, after, _CLEANUP)
    if new.get("removed") is True:
        # Never there is no change.
        return None if old is None else _buried(before, after, was_gone, old_basis)
    if old is None:
        return "added", before, after, ""
    equal = same(before, after)
    if equal is None or (equal and "declared" in (old_basis, new_basis)):
        return UNVERIFIED, before, after, "no computed digest on both sides"
    if not equal:
        if was_gone:
            return "replaced", before, after, "the name comes back with other bytes"
        if in_place is None:
            return (
                UNVERIFIED,
                before,
                after,
                "other bytes under the same name; whether they were swapped in place is not known",
            )
        return ("replaced-in-place" if in_place else "replaced"), before, after, "other bytes under the same name"
    if was_gone:
        return "added", before, after, "the same bytes come back"
    if any(old.get(part) != new.get(part) for part in ("rank", "alpha")):
        # The digest covers both (kvgate.weights.adapters), so one of the manifests was edited.
        return UNVERIFIED, before, after, "equal digests, but rank and alpha are not known to be equal"
    if old.get("path") != new.get("path"):
        return "moved", Known(old.get("path")), Known(new.get("path")), "the same bytes at another path"
    return None


_CLEANUP = "its entries go on the cleanup list"


def _buried(before: Field, after: Field, was_gone: bool, basis: Basis) -> tuple[str, Field, Field, str] | None:
    """Compare a tombstone with the entry that it follows, which may be one itself; ``basis``: of that entry."""
    equal = same(before, after)
    if equal is None:
        return UNVERIFIED, before, after, "the tombstone is not known to be of the bytes that were there"
    if not equal:
        return "replaced", before, after, "the tombstone is not of the bytes that were there"
    if was_gone:
        return None
    if basis == "declared":
        return UNVERIFIED, before, after, "nobody computed which bytes were there, so the tombstone is of none"
    return "removed", before, after, _CLEANUP


def _digest(entry: Mapping[str, Any] | None, basis: Basis) -> Field:
    if entry is None or entry.get("digest") is None:
        return UNKNOWN if entry is not None else Known(None)
    return Known(entry["digest"], basis)
