"""Canonical JSON and the digests made of it: one spelling for equal values, everywhere in kvgate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import rfc8785

_SAFE_INTEGER = 2**53 - 1  # RFC 8785 section 3.2.2.3: numbers are IEEE 754 doubles


def canonical(value: Any) -> Any:
    """Return ``value`` in the form in which equal meanings are equal: what :func:`canonical_json` encodes.

    Integral floats become integers (``10000.0`` and ``10000`` are one RoPE base); integers that a double
    cannot hold and the non-finite floats, which JSON does not have, become tagged strings; tuples become
    lists; mapping keys must be strings.

    Raises:
        TypeError: for a value that JSON cannot express.

    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else f"int:{value}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"float:{value}"
        return canonical(int(value)) if value.is_integer() else value
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, (dict, Mapping)):  # dict first: asking an abstract class is slow
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"mapping keys must be strings, not {type(key).__name__}")
        return {key: canonical(value[key]) for key in sorted(value)}
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def canonical_json(value: Any) -> bytes:
    """Encode ``value`` as RFC 8785 canonical JSON after :func:`canonical`."""
    return rfc8785.dumps(canonical(value))


def sha256(data: bytes) -> str:
    """Return ``"sha256:<64 hex>"`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 digest of ``value``'s canonical JSON, as ``"sha256:<64 hex>"``."""
    return sha256(canonical_json(value))
