"""Entries ``NAME=PATH`` of a launch line: an adapter may be called as a credential is."""

from __future__ import annotations

import re
from typing import Any

from kvgate.deployments.launch.secrets import clean, clean_text

# An absolute path, or a repository's name, under a name.
_NAMED_PATH = re.compile(r"[\w.@+-]{1,200}=(?:/[^\s{}\[\]\"']*|[\w.-]+/[\w.-]+)")


def clean_named(items: list[Any]) -> tuple[list[Any], bool]:
    """Return ``NAME=PATH`` entries without those that hold a credential, and whether any did.

    What stands before the sign is a name that somebody gave, of an adapter say, and makes no credential of a path
    behind it. An entry of any other form is cleaned as every text is, beside its like.
    """
    others = [item for item in items if not isinstance(item, str) or _NAMED_PATH.fullmatch(item) is None]
    kept, dropped = clean(others)
    if dropped or not isinstance(kept, list):
        return [], True
    whole = [item for item in items if item in others or all(clean_text(part) == part for part in item.split("=", 1))]
    return whole, len(whole) < len(items)
