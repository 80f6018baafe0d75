"""Which ids have been seen, where there may be millions of them."""

from __future__ import annotations

import hashlib
from array import array

_SMALLEST = 1 << 10


class Seen:
    """A set of ids that takes 11 to 32 bytes for each, whatever its length; a ``set`` of their digests takes 90.

    An id is remembered by 8 bytes of its BLAKE2b digest: among ten million ids the chance that any two are taken for
    the same is 3 in a million, and an input is refused then that was none the worse.
    """

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _SMALLEST))  # open addressing; 0 is an empty place
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, name: str) -> bool:
        """Remember an id; whether it is a new one."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if not self._put(int.from_bytes(digest, "little") or 1):
            return False
        self._count += 1
        if 4 * self._count > 3 * len(self._table):
            old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
            for number in old:
                if number:
                    self._put(number)
        return True

    def _put(self, number: int) -> bool:
        table = self._table
        mask = len(table) - 1
        place = number & mask
        while (found := table[place]) != 0:
            if found == number:
                return False
            place = (place + 1) & mask
        table[place] = number
        return True
