"""What a launch file says about the store that outlives the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CACHE_PATHS = (
    "cache.connector",
    "cache.location",
    "cache.namespace",
    "cache.chunk_size",
    "cache.serde",
)


@dataclass
class CacheFacts:
    """What a launch line says about the store.

    Attributes:
        values: manifest paths under ``cache``; a path that is not there is unknown.
        rest: settings of the connector that have no path of their own: they count in ``engine.args``.
        unknown: paths and why.
        notes: sentences for the reader.
        tiers: the stores, where there are several; ``cache.location`` has to name them all.
        split_roles: the line starts only one half of a prefill/decode pair.
    """

    values: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)
    split_roles: bool = False

    def settle(self, path: str, value: Any) -> None:
        """Write a value."""
        self.values[path] = value

    def doubt(self, path: str, reason: str) -> None:
        """Leave a path unknown."""
        self.values.pop(path, None)
        self.unknown.append((path, reason))
