"""Comparing snapshots: what is shared, what diverges, and what was not examined."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.comparison import compare_snapshots, shared_blocks
from kvgate.corpora.snapshot import Rendered, SnapshotEntry, SnapshotFile

from .conftest import HEADER, saved

_IDS = st.lists(st.integers(0, 3), max_size=40)
_FOLDER = Path()
_COUNT = itertools.count()
_ERROR = Rendered(None, array("I"), ("TemplateError", "no"))


def _ok(*ids: int, text: str = "") -> Rendered:
    return Rendered(text, array("I", ids))


def _entry(name: str, *renders: Rendered) -> SnapshotEntry:
    return SnapshotEntry(name, name, renders)


@pytest.fixture(scope="module", autouse=True)
def _place(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _FOLDER
    _FOLDER = tmp_path_factory.mktemp("snapshots")


def _snapshot(*entries: SnapshotEntry, **header: Any) -> SnapshotFile:
    clocks = ("a", "b") if any(len(entry.renders) == 2 for entry in entries) else ()
    path = _FOLDER / str(next(_COUNT))
    return saved(path, *entries, header=dataclasses.replace(HEADER, clocks=clocks, **header))


@given(_IDS, _IDS, _IDS, st.integers(1, 5))
def test_shared_tokens_and_blocks(common: list[int], old: list[int], new: list[int], size: int) -> None:
    old, new = common + old, common + new
    naive = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    comparison = compare_snapshots(_snapshot(_entry("a", _ok(*old))), _snapshot(_entry("a", _ok(*new))))
    (one,) = comparison.examined
    assert one.shared == naive
    assert one.equal == (old == new)
    assert one.first_difference == (None if old == new else naive)
    assert comparison.divergent == (() if old == new else (one,))
    blocks = shared_blocks(comparison, size)
    assert (blocks.old, blocks.shared) == (len(old) // size, naive // size)
    assert blocks.share == (None if len(old) < size else (naive // size) / (len(old) // size))


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_shared_text(common: str, old: str, new: str) -> None:
    comparison = compare_snapshots(
        _snapshot(_entry("a", _ok(1, text=common + old))), _snapshot(_entry("a", _ok(1, text=common + new)))
    )
    (one,) = comparison.examined
    old, new = common + old, common + new
    assert old[: one.shared_text] == new[: one.shared_text]
    assert old[one.shared_text : one.shared_text + 1] != new[one.shared_text : one.shared_text + 1] or old == new
    assert one.same_text == (old == new)


def test_a_million_tokens_that_differ_at_the_end() -> None:
    ids = array("I", range(1_000_000))
    other = array("I", ids)
    other[-1] = 0
    comparison = compare_snapshots(
        _snapshot(_entry("a", Rendered("", ids))), _snapshot(_entry("a", Rendered("", other)))
    )
    assert comparison.examined[0].shared == 999_999


def test_errors_are_not_examined_even_where_they_are_equal() -> None:
    other = Rendered(None, array("I"), ("TemplateError", "another"))
    comparison = compare_snapshots(
        _snapshot(
            _entry("same", _ERROR),
            _entry("differ", _ERROR),
            _entry("mended", _ERROR),
            _entry("broken", _ok(1)),
            _entry("fine", _ok(1)),
        ),
        _snapshot(
            _entry("same", _ERROR),
            _entry("differ", other),
            _entry("mended", _ok(1)),
            _entry("broken", _ERROR),
            _entry("fine", _ok(1)),
        ),
    )
    assert [one.id for one in comparison.examined] == ["fine"]
    assert [(one.id, one.same_error) for one in comparison.unexamined] == [
        ("same", True), ("differ", False), ("mended", False), ("broken", False),
    ]  # fmt: skip


def test_what_only_one_side_has_is_said() -> None:
    comparison = compare_snapshots(
        _snapshot(_entry("a", _ok(1)), _entry("b", _ok(1))),
        _snapshot(_entry("b", _ok(1)), _entry("c", _ok(1)), corpus_digest="sha256:2"),
    )
    assert (comparison.only_old, comparison.only_new) == (("a",), ("c",))
    assert [one.id for one in comparison.examined] == ["b"]
    assert not comparison.same_corpus


def test_one_id_with_two_contents_is_not_compared() -> None:
    comparison = compare_snapshots(_snapshot(_entry("a", _ok(1))), _snapshot(SnapshotEntry("a", "other", (_ok(1),))))
    assert comparison.examined == ()
    assert (comparison.only_old, comparison.only_new) == (("a",), ("a",))


def test_a_clock_on_one_side_is_held_against_both_dates() -> None:
    # Incident I17: a fixed date that happens to be the first of the two.
    fixed, clock = _snapshot(_entry("a", _ok(1, 2))), _snapshot(_entry("a", _ok(1, 2), _ok(1, 3)))
    for old, new in ((fixed, clock), (clock, fixed)):
        comparison = compare_snapshots(old, new)
        assert [(one.clock, one.equal) for one in comparison.examined] == [(0, True), (1, False)]
    assert not compare_snapshots(clock, clock).divergent


@pytest.mark.parametrize("change", [{"renderer": {"transformers": "4", "tokenizers": "0"}}, {"jinja2": "2"}])
def test_one_library_on_both_sides_is_noticed(change: dict[str, object]) -> None:
    snapshot = _snapshot(_entry("a", _ok(1)))
    assert compare_snapshots(snapshot, snapshot).same_renderer
    assert not compare_snapshots(snapshot, _snapshot(_entry("a", _ok(1)), **change)).same_renderer


@pytest.mark.parametrize("change", [{"options": {"add_generation_prompt": False}}, {"unapplied": ("x",)}])
def test_other_options_are_noticed(change: dict[str, object]) -> None:
    snapshot = _snapshot(_entry("a", _ok(1)))
    assert compare_snapshots(snapshot, snapshot).same_options
    assert not compare_snapshots(snapshot, _snapshot(_entry("a", _ok(1)), **change)).same_options


def test_a_block_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        shared_blocks(compare_snapshots(_snapshot(), _snapshot()), 0)
