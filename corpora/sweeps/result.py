"""What a sweep found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.corpora.tokenizers.structure import PartDifference

_SHOWN = 20  # divergent strings in reports


@dataclass(frozen=True)
class GroupResult:
    """One kind of strings: how many were encoded by both sides, and how many of them differently.

    ``failed`` counts those that a side could not encode: they are not compared.
    """

    name: str
    strings: int
    divergent: int
    failed: int


@dataclass(frozen=True)
class SweptDivergence:
    """One string that the two tokenizers give other ids.

    Attributes:
        group: the kind of string.
        text: the string.
        special_tokens: whether it was encoded as a raw completion is, with the ids put round it.
        at: index of the first id that differs.
        old_ids: the ids of the old side; of a long string those up to shortly after ``at``.
        new_ids: likewise.
        old_pieces: their vocabulary strings.
        new_pieces: likewise.

    """

    group: str
    text: str
    special_tokens: bool
    at: int
    old_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    old_pieces: tuple[str | None, ...]
    new_pieces: tuple[str | None, ...]


@dataclass(frozen=True)
class OtherMeaning:
    """An id that both tokenizers know and that stands for other bytes: its vocabulary string on each side."""

    id: int
    old: str
    new: str


@dataclass(frozen=True)
class SweepResult:
    """What two tokenizers, as this environment builds them, make of the same strings.

    It can show that they differ. That no string diverges proves nothing, unless ``equal`` says that they
    are one tokenizer.

    Attributes:
        equal: both effective tokenizers are known and equal; nothing was encoded.
        old_effective: ``"blake3:..."``; ``None``: unknown.
        new_effective: likewise.
        renderer: version by library.
        unicode: the version of the Unicode data that says which code points are assigned.
        parts: in which parts they differ; empty where that cannot be said, see ``unswept``.
        meanings: how many ids that both know stand for other bytes; ``None``: could not be compared.
        other_meanings: the first of them.
        groups: by kind of string.
        divergences: the first of each kind.
        unswept: what was not tried, each with the reason.

    """

    equal: bool
    old_effective: str | None
    new_effective: str | None
    renderer: Mapping[str, str]
    unicode: str
    parts: tuple[PartDifference, ...]
    meanings: int | None
    other_meanings: tuple[OtherMeaning, ...]
    groups: tuple[GroupResult, ...]
    divergences: tuple[SweptDivergence, ...]
    unswept: tuple[tuple[str, str], ...]

    @property
    def strings(self) -> int:
        """How many strings were compared."""
        return sum(group.strings - group.failed for group in self.groups)

    @property
    def divergent(self) -> int:
        """How many of them diverge."""
        return sum(group.divergent for group in self.groups)

    @property
    def differs(self) -> bool:
        """Whether the tokenizers are shown to differ: by a string, or by what an id stands for."""
        return bool(self.divergent or self.meanings)

    def figures(self) -> dict[str, Any]:
        """Return it as JSON values for reports, without what is inert and without the digests."""
        return {
            "strings": self.strings,
            "divergent": self.divergent,
            "otherMeanings": self.meanings,
            "unicode": self.unicode,
            "libraries": dict(self.renderer),
            "parts": [
                {"part": one.part, "what": one.what, "count": one.count, "examples": list(one.examples)}
                for one in self.parts
                if one.inert is None
            ],
            "groups": [dataclasses.asdict(one) for one in self.groups],
            "first": [
                {
                    "group": one.group,
                    "text": one.text,
                    "specialTokens": one.special_tokens,
                    "at": one.at,
                    "old": list(one.old_ids),
                    "new": list(one.new_ids),
                    "oldPieces": list(one.old_pieces),
                    "newPieces": list(one.new_pieces),
                }
                for one in self.divergences[:_SHOWN]
            ],
            "firstMeanings": [dataclasses.asdict(one) for one in self.other_meanings],
            "unswept": [{"what": what, "why": why} for what, why in self.unswept],
        }


def data_of(result: SweepResult) -> dict[str, Any]:
    """Return it all as JSON values, for :func:`result_of`."""
    return dataclasses.asdict(result)


def result_of(answer: Mapping[str, Any]) -> SweepResult:
    """Return the result from the child's answer, which is what :func:`data_of` gives."""
    kinds = {
        "parts": PartDifference,
        "other_meanings": OtherMeaning,
        "groups": GroupResult,
        "divergences": SweptDivergence,
    }
    rows: dict[str, Any] = {name: tuple(kind(**_tuples(one)) for one in answer[name]) for name, kind in kinds.items()}
    return SweepResult(**{**_tuples(answer), **rows, "unswept": tuple((what, why) for what, why in answer["unswept"])})


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
