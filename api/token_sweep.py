"""Looking for a text that two tokenizers give other ids, where the conversations showed none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress

if TYPE_CHECKING:
    from kvgate.corpora.sweeps.result import SweepResult


@dataclass(frozen=True)
class Swept:
    """What a sweep adds to token evidence.

    Attributes:
        strings: how many strings both sides encoded.
        parts: in what the tokenizers differ, one clause each; empty where nothing was swept.
        found: what shows that they give other ids, one clause; ``None``: nothing does.
        figures: numbers and examples, as JSON; ``None``: nothing was swept.
        missing: why nothing was swept; ``None``: something was.
    """

    strings: int
    parts: tuple[str, ...]
    found: str | None
    figures: dict[str, Any] | None
    missing: str | None


def sweep(old: Manifest, new: Manifest, progress: Progress) -> Swept | None:
    """Encode strings made from both tokenizers with both.

    Args:
        old: the old deployment.
        new: the new one.
        progress: told how many strings were encoded.

    Returns:
        What it found; ``None`` where the tokenizers are equal or one is unknown: there is nothing to look for.

    Raises:
        InputError: the files of a tokenizer are malformed or hostile.
    """
    digests = [side.value("tokenizer.effective") for side in (old, new)]
    if None in digests or digests[0] == digests[1]:
        return None
    folders = []
    for side in (old, new):
        folder = side.value("tokenizer.path")
        if folder is None or not Path(folder).is_dir():
            return _unswept(f"{side.source}: no tokenizer files at hand")
        folders.append(Path(folder))
    from kvgate.corpora.sweeps.sweep import compare_tokenizers

    result = compare_tokenizers(*folders, progress=progress)
    for side, built, captured in zip((old, new), (result.old_effective, result.new_effective), digests, strict=True):
        if built != captured:
            return _unswept(
                f"{side.source}: what transformers {result.renderer.get('transformers')} builds from the files at hand "
                "is not the tokenizer that was captured"
            )
    return Swept(result.strings, _parts(result), _found(result), result.figures(), None)


def _unswept(why: str) -> Swept:
    return Swept(0, (), None, None, why)


def _parts(result: SweepResult) -> tuple[str, ...]:
    return tuple(f"{one.part}: {one.what}" for one in result.parts if one.inert is None)


def _found(result: SweepResult) -> str | None:
    if result.divergences:
        first = result.divergences[0]
        return f"{result.divergent} of {result.strings} swept strings diverge; first: {first.text!r} ({first.group})"
    if result.other_meanings:
        other = result.other_meanings[0]
        return f"{result.meanings} ids stand for other text; first: {other.id} is {other.old!r}, then {other.new!r}"
    return None
