"""Looking for strings that two tokenizers give other ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvgate.corpora.child.bounded import run_bounded
from kvgate.corpora.child.limits import Limits
from kvgate.corpora.sweeps.result import SweepResult, result_of
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent


def compare_tokenizers(
    old: Path, new: Path, *, progress: Progress = silent, limits: Limits | None = None
) -> SweepResult:
    """Encode strings made from two tokenizers with both, in one bounded child process.

    Both are built by the transformers of this environment, so that nothing is learnt of another release of
    it. The strings are every vocabulary entry, every added token with all sorts of neighbours, every assigned
    code point alone and in context, the borders between classes of characters, and those in which changed
    merges compete; also, every id that both know must stand for the same bytes. Two tokenizers whose
    effective digests are equal are not swept.

    Args:
        old: a model folder: tokenizer files, and config.json, which chooses the class.
        new: another one.
        progress: told how many strings both have encoded.
        limits: the bounds of the child.

    Raises:
        InputError: no folder, files that cannot be read, are malformed or hostile, a tokenizer that needs
            code of the repository or cannot be built here, a limit that was passed.

    """
    for folder in (old, new):
        if not folder.is_dir():
            raise InputError("not a folder", where=str(folder), hint="a model folder with its tokenizer files")

    def take(item: dict[str, Any]) -> None:
        progress("sweeping tokenizers", item["done"], item["total"], "strings")

    arguments = {"old": str(old.absolute()), "new": str(new.absolute())}
    return result_of(run_bounded("sweep", arguments, limits=limits or Limits(), on_item=take))
