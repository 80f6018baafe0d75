"""BLAKE3 as two Triton kernels: one lane hashes one chunk of 1024 bytes, then one lane joins two subtrees.

Written from the BLAKE3 specification (https://github.com/BLAKE3-team/BLAKE3-specs): the compression function
(section 2.2), the chunk chaining values (2.4), the parent nodes (2.5), the shape of the tree (2.1).

What makes it fast is that everything a lane computes with stays in its registers: 16 words of state, 16 of
message. The message schedule is a renaming of variables, because the rounds are written out. A lane reads
its chunk 16 bytes at a time, so that a warp touches each memory sector in two neighbouring loads and the
loads stay well below what the arithmetic takes.

Both kernels look their work up in one table, so that one launch serves any number of segments, and both
count bytes, chunks and addresses in 64 bits. A segment is a run of bytes that is a tensor, or a subtree of
one: :mod:`kvgate.weights.device.tree` makes the table and says how the segments make a tree.

The table has 64-bit integers in rows, one column per segment, and one more column that closes ``FIRST``:

======== =====================================================================================
FIRST    the segment's first slot: how many chunks the segments before it have
ADDRESS  where its bytes begin
BYTES    how many it has; a segment without any still is one chunk
COUNTER  the number of its first chunk within its tensor
ROOT     1 where the segment is a whole tensor, 0 where it is a subtree of one
======== =====================================================================================

A slot holds 8 words: the chaining value of a chunk, later that of the subtree that begins with that chunk.
The subtrees of height ``level`` are joined where they lie: node ``i`` of a segment is in slot ``i << level``,
so a last node without a neighbour is already where the next level looks for it.
"""

# The kernels' parameters are what Triton makes of them; their names in capitals are compile-time constants.
# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(a, b, c, d, x, y):
    """Mix two message words into a column or a diagonal of the state."""
    a = a + b + x
    d = d ^ a
    d = (d >> 16) | (d << 16)
    c = c + d
    b = b ^ c
    b = (b >> 12) | (b << 20)
    a = a + b + y
    d = d ^ a
    d = (d >> 8) | (d << 24)
    c = c + d
    b = b ^ c
    b = (b >> 7) | (b << 25)
    return a, b, c, d


@triton.jit
def _initial(LANES: tl.constexpr):
    """Return the eight words every chunk and every parent node starts from."""
    return (
        tl.full((LANES,), 0x6A09E667, tl.uint32),
        tl.full((LANES,), 0xBB67AE85, tl.uint32),
        tl.full((LANES,), 0x3C6EF372, tl.uint32),
        tl.full((LANES,), 0xA54FF53A, tl.uint32),
        tl.full((LANES,), 0x510E527F, tl.uint32),
        tl.full((LANES,), 0x9B05688C, tl.uint32),
        tl.full((LANES,), 0x1F83D9AB, tl.uint32),
        tl.full((LANES,), 0x5BE0CD19, tl.uint32),
    )


@triton.jit
def _compressed(
    h0, h1, h2, h3, h4, h5, h6, h7,
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
    low, high, length, flags, LANES: tl.constexpr,
):  # fmt: skip
    """Compress one block of 64 bytes into a chaining value; seven rounds, the message permuted between them."""
    v0, v1, v2, v3, v4, v5, v6, v7 = h0, h1, h2, h3, h4, h5, h6, h7
    v8, v9, v10, v11, _a, _b, _c, _d = _initial(LANES)
    v12, v13, v14, v15 = low, high, length, flags
    for _round in tl.static_range(7):
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m0, m1)
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m2, m3)
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m4, m5)
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m6, m7)
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m8, m9)
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m10, m11)
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m12, m13)
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m14, m15)
        m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15 = (
            m2, m6, m3, m10, m7, m0, m4, m13, m1, m11, m12, m5, m9, m14, m15, m8
        )  # fmt: skip
    return v0 ^ v8, v1 ^ v9, v2 ^ v10, v3 ^ v11, v4 ^ v12, v5 ^ v13, v6 ^ v14, v7 ^ v15


