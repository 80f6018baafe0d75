"""Opening what people hand in, and writing what they get: nothing blocks, nothing is left half-written."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from kvgate.rules.errors import InputError


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises:
        InputError: it is missing, unreadable, or not a regular file.

    """
    try:
        # Not blocking: opening a named pipe would otherwise wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("not a regular file", where=str(path))
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor, not a path


def listing(folder: Path) -> list[str]:
    """Return the names in a folder.

    Raises:
        InputError: it is missing, unreadable, or not a folder.

    """
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise InputError(f"cannot be read: {reason(error)}", where=str(folder)) from None


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most ``limit`` bytes.

    Raises:
        InputError: it is missing, unreadable, not a regular file, or larger.

    """
    with open_regular(path) as stream:
        try:
            data = stream.read(limit + 1)
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None
    if len(data) > limit:
        raise InputError(f"larger than the {limit:,} bytes that are read", where=str(path))
    return data


def read_text(path: Path, limit: int) -> str:
    """Return a UTF-8 file's text with its line ends as they are.

    Raises:
        InputError: as :func:`read_bytes`, or when it is not UTF-8.

    """
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=str(path)) from None


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write ``chunks`` beside ``path`` and rename, so that nobody ever sees half a file.

    Raises:
        InputError: the folder cannot be written.

    """
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
                stream.writelines(chunks)
                stream.flush()
                os.fsync(stream.fileno())
                # mkstemp makes private files; this one is committed and read by others.
                os.fchmod(stream.fileno(), 0o666 & ~_umask())
            Path(beside).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(beside).unlink()
            raise
    except OSError as error:
        raise InputError(f"cannot be written: {reason(error)}", where=str(path)) from None


def reason(error: BaseException) -> str:
    """Return what the system says about ``error``, without the path that is named beside it anyway."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
