"""A file of tensors whose header was read and checked: what every format comes down to before a byte is hashed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvgate.weights.files import Stamp


class TensorRecord(NamedTuple):
    """Where one tensor lies.

    Attributes:
        name: its name.
        dtype: the name of its type, as the digest takes it.
        shape: its dimensions, outermost first.
        begin: its first byte, counted from the start of the file.
        end: one past its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorFile:
    """A file whose header was read and found right.

    Attributes:
        path: where it is.
        name: how it is called in messages and in the layout: its path relative to the checkpoint.
        stamp: the state of the file when its header was read.
        tensors: its tensors in the order of their bytes.
    """

    path: Path
    name: str
    stamp: Stamp
    tensors: tuple[TensorRecord, ...]
