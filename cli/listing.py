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
    return format_wanted(output, ("text", "json")) == "json"


def format_wanted(output: str, formats: tuple[str, ...]) -> str:
    """Return the one of ``formats`` that ``-o`` asks for.

    Raises:
        UsageError: it asks for another.

    """
    if output not in formats:
        raise UsageError(f"there is no format {output!r}", where="-o", hint=f"formats: {', '.join(formats)}")
    return output


def as_json(value: Any) -> str:
    """Return a value as indented JSON and a line feed, harmless on a terminal."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return visible_json(text) if sys.stdout.isatty() else text
