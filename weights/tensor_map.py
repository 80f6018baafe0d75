"""The tensor map beside a manifest: one tensor a line, so that two deployments compare tensor by tensor.

The file is JSON Lines in one fixed spelling. The first line is the header, the others are the tensors
sorted by the UTF-8 bytes of their names::

    {"schema":"kvgate/tensor-map/v1","tensors":2,"root":"blake3:..."}
    {"name":"lm_head.weight","dtype":"BF16","shape":[8,4],"content":"blake3:..."}

A tensor's digest is not stored: it follows from the line (:mod:`kvgate.weights.digest`). Reading derives it
and the root again, so a map cannot claim what its lines do not say.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kvgate.rules.errors import InputError
from kvgate.weights.digest import TensorEntry, field, root_of_fields, shape_bytes, tensor_digest, unprinted
from kvgate.weights.dtypes import is_dtype
from kvgate.weights.files import read_small, write_whole
from kvgate.weights.fingerprint import Fingerprint
from kvgate.weights.tail import kv_digest

SCHEMA = "kvgate/tensor-map/v1"
MAX_BYTES = 128 << 20  # of as many tensors as headers may hold; the largest public checkpoints have about 100,000

_HEADER = re.compile(r'\{"schema":"([^"]*)","tensors":([0-9]{1,9}),"root":"(blake3:[0-9a-f]{64})"\}')
# One spelling only, so that a line is either this or refused, and no parser meets nesting or a repeated key.
_LINE = re.compile(
    r'^\{"name":"([^"\\\n]*(?:\\.[^"\\\n]*)*)","dtype":"((?:GGUF:)?[A-Z0-9_]{1,16})",'
    r'"shape":\[((?:[0-9]{1,19}(?:,[0-9]{1,19}){0,63})?)\],"content":"(blake3:[0-9a-f]{64})"\}$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class TensorMap:
    """The tensors of one checkpoint.

    Attributes:
        digest: the root over them, derived from the entries.
        entries: the tensors, sorted by name.
    """

    digest: str
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True)
class MapDifference:
    """What differs between two maps; every tuple is sorted by name.

    Attributes:
        added: names that only the new map has.
        removed: names that only the old map has.
        changed: names that both have, with another dtype, shape or bytes.
        renamed: (old name, new name) of tensors that moved with equal dtype, shape and bytes.
        equal: how many tensors are the same under the same name.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    equal: int


def write_map(fingerprint: Fingerprint, path: Path) -> str:
    """Write the map of ``fingerprint`` to ``path`` and return the file's digest, ``sha256:<64 hex>``.

    Raises:
        InputError: when the folder cannot be written, or the map is larger than any that is read.
    """
    lines = [f'{{"schema":"{SCHEMA}","tensors":{len(fingerprint.entries)},"root":"{fingerprint.digest}"}}']
    for entry in fingerprint.entries:
        spelled = json.dumps(entry.name, ensure_ascii=False)
        sizes = ",".join(map(str, entry.shape))
        lines.append(f'{{"name":{spelled},"dtype":"{entry.dtype}","shape":[{sizes}],"content":"{entry.content}"}}')
    data = ("\n".join(lines) + "\n").encode()
    if len(data) > MAX_BYTES:
        raise InputError(f"the tensor map has {len(data)} bytes; at most {MAX_BYTES} are read", where=str(path))
    write_whole(path, data)
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_map(path: Path, sha256: str | None) -> TensorMap:
    """Read the map at ``path``, which must have the digest ``sha256`` (``sha256:<64 hex>``; ``None``: any).

    Raises:
        InputError: when it is missing, unreadable, has another digest, is not a map, names a tensor twice, or
            claims a root that its tensors do not have.
    """
    data = read_small(path, MAX_BYTES)
    found = "sha256:" + hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise InputError(
            f"the tensor map has the digest {found}, the manifest names {sha256}",
            where=str(path),
            hint="capture again, or put the right sidecar beside the manifest",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=str(path)) from error
    head, _, body = text.partition("\n")
    header = _HEADER.fullmatch(head)
    if header is None or header[1] != SCHEMA or not text.endswith("\n"):
        _refuse(path, 1, f"the header of a {SCHEMA} file is expected, and a line end after the last line")
    entries, root = _entries(path, body)
    if len(entries) != int(header[2]):
        _refuse(path, 1, f"the header says {header[2]} tensors, there are {len(entries)}")
    if root != header[3]:
        _refuse(path, 1, f"the header claims the root {header[3]}, the tensors have {root}")
    return TensorMap(root, entries)


