"""JSON of a launch line in which a shell, or Kubernetes, fills in some of the texts: what is known all the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.deployments.launch.secrets import clean
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

# A variable alone: what a command prints, or a shell cuts out of a value, may be anything.
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|\([A-Za-z_][A-Za-z0-9_]*\))")


def partly_known(text: object, expansions: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return a JSON object without its credentials, and the labels that are left in its texts.

    ``None`` where more may be filled in than a part of a text: a key, a number, a whole structure. A value with a
    quotation mark in it could still make one; nobody writes that where an address or a password stands.

    Args:
        text: what stands in the line.
        expansions: the labels in it.
    """
    if not isinstance(text, str) or not all(map(_VARIABLE.fullmatch, expansions)):
        return None
    try:
        found = parse_json(text, "")
    except InputError:
        return None
    labels = dict.fromkeys(expansions)
    if not isinstance(found, dict) or any(_count(found, label) != text.count(label) for label in labels):
        return None
    known, _ = clean(found)
    return known, tuple(label for label in labels if _count(known, label))


def label_in(value: Any, labels: Sequence[str]) -> str | None:
    """Return the first of some labels that stands in a text of a JSON value."""
    return next((label for label in labels if _count(value, label)), None)


def _count(value: Any, label: str) -> int:
    """Say how often a label stands in the texts of a JSON value; keys are none."""
    if isinstance(value, Mapping):
        return sum(_count(item, label) for item in value.values())
    if isinstance(value, list):
        return sum(_count(item, label) for item in value)
    return value.count(label) if isinstance(value, str) else 0
