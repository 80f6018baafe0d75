"""A plain walk over two canonical manifests, for tests that decide thousands of times: DeepDiff takes half the time.

``test_law.test_both_walks_agree`` shows that it makes no difference.
"""

from __future__ import annotations

from typing import Any

_ABSENT = object()


def walk(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the paths at which two canonical manifests differ, lists whole."""
    if old is new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for key in sorted({*old, *new})
            if (before := old.get(key, _ABSENT)) is not (after := new.get(key, _ABSENT))
            for found in walk(before, after, f"{path}.{key}" if path else key)
        ]
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return [] if same else [path]
