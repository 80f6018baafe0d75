"""``kvgate corpus sweep``: what it prints, and how it ends; the sweep itself is tested in its own room."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from kvgate.corpora.sweeps import sweep
from kvgate.corpora.sweeps.result import GroupResult, OtherMeaning, SweepResult, SweptDivergence
from kvgate.corpora.tokenizers.structure import PartDifference

from .conftest import Run

_EQUAL = SweepResult(
    equal=True,
    old_effective="blake3:" + "0a" * 32,
    new_effective="blake3:" + "0a" * 32,
    renderer={"transformers": "5.24.0", "tokenizers": "0.23.3"},
    unicode="14.0.0",
    parts=(PartDifference("decoder", "a decoder turns ids into text", 1, (), inert="decoder"),),
    meanings=0,
    other_meanings=(),
    groups=(),
    divergences=(),
    unswept=(),
)
_OPEN = dataclasses.replace(
    _EQUAL,
    equal=False,
    new_effective="blake3:" + "0b" * 32,
    parts=(PartDifference("added-tokens", "tokens with another special", 1, ('"<think>": false -> true',)),),
    groups=(GroupResult("vocabulary", 128_000, 0, 0), GroupResult("code points", 282_230, 0, 2)),
    unswept=(("vocabulary", "13 entries stand for bytes that no text holds"),),
)
_DIFFERENT = dataclasses.replace(
    _OPEN,
    parts=(
        PartDifference("vocabulary", "entries with another id", 2, ('"the": 5 -> 6', '"\\u202e": 6 -> 5')),
        *_EQUAL.parts,
    ),
    meanings=2,
    other_meanings=(OtherMeaning(5, "the", "\u202e"), OtherMeaning(6, "\u202e", "the")),
    groups=(GroupResult("vocabulary", 128_000, 2, 0), GroupResult("runs", 9, 0, 0), GroupResult("borders", 9, 1, 0)),
    divergences=(
        SweptDivergence("vocabulary", "the", False, 0, (5,), (6,), ("the",), ("the",)),
        SweptDivergence("vocabulary", "\u202e", False, 0, (6,), (5,), ("\u202e",), ("\u202e",)),
        SweptDivergence(
            "borders", "1 \n\x1b[31mthe end", True, 4,
            (1, 2, 3, 4, 5, 9, 8, 7, 6), (1, 2, 3, 4, 6), (*"abcd", "the", None, " ", "\n", "x"), (*"abcd", "the"),
        ),
    ),
)  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a result in the place of the sweep."""

    def give(result: SweepResult) -> None:
        def compare(old: Path, new: Path, **_: Any) -> SweepResult:
            assert (old, new) == (Path("old"), Path("new"))
            return result

        monkeypatch.setattr(sweep, "compare_tokenizers", compare)

    return give


@pytest.mark.parametrize(
    ("name", "result", "code"),
    [("equal", _EQUAL, 0), ("open", _OPEN, 11), ("different", _DIFFERENT, 10)],
    ids=["equal", "open", "different"],
)
def test_what_it_prints_and_how_it_ends(
    run: Run, found: Any, name: str, result: SweepResult, code: int, snapshot: SnapshotAssertion
) -> None:
    found(result)
    text = run("corpus", "sweep", "old", "new")
    assert text.code == code
    assert text.out == snapshot(name=name)
    quiet = run("corpus", "sweep", "old", "new", "-q")
    assert (quiet.code, quiet.out) == (code, "")
    data = run("corpus", "sweep", "old", "new", "-o", "json")
    assert data.code == code
    assert json.loads(data.out) == snapshot(name=f"{name}, JSON")


def test_only_an_id_that_stands_for_other_text_is_a_difference_too(run: Run, found: Any) -> None:
    found(dataclasses.replace(_OPEN, meanings=1, other_meanings=_DIFFERENT.other_meanings[:1]))
    assert run("corpus", "sweep", "old", "new").code == 10


def test_folders_that_are_not_there_are_refused(run: Run) -> None:
    ended = run("corpus", "sweep", "old", "new")
    assert (ended.code, ended.out) == (3, "")
    assert "old: not a folder" in ended.err
    assert run("corpus", "sweep", "old", "new", "-o", "yaml").code == 2
