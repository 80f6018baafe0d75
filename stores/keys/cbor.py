"""The few kinds of values that engines hash, in CBOR's deterministic encoding (RFC 8949, sections 3 and 4.2.1)."""

from __future__ import annotations

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = range(5)


def cbor(value: object) -> bytes:
    """Encode whole numbers, bytes, text, ``None`` and tuples of those.

    Raises:
        TypeError: for a value of another kind.

    """
    if value is None:
        return b"\xf6"
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(_TEXT, len(text)) + text
    if isinstance(value, tuple):
        return _head(_ARRAY, len(value)) + b"".join(map(cbor, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    raise TypeError(f"{type(value).__name__} is not encoded")


def _head(major: int, argument: int) -> bytes:
    """The kind of a value, and its size or amount in as few bytes as hold it."""
    if argument < 24:
        return bytes([major << 5 | argument])
    for code, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * width:
            return bytes([major << 5 | code]) + argument.to_bytes(width, "big")
    raise TypeError("a number of more than 64 bits is not encoded")
