"""Snapshots on disk: what is written comes back, and nothing else is taken for one."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.corpora.snapshots.snapshot import (
    Rendered,
    SnapshotEntry,
    SnapshotHeader,
    SnapshotWriter,
    open_snapshot,
    redacted,
    text_digest,
)
from kvgate.rules.errors import InputError

from .conftest import HEADER, saved

_RENDERS = st.one_of(
    st.builds(
        Rendered,
        st.none() | st.text(),
        st.lists(st.integers(0, 2**32 - 1), max_size=5).map(lambda ids: array("I", ids)),
        st.none(),
        st.none() | st.text(),
    ),
    st.builds(Rendered, st.none(), st.just(array("I")), st.tuples(st.text(), st.text())),
)
_RECORDS = st.none() | st.lists(st.dictionaries(st.text(), st.integers(), max_size=2), max_size=2).map(tuple)
_HEADERS = st.builds(
    SnapshotHeader,
    corpus=st.text(),
    corpus_digest=st.text(),
    renderer=st.dictionaries(st.text(), st.text(), max_size=2),
    jinja2=st.none() | st.text(),
    made=st.sampled_from(["here", "script", "endpoint"]),
    options=st.dictionaries(st.text(), st.booleans(), max_size=2),
    unapplied=st.lists(st.text(), max_size=2).map(tuple),
    template=st.none() | st.text(),
    tokenizer=st.none() | st.text(),
    clocks=st.lists(st.text(), max_size=2).map(tuple),
    redacted=st.booleans(),
)
_COVERAGE = st.none() | st.dictionaries(st.text(), st.integers(), max_size=2)
_PIECES = st.dictionaries(st.integers(0, 2**32), st.text(), max_size=3)
_ONE = SnapshotEntry("a", "i", (Rendered("x", array("I", [1, 2])),))


@given(st.data(), _HEADERS, _COVERAGE, _PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_comes_back(
    tmp_path: Path, data: st.DataObject, header: SnapshotHeader, coverage: dict[str, int] | None, pieces: dict[int, str]
) -> None:
    number = max(1, len(header.clocks))
    renders = st.lists(_RENDERS, min_size=number, max_size=number).map(tuple)
    entry = st.builds(SnapshotEntry, st.text(), st.text(), renders, _RECORDS, _RECORDS)
    entries = data.draw(st.lists(entry, max_size=3, unique_by=lambda entry: entry.id))
    path = tmp_path / "tokens.jsonl"
    with SnapshotWriter(path, header) as writer:
        for one in entries:
            writer.entry(one)
        written = writer.finish(coverage, pieces)
    assert written.sha256 == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    read = open_snapshot(path, written.sha256)
    assert read == written
    assert (read.header, read.footer.coverage, read.footer.pieces) == (header, coverage, pieces)
    assert (list(read.entries()), read.footer.conversations) == (entries, len(entries))
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.jsonl"]


def test_a_long_last_line_is_found(tmp_path: Path) -> None:
    pieces = dict.fromkeys(range(100000), "x" * 20)
    with SnapshotWriter(tmp_path / "s", HEADER) as writer:
        writer.entry(_ONE)
        written = writer.finish(None, pieces)
    assert written.footer.pieces == pieces
    assert list(written.entries()) == [_ONE]


def test_another_digest_is_refused(tmp_path: Path) -> None:
    digest = saved(tmp_path / "s", _ONE).sha256
    with pytest.raises(InputError, match="not the file that the manifest names"):
        open_snapshot(tmp_path / "s", digest[:-1] + ("0" if digest[-1] != "0" else "1"))


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_snapshot(tmp_path / "s", None)
    with pytest.raises(InputError, match="cannot be written"):
        saved(tmp_path / "missing" / "s", _ONE)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    saved(path, _ONE)
    before = path.read_bytes()

    def write_half() -> None:
        with SnapshotWriter(path, HEADER) as writer:
            writer.entry(_ONE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_file_that_changes_while_it_is_open_is_refused(tmp_path: Path) -> None:
    opened = saved(tmp_path / "s", _ONE)
    saved(tmp_path / "s", _ONE)
    with pytest.raises(InputError, match="was changed since it was opened"):
        list(opened.entries())


def test_left_out_text_is_compared_by_its_digest() -> None:
    one, other = (Rendered(text, array("I", [1])) for text in ("secret", "other"))
    hidden = redacted(one)
    assert hidden.text is None
    assert "secret" not in repr(hidden)
    assert hidden.ids == one.ids
    assert hidden.digest == text_digest("secret")
    assert hidden.same_text(one) is one.same_text(hidden) is hidden.same_text(hidden) is True
    assert hidden.same_text(other) is other.same_text(hidden) is False
    assert hidden.same_text(Rendered(None, one.ids)) is None
    assert redacted(hidden) == hidden


def test_errors_may_quote_the_prompt() -> None:
    first, again, other = (
        redacted(Rendered(None, array("I"), ("ValueError", f"cannot render {word}"))) for word in ("x", "x", "y")
    )
    assert first.error is not None
    assert first.error[0] == "ValueError"
    assert "cannot render" not in first.error[1]
    assert first == again != other


def _edit(at: int, **change: Any) -> Any:
    def edit(lines: list[dict[str, Any]]) -> None:
        for key, value in change.items():
            if value is ...:
                del lines[at][key]
            else:
                lines[at][key] = value

    return edit


def _render(**fields: Any) -> Any:
    return _edit(1, renders=[fields])


def _pieces(**pieces: Any) -> Any:
    return _edit(-1, pieces=pieces)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda lines: lines.clear(), "not valid JSON|middle of a line"),
        (lambda lines: lines.pop(), "cut short"),
        (lambda lines: lines.pop(1), "fewer conversations|not an entry|expected an object"),
        (lambda lines: lines.insert(1, lines[1]), "more conversations than its last line says"),
        (lambda lines: lines.append(lines[1]), "cut short"),
        (lambda lines: (lines.insert(1, lines[1]), lines[-1].update(conversations=2)), "stands twice"),
        (_edit(0, schema="kvgate/snapshot/v2"), "no schema"),
        (_edit(0, more=1), "expected an object with"),
        (_edit(0, jinja2=...), "expected an object with"),
        (_edit(0, jinja2=3), "wrong type"),
        (_edit(0, corpus={"id": "x"}), "expected an object with"),
        (_edit(0, made="there"), "wrong type"),
        (_edit(0, clocks=["a", "b", "c"]), "wrong type"),
        (_edit(0, clocks=["a", "b"]), "must have 2 renderings here, not 1"),
        (_edit(0, redacted=False), "wrong type"),
        (_edit(-1, conversations="1"), "wrong type"),
        (_edit(-1, conversations=True), "wrong type"),
        (_edit(-1, conversations=-1), "wrong type"),
        (_edit(-1, coverage=[]), "wrong type"),
        (_pieces(x="y"), "wrong type"),
        (_pieces(**{"1": 1}), "wrong type"),
        (_edit(-1, more=1), "expected an object with"),
        (_edit(-1, end=False), "cut short"),
        (_edit(0, renderer=[]), "wrong type"),
        (_edit(0, renderer={"transformers": 5}), "wrong type"),
        (_edit(0, unapplied=[1]), "wrong type"),
        (_edit(0, tokenizer=1), "wrong type"),
        (_edit(1, more=1), "expected an object with"),
        (_edit(1, id=1), "not an entry"),
        (_edit(1, renders=[]), "must have 1 renderings here, not 0"),
        (_edit(1, turns=[1]), "must be a list of objects"),
        (_edit(1, generated={}), "must be a list of objects"),
        (_render(state="fine"), "no state"),
        (_render(state="ok", text="x"), "expected an object with"),
        (_render(state="ok", text=1, ids=[]), "wrong type"),
        (_render(state="ok", text=None, digest=1, ids=[]), "wrong type"),
        (_render(state="ok", text="x", ids=[-1]), "not a number between"),
        (_render(state="ok", text="x", ids=[2**32]), "not a number between"),
        (_render(state="ok", text="x", ids=["1"]), "not a number between"),
        (_render(state="ok", text="x", ids=[1.5]), "not a number between"),
        (_render(state="render-error", error=None), "expected an object with"),
        (_render(state="render-error", error={"class": 1, "message": ""}), "wrong type"),
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path: Path, edit: Any, says: str) -> None:
    path = tmp_path / "s"
    saved(path, _ONE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    _refused(path, "".join(json.dumps(line) + "\n" for line in lines).encode(), says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "middle of a line"),
        (b"\x80\x04\x95\n", "more than ASCII"),
        (b"null\n", "no schema"),
        (b"{\n", "not valid JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    _refused(tmp_path / "s", content, says)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    saved(path, _ONE)
    _refused(path, path.read_bytes()[:-1], "middle of a line")


def _refused(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        list(open_snapshot(path, f"sha256:{hashlib.sha256(content).hexdigest()}").entries())
    assert str(caught.value.where).startswith(str(path))
