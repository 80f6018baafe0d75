"""Reading the header of a GGUF file without trusting it: every number is checked before it is used.

The format, as ggml-org/ggml docs/gguf.md describes it and gguf 0.19.0 reads and writes it: magic, version, counts,
key-value metadata, one description per tensor, then the data; a tensor's offset is a multiple of the alignment and
counts from the end of the descriptions, rounded up to it. The package's own reader makes objects of each element of
every array and clips what lies outside the file; here only its table of types is used. Versions 2 and 3,
little-endian.

Large models are split into ``NAME-00001-of-00003.gguf`` and so on; each part says which one it is (``split.no``) and of
how many (``split.count``), and the first holds the metadata.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from kvgate.rules.errors import InputError
from kvgate.weights.digest import field, printed
from kvgate.weights.dtypes import GGUF, tensor_bytes
from kvgate.weights.files import open_stamped
from kvgate.weights.gguf_types import block_sizes, type_names
from kvgate.weights.tensor_file import TensorFile, TensorRecord

MAGIC = b"GGUF"
MAX_HEADER = 64 << 20  # bytes; a vocabulary of 256,000 tokens with its merges takes about 15 MB
MAX_TENSORS = 500_000
_MAX_KEYS = 100_000
_FIRST = 1 << 20  # bytes; without a large vocabulary a header is smaller
_MAX_NAME = 65_535  # bytes; docs/gguf.md bounds keys to this, and ggml tensors to 64
_MAX_DIMENSIONS = 8  # ggml has 4 (GGML_MAX_DIMS)
_MAX_ALIGNMENT = 1 << 20
_VERSIONS = (2, 3)
_SHOWN_TEXT, _SHOWN_ITEMS = 256, 64  # what is longer is named by its digest
_EXACT = 2**53  # larger integers are not exact in JSON
_METADATA = b"kvgate/gguf-metadata/v1"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# How a file is cut says nothing about the model.
_PLACEMENT = frozenset({"general.alignment", "split.no", "split.count", "split.tensors.count"})
# Nor do names, licences and where it came from (ggml-org/ggml docs/gguf.md, "General metadata"; gguf 0.19.0,
# constants.py Keys.General; imatrix: llama.cpp tools/quantize). What is not here counts.
_LABELS = re.compile(
    r"general\.(?:name|author|version|organization|finetune|basename|description|quantized_by|size_label|url|doi|uuid"
    r"|repo_url|tags|languages|datasets|license(?:\..*)?|(?:source|base_model|dataset)\..*)|quantize\.imatrix\..*"
)
_TOGETHER = "download all parts again"
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model: its files, and what they say beside the tensors.

    Attributes:
        files: one, or the parts in their order.
        metadata: the keys and values as JSON has them, without labels and how the file is cut; long texts and arrays
            stand as ``{"digest": ..., "count": ...}``.
        metadata_digest: ``blake3:<64 hex>`` over keys, types and values, byte for byte.
    """

    files: tuple[TensorFile, ...]
    metadata: Mapping[str, Any]
    metadata_digest: str


