"""How far the bounded child is, in memory that both processes see: a message for each conversation would be slow."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import Literal

Doing = Literal["waiting", "rendering", "encoding"]

_KINDS: tuple[Doing, ...] = ("waiting", "rendering", "encoding")
_CELL = struct.Struct("=QQQ")


class Position:
    """Which conversation the child is at.

    Args:
        descriptor: of a file of at least 24 bytes; see :func:`shared`.

    """

    def __init__(self, descriptor: int) -> None:
        self._cell = mmap.mmap(descriptor, _CELL.size)
        self._moves = 0

    def set(self, conversation: int, doing: Doing) -> None:
        """Say that work on this conversation, counted from 0, begins; when waiting or encoding: the last one."""
        self._moves += 1
        _CELL.pack_into(self._cell, 0, self._moves, conversation, _KINDS.index(doing))

    def get(self) -> tuple[int, int, Doing]:
        """Return a number that rises with every move, the conversation, and what is being done with it."""
        moves, conversation, kind = _CELL.unpack_from(self._cell)
        # A child that was taken over may write anything here.
        return moves, conversation, _KINDS[kind] if kind < len(_KINDS) else "waiting"

    def close(self) -> None:
        """Give the memory back."""
        self._cell.close()


def shared() -> int:
    """Return the descriptor of an unnamed file for :class:`Position`; whoever asked closes it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_CELL.size)
        return os.dup(file.fileno())
