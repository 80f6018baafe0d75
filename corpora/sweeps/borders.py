"""Strings in which classes of characters meet: in twos and threes, in runs, in numbers and contractions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

# One or two of each class that a normaliser or pre-tokenizer of a public model tells apart from another.
_LETTERS = "aZéßǅʰ中ญاかー한क"
_NUMBERS = "1٣²Ⅷ"
_SPACES = " \u00a0\u3000\t\n\r\u2028"
_MARKS = "\u0301\u093e\ufe0f"
_SIGNS = ".'’-_/<$+"
_OTHERS = "😀🏽\u200b\u200d\u00ad\x00\u202e\ue000"
CLASSES = _LETTERS + _NUMBERS + _SPACES + _MARKS + _SIGNS + _OTHERS

_CONTRACTIONS = ("s", "t", "re", "ve", "m", "ll", "d", "ſ")
_RUNS = (
    " ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "1",
    "٣",
    "a",
    "A",
    "中",
    "😀",
    ".",
    "-",
    "=",
    "_",
    "\u0301",
    "'",
    "/",
    "\n ",
)
_LENGTHS = (*range(1, 13), 15, 16, 17, 24, 31, 32, 33, 64, 65, 128)
_NUMERALS = ("1,234.56", "12 345", "1.2.3", "007", "1e10", "0x1F", "3.14", "1/2", "10:30", "2026-11-29", "1st", "x1y2")


def meetings() -> Iterator[str]:
    """Yield every three classes in a row, which holds every two at a beginning and at an end."""
    return map("".join, itertools.product(CLASSES, repeat=3))


def runs() -> Iterator[str]:
    """Yield runs of several lengths, alone and next to a letter or digit; digits counted up."""
    for one, length in itertools.product(_RUNS, _LENGTHS):
        run = one * length
        yield from (run, f"{run}a", f"a{run}", f"a{run}a", f"1{run}1", f"a {run} a", f".{run}.")
    for length in _LENGTHS:
        run = ("1234567890" * 13)[:length]
        yield from (run, f" {run}", f"a{run}", f"{run}a", f"-{run}", f"{run}.{run}")
    yield from _NUMERALS


def contractions() -> Iterator[str]:
    """Yield the English contractions that pre-tokenizers name, in both cases and with both apostrophes."""
    for mark, ending in itertools.product("'’", _CONTRACTIONS):
        for written in {ending, ending.upper(), ending.capitalize()}:
            yield from (
                f"{before}{mark}{written}{after}" for before in ("", "a", " ", "1", "中") for after in ("", "a", " a")
            )