@dataclass(frozen=True)
class GgufHeader:
    """What one file says before its data.

    Attributes:
        tensors: type and shape by name.
        metadata_digest: as :class:`GgufModel` has it, over what this file says.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    metadata_digest: str


class _MoreError(Exception):
    """The header goes on behind the bytes that are at hand."""


@dataclass(frozen=True)
class _Value:
    """One metadata value: its type (with that of its items), the BLAKE3 of its bytes, and what JSON shows of it."""

    kind: bytes
    content: bytes
    shown: Any


def open_gguf(path: Path) -> GgufModel:
    """Read and check the headers of a GGUF model; no tensor byte is read.

    Args:
        path: the file, or any part of a split model.

    Raises:
        InputError: a file is missing, unreadable, truncated or breaks the format, a part is missing or belongs to
            another model, or the ``gguf`` package is not installed.
    """
    first, *others = paths = _parts(path)
    file, header = _read(first, 0, len(paths))
    files, total = [file], len(file.tensors)
    for number, other in enumerate(others, start=1):
        file, part = _read(other, number, len(paths))
        if any(header.values.get(key) != value for key, value in part.values.items() if key not in _PLACEMENT):
            _refuse(other, "its metadata is not that of the first part", _TOGETHER)
        files.append(file)
        total += len(file.tensors)
        if total > MAX_TENSORS:
            _refuse(other, f"more than {MAX_TENSORS} tensors in all parts")
    if (claimed := header.number("split.tensors.count", total)) != total:
        _refuse(first, f"it says that there are {claimed} tensors in all parts, and there are {total}", _TOGETHER)
    metadata = {key: value.shown for key, value in sorted(header.values.items()) if _counts(key)}
    return GgufModel(tuple(files), metadata, header.metadata_digest())


def _counts(key: str) -> bool:
    return key not in _PLACEMENT and not _LABELS.fullmatch(key)


def read_gguf_header(name: str, size: int, read: Callable[[int, int], bytes]) -> GgufHeader:
    """Read the header of a file that lies elsewhere, and of it as little as that takes.

    Args:
        name: what it is called in messages.
        size: its bytes.
        read: returns bytes from one place up to another of the file.

    Raises:
        InputError: from ``read``; the header breaks the format; the ``gguf`` package is not installed.
    """
    data, wanted = b"", min(size, _FIRST)
    while True:
        data += read(len(data), wanted)
        if len(data) != wanted:
            raise InputError("fewer bytes arrive than it has", where=name)
        try:
            header = _Header(Path(name), data, size)
        except _MoreError:
            wanted = min(2 * wanted, size, MAX_HEADER)
        else:
            tensors = {record.name: (record.dtype, record.shape) for record in header.records}
            return GgufHeader(tensors, header.metadata_digest())


def _read(path: Path, number: int, count: int) -> tuple[TensorFile, _Header]:
    descriptor, stamp = open_stamped(path)
    try:
        with os.fdopen(descriptor, "rb") as stream:
            data = stream.read(min(stamp.size, MAX_HEADER))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        header = _Header(path, data, stamp.size)
    except _MoreError:  # it was cut between the two looks
        raise InputError("changed while it was read", where=str(path)) from None
    says = header.number("split.no", 0), header.number("split.count", 1)
    if says != (number, count):
        _refuse(path, f"it says that it is part {says[0] + 1} of {says[1]}, not {number + 1} of {count}", _TOGETHER)
    return TensorFile(path, path.name, stamp, tuple(header.records)), header


def _parts(path: Path) -> list[Path]:
    """Return the files of the model that ``path`` is of, by their names."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    stem, _, count = found.groups()
    return [path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)] or [path]


def _refuse(path: Path, what: str, hint: str = "download or convert it again") -> NoReturn:
    raise InputError(f"not a sound GGUF file: {what}", where=str(path), hint=hint)