def kv_digest_of(tensors: TensorMap, config: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return ``(kv_digest, kv_rule)`` of a map and an effective configuration: a manifest's must equal it."""
    return kv_digest(tensors.entries, config, tensors.digest)


def compare_maps(old: TensorMap, new: TensorMap) -> MapDifference:
    """Say what differs between two maps.

    A removed and an added tensor of equal dtype, shape and bytes count as renamed, in the order of their
    names where there are several, and are not listed as added or removed.
    """
    before = {entry.name: entry for entry in old.entries}
    after = {entry.name: entry for entry in new.entries}
    common = before.keys() & after.keys()
    changed = sorted(name for name in common if before[name].tensor_hash != after[name].tensor_hash)
    removed = sorted(before.keys() - common)
    moved: dict[tuple[str, tuple[int, ...], bytes], list[str]] = {}
    for name in reversed(removed):
        moved.setdefault(_substance(before[name]), []).append(name)
    added, renamed = [], []
    for name in sorted(after.keys() - common):
        sources = moved.get(_substance(after[name]))
        if sources:
            renamed.append((sources.pop(), name))
        else:
            added.append(name)
    gone = {source for source, _ in renamed}
    return MapDifference(
        added=tuple(added),
        removed=tuple(name for name in removed if name not in gone),
        changed=tuple(changed),
        renamed=tuple(sorted(renamed)),
        equal=len(common) - len(changed),
    )


def _substance(entry: TensorEntry) -> tuple[str, tuple[int, ...], bytes]:
    return entry.dtype, entry.shape, entry.content_hash


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise InputError(f"not a sound tensor map: {what}", where=f"{path}:{line}", hint="capture again")


def _entries(path: Path, body: str) -> tuple[tuple[TensorEntry, ...], str]:
    """Read the tensor lines, ``body``, and return the entries and their root."""
    rows = _LINE.findall(body)  # all at once: a call per line takes as long as the rest
    if len(rows) != body.count("\n"):
        lines = body.split("\n")
        wrong = next(number for number, line in enumerate(lines, start=2) if not _LINE.fullmatch(line))
        _refuse(path, wrong, "a tensor with name, dtype, shape and content is expected")
    entries: list[TensorEntry] = []
    pairs: list[tuple[bytes, bytes]] = []
    forms: dict[tuple[str, str], tuple[tuple[int, ...], bytes]] = {}  # few shapes, many tensors
    last = None
    for number, (name, dtype, sizes, content) in enumerate(rows, start=2):
        if "\\" in name:
            name = _unescape(path, number, name)
        if last is not None and name <= last:  # by code point, which is by UTF-8 byte too
            _refuse(path, number, f"tensor {name[:200]!r} is out of order or named twice")
        last = name
        form = forms.get((dtype, sizes))
        if form is None:
            form = forms[dtype, sizes] = _form(path, number, dtype, sizes)
        encoded = field(name.encode())
        raw = unprinted(content)
        digest = tensor_digest(encoded, form[1], raw)
        pairs.append((encoded, digest))
        entries.append(TensorEntry(name, dtype, form[0], raw, digest))
    return tuple(entries), root_of_fields(pairs)


def _unescape(path: Path, number: int, name: str) -> str:
    try:
        value: str = json.loads(f'"{name}"')
        value.encode()
    except ValueError as error:
        _refuse(path, number, f"a broken name: {error}")
    return value


def _form(path: Path, number: int, dtype: str, sizes: str) -> tuple[tuple[int, ...], bytes]:
    """Return a shape, and the bytes of type and shape that a tensor's digest takes."""
    if not is_dtype(dtype):
        _refuse(path, number, f"the unknown dtype {dtype!r}")
    shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    return shape, shape_bytes(dtype, shape)
