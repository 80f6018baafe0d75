"""Reading the header of a safetensors file without trusting it: every number is checked before it is used.

The format, as https://github.com/huggingface/safetensors describes it and safetensors 0.8.0 enforces it: 8
bytes of header length (little-endian), a JSON object, then the data. Each tensor has ``dtype``, ``shape`` and
``data_offsets`` (relative to the end of the header); the tensors cover the data without overlap or hole.
Stricter than the library here: duplicate names and unknown fields are refused (it keeps the last, and ignores
them).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from kvgate.rules.errors import InputError
from kvgate.weights.files import open_stamped
from kvgate.weights.tensor_file import TensorFile, TensorRecord

# Bits per element: the types of safetensors 0.8.0, as its error message for an unknown one lists them.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
MAX_HEADER = 100_000_000  # bytes; the library's own limit (safetensors/src/tensor.rs, MAX_HEADER_SIZE)
MAX_TENSORS = 500_000  # in all files: keeps memory bounded where hostile headers are all tiny tensors
MAX_HEADERS = 64_000_000  # bytes in all files: their map is never too large; the largest public ones have about 15 MB
MAX_DIMENSIONS = 64  # as torch has (c10/core/TensorImpl.h); a tensor map reads no more
_MAX_NAME = 65_535  # bytes, as GGUF has it
_MAX_METADATA = 200_000  # keys; some tools write one for each tensor
_LENGTH = 8
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
# One tensor's description: flat, and short even with 64 dimensions of 19 digits. What is longer or nested is
# no tensor, and is refused before a JSON parser sees it.
_INFO = re.compile(r"\{[^{}]{0,2048}\}")
_INFO_KEYS = {"dtype", "shape", "data_offsets"}
_NO_FORM: tuple[str, tuple[int, ...], int] = ("", (), -1)
# A tensor and the mark behind it as libraries spell them. A type and shape that were checked before need no second
# parser; whatever is new or spelled otherwise is read by parts.
_USUAL = re.compile(
    r'"(?!__metadata__")([^"\\\x00-\x1f]*)": ?\{("dtype": ?"[A-Z0-9_]{1,16}", ?"shape": ?\[[0-9, ]{0,1400}\]), ?'
    r'"data_offsets": ?\[(0|[1-9][0-9]{0,17}), ?(0|[1-9][0-9]{0,17})\]\}(?:, ?|(\}))'
)


@dataclass
class Left:
    """How much the headers of the files of one checkpoint may still say.

    Attributes:
        tensors: how many tensors.
        bytes: in how many bytes.
    """

    tensors: int = MAX_TENSORS
    bytes: int = MAX_HEADERS


def read_header(path: Path, name: str, left: Left) -> TensorFile:
    """Read and check the header of the safetensors file at ``path``; no tensor byte is read.

    Args:
        path: the file.
        name: how the file is called in the checkpoint.
        left: what the other files of the checkpoint leave; what this one takes is taken off.

    Raises:
        InputError: when the file is missing, unreadable, truncated, or its header breaks the format.
    """
    descriptor, stamp = open_stamped(path)
    try:
        raw = _read(descriptor, _LENGTH)
        if len(raw) < _LENGTH:
            _refuse(path, f"shorter than the {_LENGTH} bytes of the header length")
        length = int.from_bytes(raw, "little")
        if length > MAX_HEADER:
            _refuse(path, f"the header claims {length} bytes; at most {MAX_HEADER} are accepted")
        if _LENGTH + length > stamp.size:
            _refuse(path, f"truncated: the header claims {length} bytes, the file has {stamp.size}")
        if length > left.bytes:
            _refuse(path, f"the headers of all files have more than {MAX_HEADERS} bytes")
        header = _read(descriptor, length)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(descriptor)
    if len(header) != length:
        _refuse(path, "changed while it was read")
    try:
        text = header.decode()
    except UnicodeDecodeError as error:
        _refuse(path, f"the header is not UTF-8 (byte {error.start})")
    tensors = _tensors(path, text, _LENGTH + length, left.tensors)
    left.tensors -= len(tensors)
    left.bytes -= length
    _check_cover(path, tensors, _LENGTH + length, stamp.size)
    return TensorFile(path, name, stamp, tuple(tensors))


def _read(descriptor: int, count: int) -> bytes:
    """Read ``count`` bytes, fewer only at the end of the file: one ``read`` may return less than it could."""
    parts = []
    while count and (part := os.read(descriptor, min(count, 1 << 24))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _refuse(path: Path, what: str) -> NoReturn:
    hint = "download or save it again"
    raise InputError(f"not a sound safetensors file: {what}", where=str(path), hint=hint)


def _tensors(path: Path, text: str, data: int, most: int) -> list[TensorRecord]:
    """Walk the header's one object by hand, so that nesting and duplicates meet a wall and not a parser."""
    tensors: list[TensorRecord] = []
    seen: set[str] = set()
    forms: dict[str, tuple[str, tuple[int, ...], int]] = {}  # type, shape and size as they were found right before
    at = _expect(path, text, 0, "{")
    closed = text.startswith("}", at)
    while not closed:
        if len(tensors) >= most:
            _refuse(path, f"more than {MAX_TENSORS} tensors in all files")
        usual = _USUAL.match(text, at)
        if usual is not None:
            name, spelled, first, last, closing = usual.groups()
            begin, end = int(first), int(last)
            dtype, shape, size = forms.get(spelled, _NO_FORM)
            if end - begin == size and name not in seen and len(name) <= _MAX_NAME // 4:
                seen.add(name)
                tensors.append(TensorRecord(name, dtype, shape, data + begin, data + end))
                closed = closing is not None
                at = usual.end() - closed
                continue
        name, at = _string(path, text, at)
        at = _expect(path, text, at, ":")
        if len(name) > _MAX_NAME // 4 and len(name.encode()) > _MAX_NAME:
            _refuse(path, f"a name of more than {_MAX_NAME} bytes: {name[:80]!r}...")
        if name in seen:
            _refuse(path, f"the name {name[:200]!r} occurs twice in the header")
        seen.add(name)
        if name == "__metadata__":
            at = _skip_metadata(path, text, at)
        else:
            found = _INFO.match(text, at)
            if found is None:
                _refuse(path, f"tensor {name[:200]!r} is not described by a flat object")
            tensors.append(_record(path, name, found.group(), data))
            at = found.end()
            if usual is not None:
                _, dtype, shape, begin, end = tensors[-1]
                forms[usual[2]] = (dtype, shape, end - begin)
        closed, at = _separator(path, text, at)
    at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]  # matches the empty string too
    if at != len(text):
        _refuse(path, f"text after the header's object, at character {at}")
    return tensors


