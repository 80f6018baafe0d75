"""Showing text in Markdown as it stands: nothing in it can become markup, a link, a mention or a formula."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#+!|~&]|^[-=]|^(?=\d+[.)])")
# What renderers make links, mentions, references or formulas of by themselves, escaped or not: shown as code instead.
_LIVE = re.compile(r"[@$#]|://|www\.|\bGH-\d|\n", re.IGNORECASE)


def escaped(text: str) -> str:
    """Return one line of ``text`` so that Markdown shows it as it stands, in a table too."""
    if _LIVE.search(text):
        return code(text)
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};" if match[0] else "&#8203;", text)


def code(text: str | None) -> str:
    """Show one line of ``text`` as code: the one place in Markdown where nothing means anything."""
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    # A pipe ends a table's cell even in code, and readers differ in how to escape it.
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\x7c")


def block(lines: tuple[str, ...], indent: str) -> str:
    """Show lines as a block of code that none of them can close."""
    fence = "`" * max(3, _longest_run("\n".join(lines)) + 1)
    return "\n".join(f"{indent}{line}" for line in (f"{fence}text", *lines, fence))


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
