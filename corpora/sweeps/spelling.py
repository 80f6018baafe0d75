"""What the vocabulary strings of a tokenizer stand for, told by its parts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvgate.corpora.tokenizers.bytelevel import BYTE_OF
from kvgate.corpora.tokenizers.structure import entries

_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_LEADS = 4  # openings that a string is tried behind when it only stands within a word

# Bytes that make half a character whole, by how many are missing; of each the first ones that are valid count.
_OPENINGS = {1: (b"\xe4\xb8", b"\xc3", b"\xf0\x9f\x98"), 2: (b"\xe4", b"\xf0\x9f"), 3: (b"\xf0",)}
_CLOSINGS = (b"\x80", b"\xa0", b"\x9f", b"\xbf")
_COMPLETIONS = 2

# A byte-level string as Latin-1; what is no part of the alphabet becomes what Latin-1 cannot hold.
_LATIN = dict.fromkeys(range(256), 0xFFFF) | {ord(character): byte for character, byte in BYTE_OF.items()}


class Meaning(NamedTuple):
    """What a vocabulary string stands for: its bytes, and whether it must follow in, or end, a word."""

    data: bytes
    follows: bool
    ends: bool


class Spelling:
    """How one tokenizer writes text as vocabulary strings.

    Args:
        parts: as :func:`kvgate.corpora.tokenizers.effective.written_out` gives them.

    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        steps = [*_all_steps(parts["normalizer"], "normalizers"), *_all_steps(parts["pre_tokenizer"], "pretokenizers")]
        model = parts["model"]
        self.byte_level = any(step["type"] == "ByteLevel" for step in steps)
        self._blank = next(filter(None, map(_blank, steps)), None)
        self._fallback = bool(model.get("byte_fallback"))
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""
        self._literal = {token["content"] for token in parts["added_tokens"]}
        vocabulary = entries(parts) if self._prefix else {}
        self._leads = [piece for piece in vocabulary if len(piece) == 1 and piece.isalpha()][:_LEADS] or ["x"]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two tokenizers that write alike."""
        return self.byte_level, self._blank, self._fallback, self._prefix, self._suffix

    def meaning(self, piece: str) -> Meaning:
        """Return what a vocabulary string stands for."""
        if piece in self._literal:
            return Meaning(piece.encode("utf-8", "surrogatepass"), follows=False, ends=False)
        follows = bool(self._prefix) and piece.startswith(self._prefix)
        ends = bool(self._suffix) and piece.endswith(self._suffix)
        return Meaning(self._data(piece), follows, ends)

    def texts(self, piece: str) -> list[str]:
        """Return texts in which the tokenizer may use a vocabulary string; none where it stands for no text."""
        data, follows, _ = self.meaning(piece)
        found = readings(data)
        if follows:
            return [lead + text for text in found for lead in self._leads]
        if self._blank is None:
            return found
        # What begins a text gets a space from the tokenizer; behind a line feed there is none.
        return [one for text in found for one in (text, text[1:] if text.startswith(" ") else f"\n{text}")]

    def _data(self, piece: str) -> bytes:
        text = piece.removeprefix(self._prefix).removesuffix(self._suffix)
        if self.byte_level:
            try:
                return text.translate(_LATIN).encode("latin-1")
            except UnicodeEncodeError:
                return text.encode("utf-8", "surrogatepass")
        if self._fallback and (byte := _FALLBACK.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        if self._blank is not None:
            text = text.replace(self._blank, " ")
        return text.encode("utf-8", "surrogatepass")


def readings(data: bytes) -> list[str]:
    """Return texts that hold these bytes: the text itself, or some in which half characters are made whole."""
    try:
        return [data.decode()]
    except UnicodeDecodeError:
        return list(itertools.islice(_completed(data), _COMPLETIONS))


def _completed(data: bytes) -> Iterator[str]:
    orphans = next((place for place, byte in enumerate(data) if byte & 0xC0 != 0x80), len(data))
    for opening in _OPENINGS.get(orphans, (b"",)):
        for count in range(4):
            for closing in _CLOSINGS if count else (b"",):
                try:
                    yield (opening + data + closing * count).decode()
                except UnicodeDecodeError:
                    continue
                break  # one of each kind


def _all_steps(value: Any, name: str) -> Iterator[Mapping[str, Any]]:
    if value is None:
        return
    if value["type"] == "Sequence":
        for one in value[name]:
            yield from _all_steps(one, name)
    else:
        yield value


def _blank(step: Mapping[str, Any]) -> str | None:
    """Return what a step writes for a space."""
    if step["type"] == "Metaspace":
        return str(step["replacement"])
    if step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"]:
        return str(step["content"])
    return None
