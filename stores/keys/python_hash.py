"""What Python's ``hash`` makes of a text in a process with a given ``PYTHONHASHSEED``.

Source: CPython 3.11, Python/bootstrap_hash.c (``lcg_urandom``: the key of a seed) and Python/pyhash.c (``siphash13``,
the default since 3.11). Numbers and tuples of them hash alike in every process, with ``hash`` itself.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_LARGEST_SEED = 4294967295


def text_hash(text: str, seed: str) -> int | None:
    """Return the hash of an ASCII text under a seed; ``None`` where each process draws its own.

    Raises:
        ValueError: the text is not ASCII, or empty.

    """
    if not text or not text.isascii():
        raise ValueError("only texts of ASCII characters")
    if not seed.isascii() or not seed.isdigit() or int(seed) > _LARGEST_SEED:
        return None  # "random"; anything else is refused by the interpreter
    key = _key(int(seed))
    hashed = _siphash13(int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"), text.encode())
    signed = hashed - (1 << 64) if hashed >> 63 else hashed
    return -2 if signed == -1 else signed


def _key(seed: int) -> bytes:
    if seed == 0:  # no randomness at all
        return bytes(16)
    found = bytearray()
    for _ in range(16):
        seed = (seed * 214013 + 2531011) & 0xFFFFFFFF
        found.append(seed >> 16 & 0xFF)
    return bytes(found)


def _siphash13(first: int, second: int, data: bytes) -> int:
    """SipHash with one round for each word and three at the end (Aumasson and Bernstein, 2012)."""
    state = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        _round(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(state: list[int]) -> None:
    for near, far, turns in ((0, 1, 13), (2, 3, 16), (0, 3, 21), (2, 1, 17)):
        state[near] = (state[near] + state[far]) & _MASK
        state[far] = _turned(state[far], turns) ^ state[near]
        if (near, far) in ((0, 1), (2, 1)):
            state[near] = _turned(state[near], 32)


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK
