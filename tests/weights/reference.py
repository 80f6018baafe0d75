"""BLAKE3's nodes in plain Python, from its specification: for counters and depths that no file here reaches."""

from __future__ import annotations

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
MASK = 0xFFFFFFFF


def _compress(chain: list[int], block: bytes, counter: int, flags: int) -> list[int]:
    padded = block.ljust(64, b"\0")
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, 64, 4)]
    state = [*chain, *IV[:4], counter & MASK, counter >> 32, len(block), flags]
    for _ in range(7):
        for number, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            for word, by, then in ((words[2 * number], 16, 12), (words[2 * number + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & MASK
                state[d] = _rotate(state[d] ^ state[a], by)
                state[c] = (state[c] + state[d]) & MASK
                state[b] = _rotate(state[b] ^ state[c], then)
        words = [words[index] for index in PERMUTATION]
    return [state[index] ^ state[index + 8] for index in range(8)]


def _rotate(word: int, by: int) -> int:
    return (word >> by | word << (32 - by)) & MASK


def _bytes(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def chunk(data: bytes, counter: int, root: bool = False) -> bytes:
    """Return the chaining value of up to 1024 bytes, or the digest where they are all there is."""
    chain = list(IV)
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    for number, block in enumerate(blocks):
        last = number == len(blocks) - 1
        chain = _compress(chain, block, counter, (number == 0) | 2 * last | 8 * (root and last))
    return _bytes(chain)


def parent(left: bytes, right: bytes, root: bool = False) -> bytes:
    """Return the chaining value of two nodes, or the digest where there are no others."""
    return _bytes(_compress(list(IV), left + right, 0, 4 | 8 * root))
