"""Segments and tables: the numbers that a device would only see with many gigabytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgate.weights.device.tree import CHUNK, Segment, chunks_of, levels_of, offsets, pieces_of, table_of

from .reference import chunk, parent


def test_a_tensor_of_a_hundred_gibibytes_is_cut_without_losing_a_byte() -> None:
    size, piece = (100 << 30) + 12345, 1 << 16
    pieces = list(pieces_of(size, piece))
    assert pieces[0] == (0, piece * CHUNK)
    assert all(end == begin for (_, end), (begin, _) in pairwise(pieces))
    assert pieces[-1][1] == size
    assert all(begin % (piece * CHUNK) == 0 for begin, _ in pieces)


def test_the_table_counts_beyond_32_bits() -> None:
    address, size = (1 << 46) + 16, (1 << 45) + 1
    rows = table_of([Segment(address, size, 1 << 36, root=False), Segment(7, 0, 0, root=True)])
    assert rows == [
        [0, (1 << 35) + 1, (1 << 35) + 2],
        [address, 7, 0],
        [size, 0, 0],
        [1 << 36, 0, 0],
        [0, 1, 0],
    ]


def test_nothing_is_one_empty_piece() -> None:
    assert list(pieces_of(0, 4)) == [(0, 0)]
    assert [chunks_of(size) for size in (0, 1, 1024, 1025)] == [1, 1, 1, 2]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_every_segment_has_lanes_of_its_own_for_every_pair(counts: list[int]) -> None:
    """The kernel finds a lane's segment by ``(FIRST >> level + 1) + number``: enough lanes, never shared."""
    first = offsets(counts)
    for level in range(levels_of(first)):
        starts = [(begin >> (level + 1)) + number for number, begin in enumerate(first)]
        for number, count in enumerate(counts):
            nodes = -(-count >> level)
            assert starts[number + 1] - starts[number] >= nodes // 2
        assert starts[-1] == (first[-1] >> (level + 1)) + len(counts)


@pytest.mark.parametrize("piece", [1, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 23])
def test_joining_in_place_level_by_level_makes_blake3s_tree(count: int, piece: int) -> None:
    """What the launches do, in plain Python: subtrees of ``piece`` chunks first, then their nodes."""
    data = bytes(i % 251 for i in range(count * CHUNK - 7))
    nodes = []
    for begin, end in pieces_of(len(data), piece):
        whole = end - begin == len(data)
        chunks = [data[at : min(at + CHUNK, end)] for at in range(begin, end, CHUNK)]
        lone = whole and len(chunks) == 1
        slots = [chunk(each, begin // CHUNK + number, root=lone) for number, each in enumerate(chunks)]
        nodes.append(_joined(slots, root=whole))
    assert _joined(nodes, root=True) == blake3(data).digest()


def _joined(slots: list[bytes], root: bool) -> bytes:
    for level in range(levels_of([0, len(slots)])):
        for left in range(0, len(slots), 2 << level):
            right = left + (1 << level)
            if right < len(slots):
                slots[left] = parent(slots[left], slots[right], root=root and len(slots) <= 2 << level)
    return slots[0]
