"""From exceptions to exit codes: one line that says what is wrong, one that says what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import typer

from kvgate.cli import console
from kvgate.rules.errors import InputError, KvgateError

_Command = TypeVar("_Command", bound=Callable[..., Any])

INTERRUPTED = 130


def guarded(command: _Command) -> _Command:
    """Return a command that ends with the exit code of what went wrong in it, and with no traceback but on demand.

    The command takes ``debug``; its own exit code is what it returns, or raises as ``typer.Exit``.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        debug = bool(kwargs.get("debug"))
        console.prepare()
        try:
            code = command(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            console.say("interrupted: nothing was left half-written")
            code = INTERRUPTED
        except Exception as error:
            if debug:
                raise
            code = _explain(error)
        raise typer.Exit(code or 0)

    return cast("_Command", run)


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
