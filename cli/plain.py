"""Making text from inputs harmless to whoever shows it: terminals, CI logs, issue trackers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

# What a terminal or a log viewer acts on instead of showing it: control and format characters (ANSI escapes, bells,
# directions that reorder what stands around them, invisible joiners), lone surrogates, line and paragraph separators.
_ACTED_ON = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

# GitHub's runner reads `::command::` at the start of a log line and `##[command]` anywhere in one, Azure's reads
# `##vso[command]` (actions/runner, src/Runner.Common/ActionCommand.cs). An IPv6 address holds `::` inside a word.
_LOG_COMMAND = re.compile(r"(?<![\w\[]):(?=:[A-Za-z])|#(?=#\w*\[)")
_LINE_COMMAND = re.compile(r"^(\s*):(?=:[A-Za-z])")


def visible(text: str) -> str:
    """Return ``text`` as one line in which every character is only ever shown.

    Characters that a terminal acts on, and the starts of log commands, become hexadecimal escapes.
    """
    if not text.isprintable():
        text = "".join(_escaped(character) for character in text)
    return _LOG_COMMAND.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def marked(text: str) -> str:
    """Return the text of a token so that its white space can be seen: a blank is a dot, all else is an escape."""
    return "".join(_marked(character) for character in visible(text))


def harmless(value: Any) -> Any:
    """Return plain data with every string in it made harmless to show."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(key): harmless(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [harmless(item) for item in value]
    return value


def harmless_line(line: str) -> str:
    """Return a line of a log such that folding a longer one has not put a log command at its start."""
    return _LINE_COMMAND.sub(r"\1\\x3a", line)


def visible_json(text: str) -> str:
    """Return JSON text of equal meaning without characters that a terminal acts on (line feeds stay)."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        character if character == "\n" or not _acts(character) else _json_escape(character) for character in text
    )


def short(text: str, limit: int) -> str:
    """Cut ``text`` to ``limit`` characters, saying how many were left out."""
    if len(text) <= limit:
        return text
    kept = text[: max(limit - 12, 1)]
    return f"{kept}… (+{len(text) - len(kept)})"


def short_digests(text: str) -> str:
    """Abbreviate the digests in ``text`` to their first twelve digits: for reading, never for comparing."""
    return _DIGEST.sub(r"\1:\2…", text)


_DIGEST = re.compile(r"\b(blake3|sha256):([0-9a-f]{12})[0-9a-f]{52}\b")


def _acts(character: str) -> bool:
    return unicodedata.category(character) in _ACTED_ON


def _escaped(character: str) -> str:
    if not _acts(character):
        return character
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    return _code(character)


def _marked(character: str) -> str:
    if character == " ":
        return "·"
    return _code(character) if character == "·" or unicodedata.category(character) == "Zs" else character


def _code(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
