"""The alphabet of byte-level vocabularies."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _alphabet()
"""The byte that each character stands for: printable ones for themselves, the rest from 256 on, in order.

Source: huggingface/tokenizers, tokenizers/src/pre_tokenizers/byte_level.rs, ``bytes_char``, 0.23.3.
"""
