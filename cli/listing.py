"""What the commands that list things share: the choice between text and JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from kvgate.cli.plain import visible_json
from kvgate.rules.errors import UsageError


def json_wanted(output: str) -> bool:
    """Whether ``-o`` asks for JSON.

    Raises:
        UsageError: it asks for neither text nor JSON.

    """
    if output not in ("text", "json"):
        raise UsageError(f"there is no format {output!r}", where="-o", hint="formats: text, json")
    return output == "json"


def as_json(value: Any) -> str:
    """Return a value as indented JSON and a line feed, harmless on a terminal."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return visible_json(text) if sys.stdout.isatty() else text
