"""Sweeping two tokenizers of 128k entries against ``encode_batch`` over the same strings, in one run.

Run: ``python benchmarks/sweeps.py FOLDER`` with a folder that holds tokenizer.json and tokenizer_config.json
of a real tokenizer. It is swept against a copy with two merges and two ids exchanged. Counted is all that
comes once both are loaded and written out, which their identity takes anyway and is shown apart: comparing
their parts, making the strings, encoding them with both and comparing the ids. The other side encodes the
finished strings with both, and does no more. The two take turns, batch by batch, so that a busy machine slows
both alike and both find the caches as warm. Aim: at most 1.3 times that.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.sweeps.here import Side, sweep

ROUNDS = 3


class Silent:
    """Stands in for the pipe of the child process."""

    def step(self, name: str, what: str, where: str | None) -> None:
        """Take no note of what begins."""

    def item(self, value: Any) -> None:
        """Take no note of how far it is."""


class Turns:
    """An encoder of the sweep that also encodes the plain way, which of them first in turns."""

    spent = 0.0

    def __init__(self, tokenizer: Any, encoder: Encoder) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._encoder = encoder
        self._plain_first = False
        self.pieces = encoder.pieces

    def ids(self, texts: Sequence[str], *, special_tokens: bool) -> Any:
        """Return what the sweep's own encoder does."""
        self._plain_first = not self._plain_first
        if self._plain_first:
            self._plain(texts, special_tokens)
        ids = self._encoder.ids(texts, special_tokens=special_tokens)
        if not self._plain_first:
            self._plain(texts, special_tokens)
        return ids

    def _plain(self, texts: Sequence[str], special_tokens: bool) -> None:
        begin = time.perf_counter()
        self._backend.encode_batch(texts, add_special_tokens=special_tokens)
        Turns.spent += time.perf_counter() - begin


def measured(folder: Path, changed: Path) -> tuple[float, float, float, int]:
    """Return the seconds of writing out, of a sweep and of the plain way, and how many strings there were."""
    from transformers import AutoTokenizer

    tokenizers = [AutoTokenizer.from_pretrained(str(one)) for one in (folder, changed)]
    begin = time.perf_counter()
    sides = [Side(tokenizer) for tokenizer in tokenizers]
    written = time.perf_counter() - begin
    Turns.spent = 0.0
    for side, tokenizer in zip(sides, tokenizers, strict=True):
        side.encoder = Turns(tokenizer, side.encoder)  # type: ignore[assignment]
    begin = time.perf_counter()
    found = sweep(sides[0], sides[1], Silent(), where="")  # type: ignore[arg-type]
    ours = time.perf_counter() - begin - Turns.spent
    if not found.differs:
        raise RuntimeError("the sweep did not find what was changed")
    return written, ours, Turns.spent, found.strings


def changed_copy(folder: Path, into: Path) -> Path:
    """Copy a tokenizer with two merges and two ids exchanged."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, into)
    path = into / "tokenizer.json"
    backend = json.loads(path.read_text(encoding="utf-8"))
    merges, vocabulary = backend["model"]["merges"], backend["model"]["vocab"]
    merges[2000], merges[2040] = merges[2040], merges[2000]
    one, other = list(vocabulary)[5000:5002]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(backend), encoding="utf-8")
    return into


def main() -> None:
    """Print the times and their ratio."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as beside:
        changed = changed_copy(folder, Path(beside))
        rounds = [measured(folder, changed) for _ in range(ROUNDS)]
    for written, ours, plain, strings in rounds:
        print(
            f"{strings:,} strings: sweep {ours:.1f} s, encode_batch {plain:.1f} s, ratio {ours / plain:.2f}; "
            f"writing out both: {written:.1f} s, with it {(written + ours) / plain:.2f}"
        )
    print(f"best ratio {min(ours / plain for _, ours, plain, _ in rounds):.2f} (aim: at most 1.3)")


if __name__ == "__main__":
    main()
