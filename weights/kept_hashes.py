"""Hashes kept from an earlier run, so that files which did not change are not read again. Opt-in.

A file counts as unchanged when device, inode, size and both times (modified, changed) are what they were. That is a
claim of the file system and not of the bytes, which is why nobody gets it without asking. Three things narrow it: the
time of the last change cannot be set by programs, except where a program is the file system (FUSE: rclone gives the
modification time for it, cmd/mount/file.go), whose files are not kept; and a file that had changed within the last
seconds before it was hashed is not kept, because a second change could carry the same time.

Several runs may share one file: each adds what it hashed to what the others wrote. Files that are gone or changed are
dropped, and the oldest where there is more than is read.

The file is JSON Lines in one fixed spelling, like a tensor map: the header, then for each kept file a line with its
stamp and the root over its tensors, and a line per tensor::

    {"schema":"kvgate/kept-hashes/v1","files":1}
    {"file":"model.safetensors","stamp":[64769,1835,4096,1764403200000000000,1764403200000000000],"tensors":2,"root":"blake3:..."}
    ["lm_head.weight","blake3:..."]

Types and shapes are not kept: they come from the file's own header, and the root must follow from all of it. So damage
is found. Whoever can write the file can still claim any digest; it is refused where others may write it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kvgate.rules.errors import InputError
from kvgate.weights.digest import TensorEntry, root_digest, tensor_entries, unprinted
from kvgate.weights.files import Stamp, locked, read_small, require_writable, stamp_of, write_whole
from kvgate.weights.tensor_file import TensorFile

SCHEMA = "kvgate/kept-hashes/v1"
MAX_BYTES = 64 << 20  # of 400,000 tensors; the largest public checkpoints have about 100,000
_SETTLED_NS = 2_000_000_000  # the coarsest time stamps of file systems in use (FAT) count in two seconds
_BETWEEN_WRITES = 1.0  # seconds
_MOUNTS = Path("/proc/self/mountinfo")
_NAME = r'"((?:[^"\\\x00-\x1f]|\\.)*)"'
_DIGEST = '"(blake3:[0-9a-f]{64})"'
_HEADER = re.compile(rf'\{{"schema":"{SCHEMA}","files":([0-9]{{1,9}})\}}')
_FILE = re.compile(
    rf'\{{"file":{_NAME},"stamp":\[([0-9]{{1,20}}(?:,[0-9]{{1,20}}){{4}})\],"tensors":([0-9]{{1,9}}),"root":{_DIGEST}\}}'
)
_TENSOR = re.compile(rf"\[{_NAME},{_DIGEST}\]")


@dataclass(frozen=True)
class _Kept:
    stamp: Stamp
    root: str
    contents: dict[str, str]  # by tensor name


class KeptHashes:
    """The kept hashes of one file, read at the start and written as files are hashed.

    Attributes:
        used: how many files did not have to be read.
    """

    def __init__(self, path: Path, failed: Callable[[InputError], None] | None = None) -> None:
        """Read ``path``; nothing is kept where there is no such file.

        Args:
            path: the file.
            failed: told why what was hashed could not be kept, once; ``None``: whoever hashes is told.

        Raises:
            InputError: it cannot be read, is not such a file, is damaged, or may be written by others.
        """
        self.used = 0
        self._path = path
        self._failed = failed
        self._kept: dict[str, _Kept] = {}
        self._seen: Stamp | None = None
        self._add_what_others_wrote()
        self._begun_ns = time.time_ns()
        self._written = 0.0
        self._dirty = False

    def entries(self, file: TensorFile) -> list[TensorEntry] | None:
        """Return the entries of a file that did not change since they were kept; ``None``: it has to be read.

        Raises:
            InputError: the file did not change, and what is kept of it contradicts its header or itself.
        """
        kept = self._kept.get(str(file.path.absolute()))
        if kept is None or kept.stamp != file.stamp:
            return None
        if kept.contents.keys() != {tensor.name for tensor in file.tensors}:
            raise self._damaged(file)
        entries = tensor_entries(file.tensors, [unprinted(kept.contents[tensor.name]) for tensor in file.tensors])
        if root_digest(entries) != kept.root:
            raise self._damaged(file)
        self.used += 1
        return entries

    def keep(self, file: TensorFile, entries: Sequence[TensorEntry]) -> None:
        """Keep what was hashed of a file, unless it changed too short a time before.

        Raises:
            InputError: the file of hashes cannot be written.
        """
        latest = max(file.stamp.modified_ns, file.stamp.changed_ns)
        if latest > self._begun_ns - _SETTLED_NS or file.stamp.device in _devices_of_programs():
            return
        contents = {entry.name: entry.content for entry in entries}
        name = str(file.path.absolute())
        self._kept.pop(name, None)  # the latest come last
        self._kept[name] = _Kept(file.stamp, root_digest(entries), contents)
        self._dirty = True
        if time.monotonic() - self._written >= _BETWEEN_WRITES:
            self.write()

    def require_writable(self) -> None:
        """Refuse a file that could not be written, before anything is hashed for it.

        Raises:
            InputError: it cannot be written.
        """
        require_writable(self._path)

    def write(self) -> None:
        """Write what is kept, beside its place and renamed, if there is anything new.

        Raises:
            InputError: the file cannot be written, or what another run wrote there is damaged, and nobody else is told.
        """
        if not self._dirty:
            return
        self._dirty = False
        self._written = time.monotonic()
        try:
            self._store()
        except InputError as error:
            if self._failed is None:
                raise
            self._failed(error)

    def _store(self) -> None:
        with locked(self._path.parent):
            self._add_what_others_wrote()
            self._kept = {name: kept for name, kept in self._kept.items() if _is_as_it_was(Path(name), kept.stamp)}
            blocks: list[str] = []
            room = MAX_BYTES - 100  # for the header
            for name, kept in reversed(self._kept.items()):
                facts = {"file": name, "stamp": list(kept.stamp), "tensors": len(kept.contents), "root": kept.root}
                block = "".join(f"{_spelled(line)}\n" for line in (facts, *kept.contents.items()))
                if len(block) > room:
                    break
                room -= len(block)
                blocks.append(block)
            header = _spelled({"schema": SCHEMA, "files": len(blocks)})
            write_whole(self._path, f"{header}\n{''.join(reversed(blocks))}".encode(), private=True)
            self._seen = stamp_of(self._path.stat())

    def _add_what_others_wrote(self) -> None:
        if not (self._path.exists() or self._path.is_symlink()):
            return
        now = stamp_of(self._path.stat()) if self._path.exists() else None
        if now is None or now != self._seen:
            self._kept = {**_read(self._path), **self._kept}
            self._seen = now

    def _damaged(self, file: TensorFile) -> InputError:
        what = f"what is kept of {file.name} contradicts itself or the file"
        return InputError(what, where=str(self._path), hint="delete it; the next run hashes everything again")


def _is_as_it_was(path: Path, stamp: Stamp) -> bool:
    try:
        return stamp_of(path.stat()) == stamp
    except (OSError, ValueError):
        return False


@functools.cache
def _devices_of_programs() -> frozenset[int]:
    """Return the devices of file systems that a program serves (Linux names them; elsewhere none is known)."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = set()
    for line in lines:  # proc(5): ID, parent, major:minor, root, mount point, options, tags..., "-", type, source
        fields, _, kind = line.partition(" - ")
        if kind.startswith("fuse"):
            major, _, minor = fields.split()[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _spelled(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _read(path: Path) -> dict[str, _Kept]:
    try:
        data = read_small(path, MAX_BYTES)
    except InputError as error:
        hint = error.hint or "delete it; the next run hashes everything again"
        raise InputError(error.message, where=error.where, hint=hint) from None
    status = path.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (0, os.geteuid()):
        raise InputError(
            "others may write it, and so claim any digest",
            where=str(path),
            hint="chmod go-w, or name a file of your own",
        )
    lines = data.decode("ascii", "replace").split("\n")
    header = _HEADER.fullmatch(lines[0])
    if header is None or lines.pop():
        _refuse(path, 1)
    kept: dict[str, _Kept] = {}
    at = 1
    while at < len(lines):
        found = _FILE.fullmatch(lines[at])
        if found is None or at + int(found[3]) >= len(lines):
            _refuse(path, at + 1)
        rows = [_TENSOR.fullmatch(line) for line in lines[at + 1 : at + 1 + int(found[3])]]
        contents = {_text(path, at + 1, row[1]): row[2] for row in rows if row is not None}
        if len(contents) != len(rows):
            _refuse(path, at + 1)
        stamp = Stamp(*map(int, found[2].split(",")))
        kept[_text(path, at + 1, found[1])] = _Kept(stamp, found[4], contents)
        at += 1 + len(rows)
    if len(kept) != int(header[1]):
        _refuse(path, 1)
    return kept


def _text(path: Path, line: int, spelled: str) -> str:
    try:
        value: str = json.loads(f'"{spelled}"')
    except ValueError:
        _refuse(path, line)
    return value


def _refuse(path: Path, line: int) -> NoReturn:
    raise InputError(
        f"not a sound {SCHEMA} file",
        where=f"{path}:{line}",
        hint="delete it if it was one; the next run hashes everything again",
    )
