"""How long two sequences are equal from their start."""

from __future__ import annotations

from array import array
from typing import TypeVar

Sequences = TypeVar("Sequences", "array[int]", str, "list[int]")


def common(old: Sequences, new: Sequences) -> int:
    """Return the length of the common beginning, by halving: comparing slices runs at memory speed."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high:  # old[:low] is equal throughout, old[:high + 1] is not
        middle = (low + high) // 2
        if old[low : middle + 1] == new[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low
