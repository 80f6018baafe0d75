"""How tensors become segments, and segments the table that the kernels read; numbers only, no device.

BLAKE3 hashes chunks of 1024 bytes and joins them in a binary tree whose left side is always a full one: the
largest power of two that leaves something for the right. Joining neighbours level by level, and carrying a
last one without a neighbour up unchanged, makes the same tree. So a run of ``2**k`` chunks that begins at a
multiple of ``2**k`` is a subtree: a large tensor is cut into such pieces, each becomes one node in bounded
memory, and the nodes are joined like chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

CHUNK = 1024  # bytes


@dataclass(frozen=True)
class Limits:
    """What bounds the memory of a pass.

    Attributes:
        piece: chunks a tensor is cut into subtrees of, a power of two.
        batch: chunks that are hashed per launch, at least ``piece``; each takes 32 bytes of device memory.
        staging: bytes of copies (of tensors that do not lie in one run) per launch, at least one piece.
        lanes: chunks per program.
    """

    piece: int = 1 << 16
    batch: int = 1 << 20
    staging: int = 256 << 20
    lanes: int = 128


LIMITS = Limits()


class Segment(NamedTuple):
    """A run of bytes on the device: a whole tensor, or a subtree of one.

    Attributes:
        address: where it begins.
        size: its bytes.
        counter: the number of its first chunk within its tensor.
        root: whether it is the whole tensor.
    """

    address: int
    size: int
    counter: int
    root: bool


def chunks_of(size: int) -> int:
    """Return how many chunks ``size`` bytes are; nothing is one empty chunk."""
    return max(1, -(-size // CHUNK))


def pieces_of(size: int, piece: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end, in bytes, of the subtrees of ``piece`` chunks of a tensor; of nothing one, empty."""
    step = piece * CHUNK
    for begin in range(0, max(size, 1), step):
        yield begin, min(begin + step, size)


def table_of(segments: Sequence[Segment]) -> list[list[int]]:
    """Return the rows FIRST, ADDRESS, BYTES, COUNTER, ROOT that :mod:`kvgate.weights.device.kernels` describes."""
    first = offsets(chunks_of(segment.size) for segment in segments)
    return [
        first,
        [segment.address for segment in segments] + [0],
        [segment.size for segment in segments] + [0],
        [segment.counter for segment in segments] + [0],
        [int(segment.root) for segment in segments] + [0],
    ]


def table_of_nodes(counts: Sequence[int]) -> list[list[int]]:
    """Return the table for joining ``counts`` nodes per tensor, which lie one after another, to roots."""
    unread = [0] * (len(counts) + 1)
    return [offsets(counts), unread, unread, unread, [1] * len(counts) + [0]]


def offsets(counts: Iterable[int]) -> list[int]:
    """Return where each of several runs begins, and where the last one ends."""
    found = [0]
    for count in counts:
        found.append(found[-1] + count)
    return found


def levels_of(first: Sequence[int]) -> int:
    """Return how often the nodes of the segments that begin at ``first`` must be joined to leave one each."""
    return max((end - begin - 1).bit_length() for begin, end in pairwise(first))
