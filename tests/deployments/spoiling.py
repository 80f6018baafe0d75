"""Places of a document that hostile tests put something else into."""

from __future__ import annotations

from typing import Any


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place of a document, by the keys and positions that lead to it."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places_in(item, (*path, key))
    return found
