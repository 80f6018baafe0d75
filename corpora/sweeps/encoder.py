"""Encoding many strings as transformers' own tokenizer does; in the bounded child only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ids = list[int]


class Encoder:
    """One side of a sweep.

    A class that leaves encoding to its backend is asked there, in batches: ``encode_batch_fast`` gives the
    ids of ``__call__`` without offsets. Any other class is called as it is.

    Args:
        tokenizer: as transformers built it.
        direct: whether its class leaves encoding to its backend.

    """

    def __init__(self, tokenizer: Any, *, direct: bool) -> None:
        self._tokenizer = tokenizer
        self._direct = direct
        if direct:
            # What calls without these arguments do.
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()

    def ids(self, texts: Sequence[str], *, special_tokens: bool) -> list[Ids | None]:
        """Return the ids of each text; ``None`` where it cannot be encoded."""
        try:
            return self._encode(texts, special_tokens)
        except BaseException as error:
            _refused(error)
            return [self._alone(text, special_tokens) for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str | None]:
        """Return the vocabulary string of each id; ``None`` where it has none."""
        return [piece if isinstance(piece, str) else None for piece in self._tokenizer.convert_ids_to_tokens(list(ids))]

    def _encode(self, texts: Sequence[str], special_tokens: bool) -> list[Ids | None]:
        if self._direct:
            encode = self._tokenizer.backend_tokenizer.encode_batch_fast
            return [one.ids for one in encode(texts, add_special_tokens=special_tokens)]
        return list(self._tokenizer(list(texts), add_special_tokens=special_tokens)["input_ids"])

    def _alone(self, text: str, special_tokens: bool) -> Ids | None:
        try:
            return self._encode([text], special_tokens)[0]
        except BaseException as error:
            _refused(error)
            return None


def _refused(error: BaseException) -> None:
    """Let pass what a tokenizer says of a text; a panic in its native code is no Exception."""
    if isinstance(error, MemoryError) or not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
        raise error
