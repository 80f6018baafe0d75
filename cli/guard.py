"""From exceptions to exit codes: one line that says what is wrong, one that says what to do."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, cast

import typer

from kvgate.cli import console
from kvgate.rules.errors import InputError, KvgateError

_Command = TypeVar("_Command", bound=Callable[..., Any])

INTERRUPTED = 130
_SIGNALS = 128  # a process that a signal ended is known to shells by 128 and the signal's number


class _Terminated(BaseException):
    """The process was asked to end: what it made on the way must go with it, as when it is interrupted."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def guarded(command: _Command) -> _Command:
    """Return a command that ends with the exit code of what went wrong in it, and with no traceback but on demand.

    The command takes ``debug``; its own exit code is what it returns, or raises as ``typer.Exit``.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        debug = bool(kwargs.get("debug"))
        console.prepare()
        try:
            with _told_to_end():
                code = command(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            console.say("interrupted: nothing was left half-written")
            code = INTERRUPTED
        except _Terminated as told:
            console.say("terminated: nothing was left half-written")
            code = _SIGNALS + told.number
        except Exception as error:
            if debug:
                raise
            code = _explain(error)
        raise typer.Exit(code or 0)

    return cast("_Command", run)


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """Have SIGTERM and SIGHUP, which a cancelled CI job sends, unwind the stack instead of ending the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what a handler is given
        raise _Terminated(number)

    told = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.getsignal(number) for number in told}
    for number in told:
        if before[number] is signal.SIG_DFL:  # nohup stays as it is
            signal.signal(number, end)
    try:
        yield
    finally:
        for number in told:
            signal.signal(number, before[number])


def _explain(error: Exception) -> int:
    if isinstance(error, KvgateError):
        console.say(f"error: {error.where}: {error.message}" if error.where else f"error: {error.message}")
        if error.hint:
            console.say(f"hint: {error.hint}")
        return error.exit_code
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        console.say(f"error: {where}{error.strerror}")
        return InputError.exit_code
    if isinstance(error, MemoryError):
        console.say("error: out of memory")
        return InputError.exit_code
    console.say(f"error: internal: {type(error).__name__}: {error}")
    console.say("hint: run again with --debug for the traceback, and report it")
    return 1