class _Header:
    """Walks the header of one file from its start; every step is checked against what is there.

    Args:
        path: what the file is called.
        data: its first bytes.
        size: how many it has.

    Raises:
        _MoreError: the header goes on behind ``data``, which are not all that are read of a file.
    """

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        self._path = path
        self._data = data
        self._at = 0
        self._size = size
        if self._take(4) != MAGIC:
            _refuse(path, "it does not begin with GGUF")
        version = self._unpack("<I")
        if version not in _VERSIONS:
            kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            _refuse(path, f"{kind}; versions 2 and 3, little-endian, are read")
        tensors, keys = self._unpack("<Q"), self._unpack("<Q")
        if tensors > MAX_TENSORS or keys > _MAX_KEYS:
            _refuse(path, f"the header claims {tensors} tensors and {keys} keys")
        self.values: dict[str, _Value] = {}
        for _ in range(keys):
            key = self._string("a key")
            if key in self.values:
                _refuse(path, f"the key {key[:200]!r} occurs twice")
            self.values[key] = self._value(key)
        self.records = self._tensors(tensors)
        del self._data

    def metadata_digest(self) -> str:
        """Return the digest over keys, types and values; how the file is cut, and labels, are left out."""
        hasher = blake3(field(_METADATA))
        for key, value in sorted(self.values.items()):
            if _counts(key):
                hasher.update(field(key.encode()) + field(value.kind) + field(value.content))
        return printed(hasher.digest())

    def number(self, key: str, default: int) -> int:
        """Return an integer of the metadata."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value.shown) is not int:
            _refuse(self._path, f"{key} is not an integer")
        return value.shown

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            if end > self._size:
                _refuse(self._path, f"truncated: its header goes on behind the {self._size} bytes of the file")
            if len(self._data) < min(self._size, MAX_HEADER):
                raise _MoreError
            _refuse(self._path, f"a header of more than {MAX_HEADER} bytes")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _unpack(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _string(self, what: str) -> str:
        length = self._unpack("<Q")
        if length > _MAX_NAME:
            _refuse(self._path, f"{what} of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            _refuse(self._path, f"{what} is not UTF-8")

    def _value(self, key: str) -> _Value:
        kind = self._unpack("<I")
        if kind == _STRING:
            raw = self._take(self._unpack("<Q"))
            return _Value(_kind(kind), blake3(raw).digest(), _text(raw))
        if kind == _ARRAY:
            return self._array(key)
        if (form := _SCALARS.get(kind)) is None:
            _refuse(self._path, f"the key {key[:200]!r} has a value of the unknown type {kind}")
        raw = self._take(struct.calcsize(form))
        return _Value(_kind(kind), blake3(raw).digest(), _json(struct.unpack(form, raw)[0]))

    def _array(self, key: str) -> _Value:
        items, count = self._unpack("<I"), self._unpack("<Q")
        start = self._at
        if items == _STRING:
            self._skip_strings(count)
            shown = None
        elif (form := _SCALARS.get(items)) is not None:
            raw = self._take(count * struct.calcsize(form))
            shown = [_json(item) for (item,) in struct.iter_unpack(form, raw)] if count <= _SHOWN_ITEMS else None
        else:
            _refuse(self._path, f"the key {key[:200]!r} has an array of type {items}")
        content = blake3(self._data[start : self._at]).digest()
        named = {"digest": printed(content), "count": count}
        return _Value(_kind(_ARRAY, items, count), content, named if shown is None else shown)

    def _skip_strings(self, count: int) -> None:
        at, data, length = self._at, self._data, struct.Struct("<Q")
        if count > (len(data) - at) // length.size:
            self._take(count * length.size)
        for _ in range(count):
            if at + length.size > len(data):
                at += length.size
                break
            at += length.size + length.unpack_from(data, at)[0]
        self._take(at - self._at)

    def _tensors(self, count: int) -> list[TensorRecord]:
        alignment = self.number("general.alignment", 32)
        if not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            _refuse(self._path, f"an alignment of {alignment}")
        described = [self._described() for _ in range(count)]
        data = self._at + -self._at % alignment
        records = []
        for name, dtype, shape, offset in described:
            if offset % alignment:
                _refuse(self._path, f"tensor {name[:200]!r} lies at {offset}, off the alignment of {alignment}")
            begin = data + offset
            records.append(TensorRecord(name, dtype, shape, begin, begin + tensor_bytes(dtype, shape)))
        if len({record.name for record in records}) != count:
            _refuse(self._path, "a tensor occurs twice")
        records.sort(key=attrgetter("begin", "end", "name"))
        reached = data
        for record in records:
            shown = f"tensor {record.name[:200]!r}"
            if record.end > self._size:
                _refuse(self._path, f"truncated: {shown} ends at {record.end} of {self._size} bytes")
            if not reached <= record.begin < reached + alignment:
                _refuse(
                    self._path, f"{shown} {'overlaps' if record.begin < reached else 'leaves a hole behind'} another"
                )
            reached = record.end
        if count and self._size >= reached + alignment:
            _refuse(self._path, f"{self._size - reached} bytes after the last tensor belong to none")
        return records

    def _described(self) -> tuple[str, str, tuple[int, ...], int]:
        """Read one tensor's name, type, shape (outermost first; the file has it the other way round) and offset."""
        name = self._string("a tensor's name")
        dimensions = self._unpack("<I")
        if dimensions > _MAX_DIMENSIONS:
            _refuse(self._path, f"tensor {name[:200]!r} has {dimensions} dimensions")
        sizes = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))
        number, offset = self._unpack("<I"), self._unpack("<Q")
        kind = type_names().get(number)
        if kind is None:
            _refuse(
                self._path, f"tensor {name[:200]!r} has the unknown type {number}", "a newer gguf package may know it"
            )
        if math.prod(sizes) >= 2**63 or any(size >= 2**63 for size in sizes):
            _refuse(self._path, f"tensor {name[:200]!r} has {sizes} elements")
        if (sizes[0] if sizes else 1) % block_sizes()[kind][0]:
            _refuse(
                self._path, f"tensor {name[:200]!r}: rows of {sizes[0] if sizes else 1} do not fill blocks of {kind}"
            )
        return name, GGUF + kind, sizes[::-1], offset


def _kind(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def _text(raw: bytes) -> Any:
    """Return a short text as it is, and the name of a long one or of what is no text."""
    if len(raw) <= _SHOWN_TEXT:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            pass
    return {"digest": printed(blake3(raw).digest()), "count": len(raw)}


def _json(value: Any) -> Any:
    """Return a number as JSON can hold it: what is not finite or not exact stands as text."""
    inexact = isinstance(value, float) and not math.isfinite(value)
    return str(value) if inexact or (isinstance(value, int) and abs(value) > _EXACT) else value
