"""Opening what people hand in, and writing what they get: nothing blocks, nothing is left half-written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError


class Stamp(NamedTuple):
    """What tells that a file is still the one whose header was read."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def open_stamped(path: Path) -> tuple[int, Stamp]:
    """Open a regular file for reading; the caller closes the descriptor.

    Raises:
        InputError: when it is missing, unreadable or not a regular file.
    """
    try:
        # Not blocking: opening a named pipe would otherwise wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        hint = "who runs kvgate must be allowed to read it" if error.errno in (errno.EACCES, errno.EPERM) else None
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), hint=hint) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InputError("not a regular file", where=str(path))
    return descriptor, stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file's status."""
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_exactly(descriptor: int, begin: int, end: int) -> bytes:
    """Return bytes ``begin`` to ``end`` of an open file.

    Raises:
        OSError: it cannot be read, or ends before.
    """
    data = os.pread(descriptor, end - begin, begin)
    if len(data) != end - begin:
        raise OSError(errno.EIO, "it ends too early")
    return data


def read_small(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes.

    Raises:
        InputError: when it is missing, unreadable, not a regular file, or has more than ``limit`` bytes.
    """
    descriptor, stamp = open_stamped(path)
    with os.fdopen(descriptor, "rb") as stream:
        if stamp.size > limit:
            raise InputError(f"{stamp.size} bytes; at most {limit} are read", where=str(path))
        try:
            return stream.read(limit)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """Return the JSON object in a file of at most ``limit`` bytes.

    Raises:
        InputError: as :func:`read_small`, or when it is not one strict JSON object in UTF-8.
    """
    try:
        text = read_small(path, limit).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=str(path)) from error
    document = parse_json(text, str(path))
    if not isinstance(document, dict):
        raise InputError("not a JSON object", where=str(path))
    return document


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file beside its place and rename it there, so that nobody ever sees half of it.

    Args:
        path: its place.
        data: its content.
        private: whether only its owner may read and write it; else the process's mask says who may.

    Raises:
        InputError: when the folder cannot be written.
    """
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                if not private:
                    os.fchmod(stream.fileno(), 0o666 & ~_umask())  # as mkstemp makes none
            Path(beside).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
            raise
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from error


def require_writable(path: Path) -> None:
    """Refuse a place that :func:`write_whole` could not write to, before the work is done; nothing is left there.

    Raises:
        InputError: it cannot be written to.
    """
    try:
        if path.is_dir():
            raise InputError("is a folder, and a file would be written there", where=str(path))
        descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        Path(beside).unlink()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {getattr(error, 'strerror', error)}", where=str(path)) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for oneself among the processes that ask for it so; where it has no locks, nothing is held."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
