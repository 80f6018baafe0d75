"""Decidable prompts: a reference stands in the cached part, and the right answer is that reference.

Ids as the copying model knows them; a real model is asked in its own tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

CLASSES = 3
DIGITS = 16
QUESTION = 256
"""The token behind which the reference is to be named."""
TOKENS = 320
"""Ids that the copying model knows: 256 for bytes, the question, and those of references."""

_FIRST = 264


def reference_token(kind: int, digit: int) -> int:
    """Return the id of one digit of a reference, as its first, second or third."""
    return _FIRST + kind * DIGITS + digit


def reference(label: str) -> tuple[int, ...]:
    """Return a reference of three tokens, made of a label."""
    hashed = hashlib.sha256(label.encode("utf-8", "surrogatepass")).digest()
    return tuple(reference_token(kind, hashed[kind] % DIGITS) for kind in range(CLASSES))


def decidable(label: str, filler: Sequence[int], length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a prompt of so many tokens, and its answer.

    Args:
        label: what the reference is made of: another label, another answer.
        filler: ids that are repeated round the reference, as bytes.
        length: tokens in all.

    """
    answer = reference(label)
    text = [filler[number % len(filler)] % 256 for number in range(length - len(answer) - 1)]
    return (*text[:8], *answer, *text[8:], QUESTION), answer