@triton.jit
def _split_in_four(words, LANES: tl.constexpr):
    """Split words of shape (LANES, 4), which a thread holds side by side, into four of shape (LANES,)."""
    even, odd = tl.split(tl.reshape(words, (LANES, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _four_words(at, live, LANES: tl.constexpr):
    """Load four words from each lane's address, which is a multiple of 16 bytes: one instruction."""
    pointers = tl.multiple_of(at[:, None] + tl.arange(0, 4)[None, :], (1, 16))
    words = tl.load(pointers, mask=live[:, None], other=0)
    return _split_in_four(words.to(tl.uint32, bitcast=True), LANES)


@triton.jit
def _four_words_of_bytes(at, left, LANES: tl.constexpr):
    """Load four words byte by byte from any address; the bytes from ``left`` on are 0 and are not touched."""
    word, byte = tl.arange(0, 4)[None, :, None], tl.arange(0, 4)[None, None, :]
    place = word * 4 + byte
    text = tl.load(at[:, None, None] + place, mask=place < left[:, None, None], other=0).to(tl.uint32)
    return _split_in_four(tl.sum(text << (byte * 8).to(tl.uint32), axis=2), LANES)


@triton.jit
def _segment_of(table, lane, segments, shift, spread, LANES: tl.constexpr):
    """Return each lane's segment: the last one whose first lane is not behind it (binary search).

    The first lane of segment ``s`` is ``(FIRST[s] >> shift) + spread * s``: with a shift of 0 and no spread
    the slot itself. With a shift, slots that share a lane number would collide; the spread keeps the
    segments apart, and gives each as many lanes as it has pairs, or more.
    """
    low = tl.zeros((LANES,), tl.int64)
    high = low + segments
    span = segments
    while span > 0:
        middle = (low + high) >> 1
        begin = (tl.load(table + middle) >> shift) + spread * middle
        after = begin <= lane
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
        span = span >> 1
    return low


# Not specialised: Triton would compile anew for numbers that happen to be 1, or multiples of 16.
@triton.jit(do_not_specialize=["columns", "segments", "slots"])
def hash_chunks(table, columns, segments, slots, chains, LANES: tl.constexpr):
    """Hash every chunk of every segment into its slot.

    Args:
        table: see the module.
        columns: how many columns the table has.
        segments: one less.
        slots: how many chunks there are in all.
        chains: 8 words for each slot; written.
        LANES: chunks per program.
    """
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = lane < slots
    segment = _segment_of(table, lane, segments, 0, 0, LANES)
    first = tl.load(table + segment)
    address = tl.load(table + columns + segment)
    size = tl.load(table + 2 * columns + segment)
    index = lane - first
    begin = index * 1024
    length = tl.where(live, tl.minimum(size - begin, 1024), 1024).to(tl.int32)
    counter = tl.load(table + 3 * columns + segment) + index
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    root = tl.where(size <= 1024, tl.load(table + 4 * columns + segment), 0).to(tl.int32)
    at = address + begin
    blocks = tl.maximum((length + 63) >> 6, 1)
    # All lanes of a program take one path: ragged ends and odd addresses are rare, and cost the others nothing.
    whole = tl.min(((length == 1024) & ((at & 15) == 0)).to(tl.int32), axis=0)
    opening = tl.full((LANES,), 1, tl.int32)
    h0, h1, h2, h3, h4, h5, h6, h7 = _initial(LANES)
    for block in range(16):
        if whole == 1:
            words = (at + block * 64).to(tl.pointer_type(tl.int32))
            m0, m1, m2, m3 = _four_words(words, live, LANES)
            m4, m5, m6, m7 = _four_words(words + 4, live, LANES)
            m8, m9, m10, m11 = _four_words(words + 8, live, LANES)
            m12, m13, m14, m15 = _four_words(words + 12, live, LANES)
        else:
            text = (at + block * 64).to(tl.pointer_type(tl.uint8))
            left = tl.where(live, length - block * 64, 0)
            m0, m1, m2, m3 = _four_words_of_bytes(text, left, LANES)
            m4, m5, m6, m7 = _four_words_of_bytes(text + 16, left - 16, LANES)
            m8, m9, m10, m11 = _four_words_of_bytes(text + 32, left - 32, LANES)
            m12, m13, m14, m15 = _four_words_of_bytes(text + 48, left - 48, LANES)
        # Flags: the first block of a chunk 1, the last 2, the root of the tree 8.
        last = block == blocks - 1
        flags = tl.where(last, 2 + 8 * root, 0) + opening
        opening = tl.zeros((LANES,), tl.int32)
        held = tl.minimum(tl.maximum(length - block * 64, 0), 64)
        n0, n1, n2, n3, n4, n5, n6, n7 = _compressed(
            h0, h1, h2, h3, h4, h5, h6, h7,
            m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
            low, high, held.to(tl.uint32), flags.to(tl.uint32), LANES,
        )  # fmt: skip
        more = block < blocks
        h0, h1, h2, h3 = tl.where(more, n0, h0), tl.where(more, n1, h1), tl.where(more, n2, h2), tl.where(more, n3, h3)
        h4, h5, h6, h7 = tl.where(more, n4, h4), tl.where(more, n5, h5), tl.where(more, n6, h6), tl.where(more, n7, h7)
    _store(chains + lane * 8, live, h0, h1, h2, h3, h4, h5, h6, h7)


@triton.jit(do_not_specialize=["columns", "segments", "level", "lanes"])
def join_pairs(table, columns, segments, level, lanes, chains, LANES: tl.constexpr):
    """Join the subtrees of height ``level`` in pairs, in place; a last one without a neighbour stays.

    Args:
        table: see the module; ``FIRST`` and ``ROOT`` are read.
        columns: how many columns it has.
        segments: one less.
        level: the height of the subtrees that are joined, 0 for chunks.
        lanes: how many lanes there are: ``(slots >> level + 1) + segments``.
        chains: 8 words for each slot; read and written.
        LANES: pairs per program.
    """
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    segment = _segment_of(table, lane, segments, level + 1, 1, LANES)
    first = tl.load(table + segment)
    count = tl.load(table + segment + 1) - first
    pair = lane - ((first >> (level + 1)) + segment)
    left = (pair * 2) << level
    right = (pair * 2 + 1) << level
    live = (lane < lanes) & (right < count)
    top = live & (count <= (tl.full((LANES,), 2, tl.int64) << level))
    root = tl.where(top, tl.load(table + 4 * columns + segment), 0).to(tl.int32)
    near = chains + (first + left) * 8
    far = chains + (first + right) * 8
    m0, m1, m2, m3 = _four_words(near, live, LANES)
    m4, m5, m6, m7 = _four_words(near + 4, live, LANES)
    m8, m9, m10, m11 = _four_words(far, live, LANES)
    m12, m13, m14, m15 = _four_words(far + 4, live, LANES)
    h0, h1, h2, h3, h4, h5, h6, h7 = _initial(LANES)
    zero = tl.zeros((LANES,), tl.uint32)
    flags = (4 + 8 * root).to(tl.uint32)  # a parent node 4, the root of the tree 8
    h0, h1, h2, h3, h4, h5, h6, h7 = _compressed(
        h0, h1, h2, h3, h4, h5, h6, h7,
        m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
        zero, zero, zero + 64, flags, LANES,
    )  # fmt: skip
    _store(near, live, h0, h1, h2, h3, h4, h5, h6, h7)


@triton.jit
def _store(at, live, h0, h1, h2, h3, h4, h5, h6, h7):
    tl.store(at, h0.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 1, h1.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 2, h2.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 3, h3.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 4, h4.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 5, h5.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 6, h6.to(tl.int32, bitcast=True), mask=live)
    tl.store(at + 7, h7.to(tl.int32, bitcast=True), mask=live)
