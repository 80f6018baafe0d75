"""The weight digest, version 1: how tensors become one root that is the same wherever the tensors are.

Every field is written as its length in bytes (8 bytes, little-endian, unsigned) and then its bytes, so no
two different field lists have one encoding. BLAKE3 is the plain, unkeyed hash with 32 bytes of output;
nothing is truncated anywhere::

    content = BLAKE3(the tensor's raw bytes: little-endian, C order, without padding)
    tensor  = BLAKE3(field("kvgate/tensor/v1") field(name) field(dtype) field(shape) field(content))
    root    = BLAKE3(field("kvgate/weights/v1") count { field(name) field(tensor) } ...)

``name`` is UTF-8; ``dtype`` is the safetensors name of the type (``BF16``, ``F8_E4M3``, ...); ``shape`` is
one 8-byte little-endian unsigned integer per dimension; ``count`` is an 8-byte little-endian unsigned
integer; the pairs are sorted by the UTF-8 bytes of the name. Files, shards, header order and padding are
nowhere in it.

``content`` is the plain hash of the bytes, so a device that holds the tensor can compute it and hand out 32
bytes; and equal bytes under another name are recognised by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from blake3 import blake3

PREFIX = "blake3:"
_TENSOR = b"kvgate/tensor/v1"
_WEIGHTS = b"kvgate/weights/v1"
_WORD = 8


class TensorEntry(NamedTuple):
    """One tensor of a map.

    A named tuple and not a dataclass: maps hold tens of thousands, and building them is what comparing costs.

    Attributes:
        name: the name it is stored under.
        dtype: the safetensors name of its type.
        shape: its dimensions, outermost first; ``()`` for a scalar.
        content: ``blake3:<64 hex>`` of the raw bytes alone.
        digest: ``blake3:<64 hex>`` over name, dtype, shape and content.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: str
    digest: str


def field(data: bytes) -> bytes:
    """Return ``data`` behind its length, as every hash of this module takes it."""
    return len(data).to_bytes(_WORD, "little") + data


_NAME = itemgetter(0)  # of a tensor entry
_TENSOR_FIELD = field(_TENSOR)
_WEIGHTS_FIELD = field(_WEIGHTS)
_HASH_LENGTH = (32).to_bytes(_WORD, "little")


def shape_bytes(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the fields ``dtype`` and ``shape`` as :func:`tensor_entry` hashes them.

    Raises:
        OverflowError: for a dimension that is negative or does not fit 64 bits.
    """
    return field(dtype.encode()) + field(b"".join(size.to_bytes(_WORD, "little") for size in shape))


def tensor_entry(name: str, dtype: str, shape: tuple[int, ...], content: bytes, typed: bytes) -> TensorEntry:
    """Build the entry of one tensor.

    Args:
        name: the name it is stored under.
        dtype: the safetensors name of its type.
        shape: its dimensions.
        content: the 32-byte BLAKE3 of its raw bytes.
        typed: ``shape_bytes(dtype, shape)``; the caller computes it once for all tensors of one shape.
    """
    digest = tensor_digest(field(name.encode()), typed, content)
    return TensorEntry(name, dtype, shape, PREFIX + content.hex(), PREFIX + digest.hex())


def tensor_digest(name: bytes, typed: bytes, content: bytes) -> bytes:
    """Return the 32-byte digest of a tensor from its name field, ``shape_bytes`` and content hash."""
    return blake3(_TENSOR_FIELD + name + typed + _HASH_LENGTH + content).digest()


def hash_tensor(name: str, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> TensorEntry:
    """Hash one tensor that is at hand as bytes (little-endian, C order).

    Raises:
        OverflowError: for a dimension that is negative or does not fit 64 bits.
    """
    return tensor_entry(name, dtype, tuple(shape), blake3(data).digest(), shape_bytes(dtype, shape))


def root_digest(entries: Iterable[TensorEntry]) -> str:
    """Return ``blake3:<64 hex>`` over a set of tensors; the order they come in does not matter.

    Raises:
        ValueError: when two entries have one name: a map binds a name to one tensor.
    """
    by_name = sorted(entries, key=_NAME)  # by code point, which is by UTF-8 byte too
    if len(set(map(_NAME, by_name))) != len(by_name):
        raise ValueError("two tensors with one name")
    digests = map(bytes.fromhex, [entry[4][len(PREFIX) :] for entry in by_name])
    return root_of_fields([(field(entry[0].encode()), digest) for entry, digest in zip(by_name, digests, strict=True)])


def root_of_fields(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the root from name fields and 32-byte tensor digests, sorted by name and each name once."""
    parts = [_WEIGHTS_FIELD, len(pairs).to_bytes(_WORD, "little")]
    for name, digest in pairs:
        parts += (name, _HASH_LENGTH, digest)
    return PREFIX + blake3(b"".join(parts)).hexdigest()