def _skip_metadata(path: Path, text: str, at: int) -> int:
    """Check that ``__metadata__`` maps strings to strings and return where it ends; nothing depends on it."""
    at = _expect(path, text, at, "{")
    closed = text.startswith("}", at)
    seen: set[str] = set()
    while not closed:
        key, at = _string(path, text, at)
        if key in seen:
            _refuse(path, f"the key {key[:200]!r} occurs twice in __metadata__")
        seen.add(key)
        if len(seen) > _MAX_METADATA:
            _refuse(path, f"more than {_MAX_METADATA} keys in __metadata__")
        _, at = _string(path, text, _expect(path, text, at, ":"))
        closed, at = _separator(path, text, at)
    return at + 1


def _expect(path: Path, text: str, at: int, mark: str) -> int:
    """Step over white space, ``mark`` and white space."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if not text.startswith(mark, at):
        _refuse(path, f"{mark!r} expected at character {at} of the header")
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def _separator(path: Path, text: str, at: int) -> tuple[bool, int]:
    """Return whether the object ends here and, where it does not, the start of its next key."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text.startswith("}", at):
        return True, at
    return False, _expect(path, text, at, ",")


def _string(path: Path, text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        _refuse(path, f"a string expected at character {at} of the header")
    try:
        value: str
        value, at = _JSON.raw_decode(text, at)  # at a quotation mark it reads one string and nothing else
        value.encode()
    except ValueError as error:  # a JSON error, or a lone surrogate, which no UTF-8 name can hold
        _refuse(path, f"a string at character {at} of the header is broken: {error}")
    return value, at


def _record(path: Path, name: str, info: str, data: int) -> TensorRecord:
    shown = name[:200]
    try:
        pairs: list[tuple[str, Any]] = json.loads(info, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"tensor {shown!r} is not described by JSON: {error}")
    fields = dict(pairs)
    if len(pairs) != len(fields) or fields.keys() != _INFO_KEYS:
        _refuse(path, f"tensor {shown!r} must have dtype, shape and data_offsets once and nothing else")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _refuse(path, f"tensor {shown!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _integers(shape) or len(shape) > MAX_DIMENSIONS:
        _refuse(path, f"tensor {shown!r} has a shape that is not a list of at most {MAX_DIMENSIONS} sizes")
    if not _integers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {shown!r} has data_offsets that are not [begin, end]")
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        size = offsets[1] - offsets[0]
        _refuse(path, f"tensor {shown!r}: {dtype} of shape {shape} does not fill {size} bytes")
    return TensorRecord(name, dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _integers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_cover(path: Path, tensors: list[TensorRecord], data: int, size: int) -> None:
    """Sort ``tensors`` by their bytes and refuse overlaps, holes and bytes that belong to no tensor."""
    tensors.sort(key=itemgetter(3, 4, 0))  # begin, end, name
    reached = data
    for name, _, _, begin, end in tensors:
        if end > size:
            _refuse(path, f"truncated: tensor {name[:200]!r} ends at {end} of {size} bytes")
        if begin != reached:
            kind = "overlaps the one before it" if begin < reached else "leaves a hole before it"
            _refuse(path, f"tensor {name[:200]!r} {kind}")
        reached = end
    if reached != size:
        _refuse(path, f"{size - reached} bytes after the last tensor belong to none")
