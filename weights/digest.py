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
from typing import NamedTuple, Protocol

from blake3 import blake3

PREFIX = "blake3:"
_TENSOR = b"kvgate/tensor/v1"
_WEIGHTS = b"kvgate/weights/v1"
_WORD = 8


class TensorEntry(NamedTuple):
    """One tensor of a map.

    A named tuple and not a dataclass, with hashes as the bytes they are: maps hold tens of thousands, and building
    them is what comparing costs.

    Attributes:
        name: the name it is stored under.
        dtype: the safetensors name of its type.
        shape: its dimensions, outermost first; ``()`` for a scalar.
        content_hash: the 32 bytes of BLAKE3 over the raw bytes alone.
        tensor_hash: the 32 bytes of BLAKE3 over name, dtype, shape and content.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content_hash: bytes
    tensor_hash: bytes

    @property
    def content(self) -> str:
        """``content_hash`` as it is printed: ``blake3:<64 hex>``."""
        return printed(self.content_hash)

    @property
    def digest(self) -> str:
        """``tensor_hash`` as it is printed: ``blake3:<64 hex>``."""
        return printed(self.tensor_hash)


class Described(Protocol):
    """What a tensor is but for its bytes: a record of a file's header, a line of an engine's report."""

    @property
    def name(self) -> str:
        """The name it is stored under."""

    @property
    def dtype(self) -> str:
        """The safetensors name of its type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""


def printed(raw: bytes) -> str:
    """Return a hash of 32 bytes as it is printed: ``blake3:<64 hex>``."""
    return PREFIX + raw.hex()


def unprinted(text: str) -> bytes:
    """Return the 32 bytes of a hash that is known to be printed rightly."""
    return bytes.fromhex(text[len(PREFIX) :])


def field(data: bytes) -> bytes:
    """Return ``data`` behind its length, as every hash of this module takes it."""
    return len(data).to_bytes(_WORD, "little") + data


_NAME = itemgetter(0)  # of a tensor entry
_TENSOR_FIELD = field(_TENSOR)
_WEIGHTS_FIELD = field(_WEIGHTS)
_HASH_LENGTH = (32).to_bytes(_WORD, "little")


def shape_bytes(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the fields ``dtype`` and ``shape`` as :func:`tensor_digest` hashes them.

    Raises:
        OverflowError: for a dimension that is negative or does not fit 64 bits.
    """
    return field(dtype.encode()) + field(b"".join(size.to_bytes(_WORD, "little") for size in shape))


def tensor_entries(tensors: Iterable[Described], contents: Iterable[bytes]) -> list[TensorEntry]:
    """Return the entries of tensors whose bytes were hashed.

    Args:
        tensors: what they are.
        contents: the 32-byte BLAKE3 of the raw bytes of each, in the same order.

    Raises:
        OverflowError: for a dimension that is negative or does not fit 64 bits.
        ValueError: there are more of one than of the other.
    """
    forms: dict[tuple[str, tuple[int, ...]], bytes] = {}  # few shapes, many tensors
    entries = []
    for tensor, content in zip(tensors, contents, strict=True):
        name, dtype, shape = tensor.name, tensor.dtype, tensor.shape
        typed = forms.get((dtype, shape))
        if typed is None:
            typed = forms[dtype, shape] = shape_bytes(dtype, shape)
        entries.append(TensorEntry(name, dtype, shape, content, tensor_digest(field(name.encode()), typed, content)))
    return entries


def tensor_digest(name: bytes, typed: bytes, content: bytes) -> bytes:
    """Return the 32-byte digest of a tensor from its name field, ``shape_bytes`` and content hash."""
    return blake3(_TENSOR_FIELD + name + typed + _HASH_LENGTH + content).digest()


def hash_tensor(name: str, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> TensorEntry:
    """Hash one tensor that is at hand as bytes (little-endian, C order).

    Raises:
        OverflowError: for a dimension that is negative or does not fit 64 bits.
    """
    content = blake3(data).digest()
    digest = tensor_digest(field(name.encode()), shape_bytes(dtype, shape), content)
    return TensorEntry(name, dtype, tuple(shape), content, digest)


def root_digest(entries: Iterable[TensorEntry]) -> str:
    """Return ``blake3:<64 hex>`` over a set of tensors; the order they come in does not matter.

    Raises:
        ValueError: when two entries have one name: a map binds a name to one tensor.
    """
    by_name = sorted(entries, key=_NAME)  # by code point, which is by UTF-8 byte too
    if len(set(map(_NAME, by_name))) != len(by_name):
        raise ValueError("two tensors with one name")
    return root_of_fields([(field(name.encode()), digest) for name, _, _, _, digest in by_name])


def root_of_fields(pairs: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the root from name fields and 32-byte tensor digests, sorted by name and each name once."""
    parts = [_WEIGHTS_FIELD, len(pairs).to_bytes(_WORD, "little")]
    for name, digest in pairs:
        parts += (name, _HASH_LENGTH, digest)
    return printed(blake3(b"".join(parts)).digest())
