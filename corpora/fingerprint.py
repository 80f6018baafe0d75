"""The digest of a JSON value in this room: BLAKE3 over one spelling of it."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3


def fingerprint(value: Any) -> str:
    """Return ``"blake3:<64 hex>"`` of ``value``: keys sorted, ASCII only, no white space.

    Not :func:`kvgate.rules.canonical.canonical_json`: a backend holds some hundred thousand entries, which
    take RFC 8785 in Python seconds, and lone surrogates, which that standard has no spelling for.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"blake3:{blake3(text.encode('ascii')).hexdigest()}"
