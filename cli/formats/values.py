"""Values of a manifest as a reader knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvgate.cli.plain import short, short_digests

_WORD = 40  # characters; what is longer is a sentence
_LONGEST = 160  # characters of one value; the record holds it whole


def value_text(value: Any) -> str:
    """Return a value as a reader knows it from the manifest: bare where it is a plain word, else compact JSON."""
    if isinstance(value, str) and value and not value.isspace() and value not in ("null", "true", "false"):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    return short(short_digests(text), _LONGEST)


def figure_text(value: Any) -> str:
    """Return a figure of evidence as a reader takes it in: names and numbers, four digits of each.

    A list of several things gives the first and says how many there are. Sentences below a figure are left to the
    record, which holds all: evidence has a reason.
    """
    return short(short_digests(_figure(value)), _LONGEST)


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_nested(item)}" for name, item in value.items() if _counts(item))
    if isinstance(value, list) and value:
        more = f" and {len(value) - 1} more" if len(value) > 1 else ""
        return f"{_nested(value[0])}{more}"
    return value_text(value)


def _nested(value: Any) -> str:
    return f"({_figure(value)})" if isinstance(value, (Mapping, list)) and value else _figure(value)


def _counts(item: Any) -> bool:
    """Whether a part of a figure says something in a word: no sentence, and no group of zeros."""
    if isinstance(item, Mapping):
        return any(item.values())
    return item not in (None, "", []) and not (isinstance(item, str) and len(item) > _WORD)


def side_text(side: Mapping[str, Any]) -> str | None:
    """Return one side of a change, as a record has it; ``None``: it is not known."""
    return None if "value" not in side else value_text(side["value"])


def place_text(side: Mapping[str, Any]) -> str:
    """Return a part of an address, which may be known to be left unset."""
    return "(not set)" if side.get("value", "") is None else side_text(side) or "(not known)"
