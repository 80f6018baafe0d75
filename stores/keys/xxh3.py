"""XXH3 with 128 bits and without a seed, as its specification describes it.

Source: xxHash 0.8.3, doc/xxhash_spec.md (the secret and the primes are its constants). vLLM's ``xxhash`` algorithms
are this one, over what they make of a block.
"""

from __future__ import annotations

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
    "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_64 = (1 << 64) - 1
_STRIPE, _BLOCK = 64, 1024


def xxh3_128(data: bytes) -> bytes:
    """Return the 16 bytes of the hash, the high half first."""
    size = len(data)
    if size <= 16:
        low, high = _short(data, size)
    elif size <= 240:
        low, high = _middle(data, size)
    else:
        low, high = _long(data, size)
    return (high << 64 | low).to_bytes(16, "big")


def _short(data: bytes, size: int) -> tuple[int, int]:
    if size > 8:
        first, last = _read(data, 0), _read(data, size - 8)
        product = (first ^ last ^ _secret(32) ^ _secret(40)) * _P64[0]
        low, high = (product & _64) + (size - 1 << 54) & _64, product >> 64
        last ^= _secret(48) ^ _secret(56)
        high = high + last + (last & 0xFFFFFFFF) * (_P32[1] - 1) & _64
        low ^= int.from_bytes(high.to_bytes(8, "little"), "big")
        product = low * _P64[1]
        return _mixed(product & _64), _mixed((product >> 64) + high * _P64[1] & _64)
    if size > 3:
        both = _read(data, 0, 4) + (_read(data, size - 4, 4) << 32)
        product = (both ^ _secret(16) ^ _secret(24)) * (_P64[0] + (size << 2))
        high = (product >> 64) + (product << 1) & _64
        low = product & _64 ^ high >> 3
        low = (low ^ low >> 35) * _MX2 & _64
        return low ^ low >> 28, _mixed(high)
    if size == 0:
        return _final(_secret(64) ^ _secret(72)), _final(_secret(80) ^ _secret(88))
    low = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
    turned = int.from_bytes(low.to_bytes(4, "little"), "big")
    high = (turned << 13 | turned >> 19) & 0xFFFFFFFF
    return _final(low ^ _secret(0, 4) ^ _secret(4, 4)), _final(high ^ _secret(8, 4) ^ _secret(12, 4))


def _middle(data: bytes, size: int) -> tuple[int, int]:
    sums = (size * _P64[0] & _64, 0)
    if size <= 128:
        for step in range((size - 1) // 32, -1, -1):
            sums = _mix_pair(sums, data, 16 * step, size - 16 * (step + 1), 32 * step)
    else:
        for at in range(0, 128, 32):
            sums = _mix_pair(sums, data, at, at + 16, at)
        sums = (_mixed(sums[0]), _mixed(sums[1]))
        for at in range(128, size - 31, 32):
            sums = _mix_pair(sums, data, at, at + 16, at - 128 + 3)
        sums = _mix_pair(sums, data, size - 16, size - 32, 136 - 17 - 16)
    high = sums[0] * _P64[0] + sums[1] * _P64[3] + size * _P64[1]
    return _mixed(sum(sums) & _64), -_mixed(high & _64) & _64


def _mix_pair(sums: tuple[int, int], data: bytes, one: int, two: int, at: int) -> tuple[int, int]:
    low = sums[0] + _mix_16(data, one, at) & _64
    high = sums[1] + _mix_16(data, two, at + 16) & _64
    low ^= _read(data, two) + _read(data, two + 8) & _64
    return low, high ^ (_read(data, one) + _read(data, one + 8) & _64)


def _mix_16(data: bytes, at: int, secret: int) -> int:
    return _folded(_read(data, at) ^ _secret(secret), _read(data, at + 8) ^ _secret(secret + 8))


def _long(data: bytes, size: int) -> tuple[int, int]:
    lanes = [_P32[2], _P64[0], _P64[1], _P64[2], _P64[3], _P32[1], _P64[4], _P32[0]]
    # The last stripe is the last 64 bytes, whole or not, and is taken on its own.
    for at in range(0, size - 1 - (_STRIPE - 1), _STRIPE):
        _accumulate(lanes, data, at, at % _BLOCK // 8)
        if at % _BLOCK == _BLOCK - _STRIPE:
            for i, lane in enumerate(lanes):
                lanes[i] = (lane ^ lane >> 47 ^ _secret(128 + 8 * i)) * _P32[0] & _64
    _accumulate(lanes, data, size - _STRIPE, 192 - 64 - 7)
    low = _merged(lanes, 11, size * _P64[0] & _64)
    return low, _merged(lanes, 192 - 64 - 11, ~(size * _P64[1]) & _64)


def _accumulate(lanes: list[int], data: bytes, at: int, secret: int) -> None:
    for i in range(8):
        value = _read(data, at + 8 * i)
        key = value ^ _secret(secret + 8 * i)
        lanes[i ^ 1] = lanes[i ^ 1] + value & _64
        lanes[i] = lanes[i] + (key & 0xFFFFFFFF) * (key >> 32) & _64


def _merged(lanes: list[int], secret: int, start: int) -> int:
    for i in range(0, 8, 2):
        start += _folded(lanes[i] ^ _secret(secret + 8 * i), lanes[i + 1] ^ _secret(secret + 8 * i + 8))
    return _mixed(start & _64)


def _folded(one: int, two: int) -> int:
    product = one * two
    return product & _64 ^ product >> 64


def _mixed(value: int) -> int:
    value = (value ^ value >> 37) * _MX1 & _64
    return value ^ value >> 32


def _final(value: int) -> int:
    value = (value ^ value >> 33) * _P64[1] & _64
    value = (value ^ value >> 29) * _P64[2] & _64
    return value ^ value >> 32


def _read(data: bytes, at: int, width: int = 8) -> int:
    return int.from_bytes(data[at : at + width], "little")


def _secret(at: int, width: int = 8) -> int:
    return _read(_SECRET, at, width)
