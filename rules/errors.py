"""What can go wrong with a user's input, as one class with fields; only ``cli`` formats and prints it."""

from __future__ import annotations


class KvgateError(Exception):
    """A failure a user can act on.

    Args:
        message: what is wrong, one line, no trailing full stop.
        where: the file, ``file:line``, manifest path or URL it is about; ``None`` where there is none.
        hint: what to do about it, one line; ``None`` where the message says it all.

    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class UsageError(KvgateError):
    """The call is wrong: an option, a combination of options, a value (exit 2)."""

    exit_code = 2


class InputError(KvgateError):
    """An input is missing, unreadable, hostile or contradicts itself: there is no verdict (exit 3)."""

    exit_code = 3
