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

from kvgate.corpora.snapshot import (
    Rendered,
    Snapshot,
    SnapshotEntry,
    read_snapshot,
    render_options,
    write_snapshot,
)
from kvgate.rules.errors import InputError, UsageError

_RENDERS = st.one_of(
    st.builds(
        Rendered,
        st.text(),
        st.lists(st.integers(0, 2**32 - 1), max_size=5).map(lambda ids: array("I", ids)),
    ),
    st.builds(Rendered, st.none(), st.just(array("I")), st.tuples(st.text(), st.text())),
)
_SNAPSHOTS = st.builds(
    Snapshot,
    corpus=st.text(),
    corpus_digest=st.text(),
    renderer=st.dictionaries(st.text(), st.text(), max_size=2),
    jinja2=st.text(),
    options=st.dictionaries(st.text(), st.booleans(), max_size=2),
    unapplied=st.lists(st.text(), max_size=2).map(tuple),
    template=st.none() | st.text(),
    tokenizer=st.none() | st.text(),
    entries=st.lists(
        st.builds(SnapshotEntry, st.text(), st.text(), st.lists(_RENDERS, min_size=1, max_size=2).map(tuple)),
        max_size=3,
        unique_by=lambda entry: entry.id,
    ).map(tuple),
)
_ONE = Snapshot("c@1", "sha256:1", {"transformers": "5"}, "3", {}, (), None, None, (
    SnapshotEntry("a", "i", (Rendered("x", array("I", [1, 2])),)),
))  # fmt: skip


@given(_SNAPSHOTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_comes_back(tmp_path: Path, snapshot: Snapshot) -> None:
    path = tmp_path / "tokens.jsonl"
    digest = write_snapshot(snapshot, path)
    assert digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert read_snapshot(path, digest) == snapshot
    assert write_snapshot(snapshot, path) == digest
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.jsonl"]


def test_another_digest_is_refused(tmp_path: Path) -> None:
    digest = write_snapshot(_ONE, tmp_path / "s")
    with pytest.raises(InputError, match="not the file that the manifest names"):
        read_snapshot(tmp_path / "s", digest[:-1] + ("0" if digest[-1] != "0" else "1"))


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_snapshot(tmp_path / "s", "sha256:0")
    with pytest.raises(InputError, match="cannot be written"):
        write_snapshot(_ONE, tmp_path / "missing" / "s")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_snapshot(_ONE, path)
    before = path.read_bytes()
    broken = Snapshot("c@1", "", {}, "", {"x": object()}, (), None, None, ())
    with pytest.raises(TypeError):
        write_snapshot(broken, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


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


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda lines: lines.clear(), "not valid JSON|middle of a line"),
        (lambda lines: lines.pop(), "its first line says 1"),
        (lambda lines: lines.append(lines[1]), "stands twice"),
        (_edit(0, schema="kvgate/snapshot/v2"), "no schema"),
        (_edit(0, more=1), "expected an object with"),
        (_edit(0, jinja2=...), "expected an object with"),
        (_edit(0, jinja2=3), "wrong type"),
        (_edit(0, corpus={"id": "x"}), "expected an object with"),
        (_edit(0, conversations="1"), "wrong type"),
        (_edit(0, renderer=[]), "wrong type"),
        (_edit(0, renderer={"transformers": 5}), "wrong type"),
        (_edit(0, unapplied=[1]), "wrong type"),
        (_edit(0, tokenizer=1), "wrong type"),
        (_edit(1, more=1), "expected an object with"),
        (_edit(1, id=1), "not an entry"),
        (_edit(1, renders=[]), "one or two renderings, not 0"),
        (_render(state="fine"), "no state"),
        (_render(state="ok", text="x"), "expected an object with"),
        (_render(state="ok", text=1, ids=[]), "wrong type"),
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
    write_snapshot(_ONE, path)
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
    write_snapshot(_ONE, path)
    _refused(path, path.read_bytes()[:-1], "middle of a line")


def _refused(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_snapshot(path, f"sha256:{hashlib.sha256(content).hexdigest()}")
    assert str(caught.value.where).startswith(str(path))


def test_options() -> None:
    applied, unapplied = render_options({"content_format": "auto", "add_generation_prompt": False})
    assert applied == {
        "add_generation_prompt": False,
        "add_special_tokens": True,
        "parse_tool_arguments": True,
        "template_kwargs": {},
    }
    assert unapplied == ("content_format",)
    with pytest.raises(UsageError, match="'template_kwargs' must be an object"):
        render_options({"template_kwargs": []})
