"""Opening what people hand in, and writing what they get: nothing blocks, nothing is left half-written."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
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


class Beside:
    """A file that is written beside its place and renamed, so that nobody ever sees half of it.

    Exactly one of :meth:`keep` and :meth:`discard` takes effect, whichever is called first.
    """

    def __init__(self, path: Path) -> None:
        """Begin.

        Raises:
            InputError: the folder cannot be written.

        """
        self._path = path
        try:
            descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise self._failed(error) from None
        self._beside = Path(beside)
        self._stream = open(descriptor, "wb")  # noqa: PTH123, SIM115 - a descriptor; keep and discard close it
        self._open = True

    def write(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            InputError: they cannot be written; nothing is left.

        """
        try:
            self._stream.write(data)
        except OSError as error:
            self.discard()
            raise self._failed(error) from None

    def keep(self) -> None:
        """Put the file in its place.

        Raises:
            InputError: it cannot be written; nothing is left.

        """
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            # mkstemp makes private files; this one is committed and read by others.
            os.fchmod(self._stream.fileno(), 0o666 & ~_umask())
            self._stream.close()
            self._beside.replace(self._path)
            self._open = False
        except OSError as error:
            raise self._failed(error) from None
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave nothing behind, unless the file is in its place already."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._beside.unlink()

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"cannot be written: {reason(error)}", where=str(self._path))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place and rename it.

    Raises:
        InputError: it cannot be written; nothing is left.

    """
    file = Beside(path)
    try:
        file.write(data)
        file.keep()
    finally:
        file.discard()


def reason(error: BaseException) -> str:
    """Return what the system says about ``error``, without the path that is named beside it anyway."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
