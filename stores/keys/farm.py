"""FarmHash with 128 bits (the same as CityHash128): what AIBrix hashes token ids with.

Source: google/farmhash 1.1, src/farmhash.cc (``Fingerprint128``): the mixing steps and their constants.
"""

from __future__ import annotations

_K0, _K1, _K2, _FOLD = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0x9DDFEA08EB382D69
_64 = (1 << 64) - 1


def farm_128(data: bytes) -> int:
    """Return the hash as the one number that AIBrix takes it for: the first half of the digest above the second."""
    if len(data) < 16:
        low, high = _murmur(data, _K0, _K1)
    else:
        one, two = _read(data, 0), _read(data, 8) + _K0 & _64
        low, high = (_murmur if len(data) - 16 < 128 else _city)(data[16:], one, two)
    return low << 64 | high


def _murmur(data: bytes, a: int, b: int) -> tuple[int, int]:
    size = len(data)
    if size <= 16:
        a = _shift(a * _K1) * _K1 & _64
        c = b * _K1 + _up_to_16(data) & _64
        d = _shift(a + (_read(data, 0) if size >= 8 else c))
    else:
        c = _join(_read(data, size - 8) + _K1, a)
        d = _join(b + size, c + _read(data, size - 16))
        a = a + d & _64
        for at in range(0, size - 16, 16):
            a = (a ^ _shift(_read(data, at) * _K1) * _K1) * _K1 & _64
            b ^= a
            c = (c ^ _shift(_read(data, at + 8) * _K1) * _K1) * _K1 & _64
            d ^= c
    a, b = _join(a, c), _join(d, b)
    return a ^ b, _join(b, a)


def _city(data: bytes, x: int, y: int) -> tuple[int, int]:
    z = len(data) * _K1 & _64
    v0 = _turn(y ^ _K1, 49) * _K1 + _read(data, 0) & _64
    v1 = _turn(v0, 42) * _K1 + _read(data, 8) & _64
    w0 = _turn(y + z, 35) * _K1 + x & _64
    w1 = _turn(x + _read(data, 88), 53) * _K1 & _64
    whole = len(data) // 128 * 128
    for at in range(0, whole, 64):
        x = _turn(x + y + v0 + _read(data, at + 8), 37) * _K1 ^ w1
        y = _turn(y + v1 + _read(data, at + 48), 42) * _K1 + v0 + _read(data, at + 40)
        z = _turn(z + w0, 33) * _K1
        v0, v1 = _weak(data, at, v1 * _K1, x + w0)
        w0, w1 = _weak(data, at + 32, z + w1, y + _read(data, at + 16))
        x, y, z = z & _64, y & _64, x & _64
    x = x + _turn(v0 + z, 49) * _K0
    y = y * _K0 + _turn(w1, 37)
    z = z * _K0 + _turn(w0, 27)
    w0, v0 = w0 * 9, v0 * _K0
    for at in range(len(data) - 32, whole - 32, -32):  # backwards, and the last of it reaches into what was read
        y = _turn(x + y, 42) * _K0 + v1
        w0 = w0 + _read(data, at + 16)
        x = x * _K0 + w0
        z = z + w1 + _read(data, at)
        w1 = w1 + v0
        v0, v1 = _weak(data, at, v0 + z, v1)
        v0 = v0 * _K0
    x, y = _join(x, v0), _join(y + z, w0)
    return _join(x + v1, w1) + y & _64, _join(x + w1, y + v1)


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    first, second, third, last = (_read(data, at + 8 * i) for i in range(4))
    a += first
    both = a + second + third
    return both + last & _64, _turn(b + a + last, 21) + _turn(both, 44) + a & _64


def _up_to_16(data: bytes) -> int:
    size, factor = len(data), _K2 + 2 * len(data)
    if size >= 8:
        a, b = _read(data, 0) + _K2, _read(data, size - 8)
        return _join(_turn(b, 37) * factor + a, (_turn(a, 25) + b) * factor, factor)
    if size >= 4:
        return _join(size + (_read(data, 0, 4) << 3), _read(data, size - 4, 4), factor)
    if size:
        return _shift((data[0] + (data[size >> 1] << 8)) * _K2 ^ (size + (data[-1] << 2)) * _K0) * _K2 & _64
    return _K2


def _join(one: int, two: int, factor: int = _FOLD) -> int:
    return _shift((two ^ _shift((one ^ two) * factor)) * factor) * factor & _64


def _shift(value: int) -> int:
    value &= _64
    return value ^ value >> 47


def _turn(value: int, bits: int) -> int:
    value &= _64
    return (value >> bits | value << 64 - bits) & _64


def _read(data: bytes, at: int, width: int = 8) -> int:
    return int.from_bytes(data[at : at + width], "little")
