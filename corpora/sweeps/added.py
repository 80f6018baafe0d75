"""Strings round added tokens: each bare, next to white space, letters and itself, in other spellings, overlapping."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

_OVERLAPS = 4  # other tokens that begin with the end of one

# Where lstrip and rstrip (white space), single_word (letters, digits, the underscore), normalized (marks that
# compose with the character before them) and a prefix space show.
_ROUND = (
    "{}", " {}", "{} ", " {} ", "  {}  ", "\t{}\n", "\n{}\n", "{}\n\n", "\r\n{}\r\n", "\u00a0{}\u00a0",
    "\u3000{}\u3000", "a{}", "{}a", "a{}a", "a {} a", "a {}a", "a{} a", "1{}1", "_{}_", ".{}.", "中{}中", "é{}é",
    "{}\u0338", "{}\u0301", "{}\u200d", "\u0301{}", "{0}{0}", "{0} {0}", "{0}\n{0}", "{0}a{0}", "<{}>",
)  # fmt: skip


def round_tokens(contents: Iterable[str]) -> Iterator[str]:
    """Yield strings with the added tokens ``contents`` in them, or almost in them."""
    contents = [content for content in contents if content]
    beginnings: dict[str, list[str]] = {}
    for content in contents:
        yield from (form.format(content) for form in _ROUND)
        yield from sorted(_respelled(content))
        for end in range(1, len(content)):
            found = beginnings.setdefault(content[:end], [])
            if len(found) < _OVERLAPS:
                found.append(content)
    for content in contents:
        overlapping = (
            content + other.removeprefix(content[start:])
            for start in range(1, len(content))
            for other in beginnings.get(content[start:], ())
        )
        yield from (string for string, _ in zip(overlapping, range(_OVERLAPS), strict=False))


def _respelled(content: str) -> set[str]:
    """Return spellings that some normaliser takes for the token, and pieces of it."""
    inside = {f"{content[:1]}{mark}{content[1:]}" for mark in ("\u0301", "\u200b", "\u00ad", "\x00", " ")}
    forms = {unicodedata.normalize(form, content) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    cases = {content.upper(), content.lower(), content.swapcase(), content.title(), content.casefold()}
    wide = "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in content)
    parts = {content[:-1], content[1:], content.strip(), content.replace(" ", "\u2581"), content.replace("\u2581", " ")}
    return (inside | forms | cases | {wide} | parts) - {content, ""}
