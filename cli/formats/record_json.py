"""The decision record itself, as it is signed, attached and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.record import record_bytes


def render_json(record: Mapping[str, Any]) -> str:
    """Render a decision record as canonical JSON and one line feed; nothing in it is abbreviated."""
    return record_bytes(record).decode("utf-8")
