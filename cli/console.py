"""Standard output and standard error: what may be written to them, how wide and in which colours."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TextIO

from kvgate.cli.plain import visible
from kvgate.rules.errors import InputError

FILE_WIDTH = 120
"""Columns of a report that goes to a file."""

_LAST_STREAM = 2  # standard error's number
_CI_WIDTH = 120  # a log without a terminal says 80, and folds what nobody asked to have folded


class _Closed(io.StringIO):
    """Stands for a stream that whoever started the process had closed."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def prepare() -> None:
    """Make both streams show what their encoding lacks as escapes, instead of failing in the middle of a report.

    A stream that is closed takes nothing, and its number is not left to the next file that is opened.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass  # it was the lowest number that was free
    os.close(descriptor)
    sys.stdout, sys.stderr = sys.stdout or _Closed(), sys.stderr or _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def width() -> int:
    """Return the columns of standard output: ``COLUMNS``, else the terminal's, else at least 120."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and 0 < int(columns) < 10_000:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _CI_WIDTH
    except (OSError, ValueError):
        return _CI_WIDTH


def colored(stream: TextIO, *, no_color: bool) -> bool:
    """Whether colours may be written to a stream: a terminal that shows them, and nobody who asked for none."""
    if no_color or os.environ.get("NO_COLOR") or dumb():
        return False
    return stream.isatty()


def dumb() -> bool:
    """Whether a terminal, where there is one, only takes text."""
    return os.environ.get("TERM") == "dumb"


def emit(text: str) -> None:
    """Write text to standard output. A reader that has gone away (``| head``) is no error.

    Raises:
        InputError: standard output cannot take it (a full disk).

    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        _silence(sys.stdout)
        raise InputError(f"cannot be written: {error.strerror or error}", where="standard output") from None


def say(line: str) -> None:
    """Write one line to standard error, harmless whatever is in it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{visible(line)}\n")
        sys.stderr.flush()


def _silence(stream: TextIO) -> None:
    """Let nothing more reach a stream that failed, so that the interpreter's last flush does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
