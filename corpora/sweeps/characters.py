"""Strings of single characters: every assigned one, alone, in context, and in its other normal forms."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

UNICODE = unicodedata.unidata_version
"""The version of Unicode that this Python knows: the newest characters may be missing."""

_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
_PRIVATE_PLANES = 0xF0000  # from here on all are for private use, and alike


@cache
def assigned() -> tuple[str, ...]:
    """Return every assigned code point that text can hold: all but surrogates, private use included."""
    every = map(chr, range(0x110000))
    return tuple(character for character in every if unicodedata.category(character) not in ("Cn", "Cs"))


def in_context(characters: Sequence[str]) -> Iterator[str]:
    """Yield each character between letters, and between a space and a digit.

    A rule that tells two classes of characters apart shows at one of these borders.
    """
    return (f"a{one}a {one}1" for one in characters if ord(one) < _PRIVATE_PLANES)


def other_forms(characters: Sequence[str]) -> Iterator[str]:
    """Yield what normalisation makes of the characters that it changes, with a letter behind it."""
    for one in characters:
        if unicodedata.normalize("NFKD", one) == one:
            continue  # what is not taken apart by this one is left alone by the others
        forms = {unicodedata.normalize(form, one) for form in _FORMS} - {one}
        yield from (f"{form}a" for form in sorted(forms))
