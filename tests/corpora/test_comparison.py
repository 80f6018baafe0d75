"""Comparing snapshots: what is shared, what diverges, and what was not examined."""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.divergence import pairing
from kvgate.corpora.divergence.holding import Holding, SideHolding
from kvgate.corpora.divergence.tally import Tally
from kvgate.corpora.snapshots.comparison import Redefined, SharedBlocks, compare_snapshots
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotFile
from kvgate.rules.errors import InputError

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


def _snapshot(*entries: SnapshotEntry, pieces: Mapping[int, str] | None = None, **header: Any) -> SnapshotFile:
    clocks = ("a", "b") if any(len(entry.renders) == 2 for entry in entries) else ()
    path = _FOLDER / str(next(_COUNT))
    return saved(path, *entries, header=dataclasses.replace(HEADER, clocks=clocks, **header), pieces=pieces or {})


@given(_IDS, _IDS, _IDS, st.integers(1, 5))
def test_shared_tokens_and_blocks(common: list[int], old: list[int], new: list[int], size: int) -> None:
    old, new = common + old, common + new
    naive = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    found = compare_snapshots(_snapshot(_entry("a", _ok(*old))), _snapshot(_entry("a", _ok(*new))), block_size=size)
    assert (found.examined, found.divergent) == (1, int(old != new))
    assert [(one.token, one.old_tokens, one.new_tokens) for one in found.divergences.first] == (
        [] if old == new else [(naive, len(old), len(new))]
    )
    assert found.blocks == SharedBlocks(size, len(old) // size, naive // size)
    assert found.blocks.share == (None if len(old) < size else (naive // size) / (len(old) // size))


def test_a_million_tokens_that_differ_at_the_end() -> None:
    ids = array("I", range(1_000_000))
    other = array("I", ids)
    other[-1] = 0
    found = compare_snapshots(_snapshot(_entry("a", Rendered("", ids))), _snapshot(_entry("a", Rendered("", other))))
    assert found.divergences.first[0].token == 999_999


def test_errors_are_not_examined_even_where_they_are_equal() -> None:
    other = Rendered(None, array("I"), ("TemplateError", "another"))
    found = compare_snapshots(
        _snapshot(
            _entry("same", _ERROR),
            _entry("differ", _ERROR),
            _entry("mended", _ERROR),
            _entry("broken", _ok(1)),
            _entry("fine", _ok(1)),
            _entry("same-too", _ERROR),
        ),
        _snapshot(
            _entry("same", _ERROR),
            _entry("differ", other),
            _entry("mended", _ok(1)),
            _entry("broken", _ERROR),
            _entry("fine", _ok(1)),
            _entry("same-too", _ERROR),
        ),
    )
    assert found.examined == 1
    assert [(one.id, one.same_error) for one in found.unexamined.first] == [
        ("same", True), ("differ", False), ("mended", False), ("broken", False), ("same-too", True),
    ]  # fmt: skip
    assert [(group.count, group.names) for group in found.failures] == [
        (2, ("same", "same-too")), (1, ("differ",)), (1, ("mended",)), (1, ("broken",)),
    ]  # fmt: skip
    assert not found.complete


def test_what_only_one_side_has_is_said() -> None:
    found = compare_snapshots(
        _snapshot(_entry("a", _ok(1)), _entry("b", _ok(1))),
        _snapshot(_entry("b", _ok(1)), _entry("c", _ok(1)), corpus_digest="sha256:2"),
    )
    assert (found.only_old.first, found.only_new.first, found.examined) == (("a",), ("c",), 1)
    assert not found.same_corpus
    assert not found.complete


def test_one_id_with_two_contents_is_not_compared() -> None:
    found = compare_snapshots(_snapshot(_entry("a", _ok(1))), _snapshot(SnapshotEntry("a", "other", (_ok(1),))))
    assert found.examined == 0
    assert (found.only_old.first, found.only_new.first) == (("a",), ("a",))


@given(st.permutations(range(8)), st.permutations(range(8)), st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_the_order_of_conversations_does_not_matter(
    old: list[int], new: list[int], not_old: set[int], not_new: set[int]
) -> None:
    left, right = ([one for one in order if one not in out] for order, out in ((old, not_old), (new, not_new)))
    found = compare_snapshots(
        _snapshot(*(_entry(str(one), _ok(one)) for one in left)),
        _snapshot(*(_entry(str(one), _ok(one)) for one in right)),
    )
    assert (found.examined, found.divergent) == (len({*left} & {*right}), 0)
    assert {*found.only_old.first} == {str(one) for one in {*left} - {*right}}
    assert {*found.only_new.first} == {str(one) for one in {*right} - {*left}}


def test_what_waits_for_its_other_side_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_WAITING", 10)
    entries = [_entry(str(one), _ok(one, text="four")) for one in range(4)]
    assert compare_snapshots(_snapshot(*entries), _snapshot(*entries)).examined == 4
    with pytest.raises(InputError, match="in another order"):
        compare_snapshots(_snapshot(*entries), _snapshot(*reversed(entries)))


def test_a_clock_on_one_side_is_held_against_both_dates() -> None:
    # Incident I17: a fixed date that happens to be the first of the two.
    fixed = _snapshot(_entry("a", _ok(1, 2, text="x 1")))
    clock = _snapshot(_entry("a", _ok(1, 2, text="x 1"), _ok(1, 3, text="x 2")))
    for old, new in ((fixed, clock), (clock, fixed)):
        found = compare_snapshots(old, new)
        (one,) = found.divergences.first
        assert (found.examined, one.date, one.cause.kind) == (2, 1, "clock")
    assert not compare_snapshots(clock, clock).divergent


@pytest.mark.parametrize("change", [{"renderer": {"transformers": "4", "tokenizers": "0"}}, {"jinja2": "2"}])
def test_one_library_on_both_sides_is_noticed(change: dict[str, Any]) -> None:
    snapshot = _snapshot(_entry("a", _ok(1)))
    assert compare_snapshots(snapshot, snapshot).same_renderer
    assert not compare_snapshots(snapshot, _snapshot(_entry("a", _ok(1)), **change)).same_renderer


@pytest.mark.parametrize("change", [{"options": {"add_generation_prompt": False}}, {"unapplied": ("x",)}])
def test_other_options_are_noticed(change: dict[str, Any]) -> None:
    snapshot = _snapshot(_entry("a", _ok(1)))
    assert compare_snapshots(snapshot, snapshot).same_options
    assert not compare_snapshots(snapshot, _snapshot(_entry("a", _ok(1)), **change)).same_options


def test_ids_that_differ_although_all_that_makes_them_is_equal_are_drift() -> None:
    known: dict[str, Any] = {"template": "t", "tokenizer": "k"}
    old, new = _snapshot(_entry("a", _ok(1)), **known), _snapshot(_entry("a", _ok(2)), **known)
    assert compare_snapshots(old, new).drifted
    assert not compare_snapshots(old, old).drifted
    for change in ({"tokenizer": None}, {"tokenizer": "other"}, {"template": "other"}, {"options": {"x": 1}}):
        assert not compare_snapshots(old, _snapshot(_entry("a", _ok(2)), **{**known, **change})).drifted


def test_an_id_that_means_another_string_is_found() -> None:
    old = _snapshot(_entry("a", _ok(1, 2)), pieces={1: "x", 2: "y", 3: "z"})
    new = _snapshot(_entry("a", _ok(1, 2)), pieces={1: "x", 2: "w", 4: "z"})
    found = compare_snapshots(old, new)
    assert (found.divergent, found.redefined.first) == (0, (Redefined(2, "y", "w"),))


def test_every_divergence_counts_and_the_first_are_kept() -> None:
    names = [f"c{number}" for number in range(1200)]
    old = _snapshot(*(_entry(name, _ok(1, 2)) for name in names))
    new = _snapshot(*(_entry(name, _ok(1, 3)) for name in names))
    found = compare_snapshots(old, new, block_size=1)
    assert (found.divergent, len(found.divergences.first)) == (1200, 1000)
    assert [(group.count, group.example.id, len(group.names)) for group in found.kinds] == [(1200, "c0", 20)]
    assert found.blocks == SharedBlocks(1, 2400, 1200)


def test_turns_and_answers_are_summed_side_by_side() -> None:
    def recorded(name: str, turns: list[int], answers: list[int]) -> SnapshotEntry:
        return dataclasses.replace(
            _entry(name, _ok(1)),
            turns=tuple({"end": 1, "prompt": True, "tokens": 9, "shared": shared} for shared in turns),
            generated=tuple({"message": 1, "tokens": 9, "place": 0, "shared": shared} for shared in answers),
        )

    old = _snapshot(recorded("mended", [8, 9], [9]), recorded("broken", [9], [9]), recorded("bad", [0], [0]))
    new = _snapshot(recorded("mended", [9, 9], [9]), recorded("broken", [0], [1]), recorded("bad", [1], [2]))
    found = compare_snapshots(old, new)
    assert found.turns == Holding(
        SideHolding(4, 2, 0),
        SideHolding(4, 2, 0),
        Tally(1, ("broken",)), Tally(1, ("mended",)), Tally(1, ("bad",)),
    )  # fmt: skip
    assert found.answers is not None
    assert (found.answers.old.held, found.answers.new.held, found.answers.broken.first) == (2, 1, ("broken",))
    plain = _snapshot(_entry("mended", _ok(1)))
    assert compare_snapshots(plain, plain).turns is None
    malformed = _snapshot(dataclasses.replace(_entry("a", _ok(1)), turns=({"end": 1},)))
    with pytest.raises(InputError, match="a turn has"):
        compare_snapshots(malformed, malformed)


def test_a_block_holds_something() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        compare_snapshots(_snapshot(), _snapshot(), block_size=0)
