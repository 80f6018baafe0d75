"""What can go wrong with a user's input, as one class with fields; only ``cli`` formats and prints it."""

from __future__ import annotations

import re

# What breaks a line, or acts on a terminal: names out of an input may hold it.
_BREAKING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST = 700  # characters of one part of an error; names out of an input may be as long as the input


class KvgateError(Exception):
    """A failure a user can act on, in one line.

    Args:
        message: what is wrong, one line, no trailing full stop.
        where: the file, ``file:line``, manifest path or URL it is about; ``None`` where there is none.
        hint: what to do about it, one line; ``None`` where the message says it all.

    """

    exit_code = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.message = _one_line(message)
        super().__init__(self.message)
        self.where = where if where is None else _one_line(where)
        self.hint = hint if hint is None else _one_line(hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


def _one_line(text: str) -> str:
    """Return a text with line breaks escaped and, where it is very long, its middle left out."""
    if len(text) > _MOST:
        text = f"{text[: _MOST // 2]}…{text[-_MOST // 2 :]}"
    return _BREAKING.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


class UsageError(KvgateError):
    """The call is wrong: an option, a combination of options, a value (exit 2)."""

    exit_code = 2


class InputError(KvgateError):
    """An input is missing, unreadable, hostile or contradicts itself: there is no verdict (exit 3)."""

    exit_code = 3
