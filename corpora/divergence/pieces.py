"""What token ids stand for, when the tokenizer is gone and only its vocabulary strings were saved."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Literal

from kvgate.corpora.tokenizers.bytelevel import BYTE_OF

Style = Literal["byte-level", "metaspace", "wordpiece"]

NO_TEXT = "the rendered text was not saved"
NO_PIECES = "the vocabulary strings of these tokens were not saved"
NOT_SPELLED = "the tokens do not spell the rendered text to the letter: the tokenizer normalises or strips it"

_SPACE, _BLANK, _MORE = "\u0120", "\u2581", "##"  # how the three styles mark a space, or that there is none
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_CHUNK = 4096
_LEADING = 4  # tokens that a post-processor puts in front of a text; none puts more than two


class Pieces:
    """The vocabulary strings of one side.

    Args:
        strings: the vocabulary's own string by id, for the ids that occur.

    """

    def __init__(self, strings: Mapping[int, str]) -> None:
        self._strings = strings
        self.style = _style(strings)
        self._bytes = _Bytes(strings, self.style)

    def string(self, token: int) -> str | None:
        """Return the vocabulary's own string of an id; ``None``: it was not saved."""
        return self._strings.get(token)

    def text(self, token: int) -> str | None:
        r"""Return the text that an id stands for, bytes that are no text of their own as ``\xhh``."""
        if token not in self._strings:
            return None
        if self.style == "wordpiece":
            return self._strings[token]
        return self._bytes[token].decode("utf-8", "backslashreplace")

    def locate(self, text: str | None, ids: Sequence[int], count: int) -> int | str:
        """Return the index of the character at which token ``count`` begins, or why that cannot be said.

        A token that begins within a character (as bytes do) is placed at that character.

        Args:
            text: what was rendered; ``None``: not saved.
            ids: its token ids.
            count: index of a token, or the number of tokens for the end.

        """
        if text is None:
            return NO_TEXT
        if any(token not in self._strings for token in ids[:count]):
            return NO_PIECES
        data = text.encode("utf-8")
        at = self._walk(data, ids, count)
        return NOT_SPELLED if at is None else len(data[:at].decode("utf-8", "ignore"))

    def _walk(self, data: bytes, ids: Sequence[int], count: int) -> int | None:
        if not count:
            return 0
        # A text may begin with what a post-processor also puts in front of it: only the rest tells them apart.
        doubtful = len(ids) > 1 and ids[0] == ids[1]
        for leading in range(min(_LEADING, count) + 1):
            at, moved = self._spell(data, 0, ids[leading:count])
            if at is not None and (not (doubtful or leading or not moved) or self._fits(data, at, ids[count:])):
                return at
        return None

    def _fits(self, data: bytes, at: int, ids: Sequence[int]) -> bool:
        """Whether the text from ``at`` on is what these tokens spell, but for tokens added behind it."""
        known = list(takewhile(self._strings.__contains__, ids))
        end, _ = self._spell(data, at, known, to_the_end=True)
        return end == len(data)

    def _spell(self, data: bytes, at: int, ids: Sequence[int], *, to_the_end: bool = False) -> tuple[int | None, bool]:
        """Return where these tokens end if they stand at ``at``, else ``None``; and whether the last one was text.

        Args:
            data: the text.
            at: where they have to begin.
            ids: the tokens.
            to_the_end: where one does not stand, what stands so far counts.

        """
        moved = True
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            run = b"".join(map(self._bytes.__getitem__, chunk))
            if data.startswith(run, at):
                at += len(run)
                moved = bool(run)
                continue
            for token in chunk:
                after = self._step(data, at, token)
                if after is None:
                    return at if to_the_end else None, moved
                moved = after > at
                at = after
        return at, moved

    def _step(self, data: bytes, at: int, token: int) -> int | None:
        """Return where ``token`` ends if it stands at ``at``, else ``None``."""
        spelled = self._bytes[token]
        if self.style == "wordpiece" and not self._strings[token].startswith(_MORE):
            while data[at : at + 1].isspace():
                at += 1
        if data.startswith(spelled, at):
            return at + len(spelled)
        if self.style == "metaspace":
            # The bar itself, where the text holds one.
            literal = self._strings[token].encode("utf-8")
            if data.startswith(literal, at):
                return at + len(literal)
            # The space that these tokenizers put in front of a text, or of what follows a special token.
            if spelled[:1] == b" " and data.startswith(spelled[1:], at):
                return at + len(spelled) - 1
        return None


class _Bytes(dict[int, bytes]):
    """The bytes that each id stands for, worked out when first asked for."""

    def __init__(self, strings: Mapping[int, str], style: Style) -> None:
        super().__init__()
        self._strings = strings
        self._style = style

    def __missing__(self, token: int) -> bytes:
        found = self[token] = _spelled(self._strings[token], self._style)
        return found


def _style(strings: Mapping[int, str]) -> Style:
    """Tell by the marks of white space how a vocabulary is written; without any the styles read alike."""
    marks = Counter(mark for string in strings.values() for mark in (_SPACE, _BLANK, _MORE) if string.startswith(mark))
    # Only vocabularies that write a space as a bar spell out bytes.
    marks[_BLANK] += sum(_BYTE.fullmatch(string) is not None for string in strings.values())
    if marks[_BLANK] > marks[_SPACE]:
        return "metaspace"
    return "wordpiece" if marks[_MORE] > marks[_SPACE] else "byte-level"


def _spelled(string: str, style: Style) -> bytes:
    if style == "byte-level" and all(character in BYTE_OF for character in string):
        return bytes(BYTE_OF[character] for character in string)
    if style == "metaspace":
        byte = _BYTE.fullmatch(string)
        return bytes([int(byte[1], 16)]) if byte else string.replace(_BLANK, " ").encode("utf-8")
    # An added token of a byte-level vocabulary is written as it stands in the text.
    return string.removeprefix(_MORE if style == "wordpiece" else "").encode("utf-8")
