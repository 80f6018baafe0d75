"""Captured manifests are written whole or not at all, in YAML that every reader reads alike."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.snapshots.snapshot import open_snapshot
from kvgate.deployments.capture import Captured, capture
from kvgate.deployments.write import dump, require_writable, write
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError
from kvgate.weights.tensor_map import read_map

from .conftest import MakeCheckpoint

TRICKY = [
    "010",
    "1e5",
    "0x1f",
    "0o17",
    "1_000",
    "1:30",
    "yes",
    "No",
    "y",
    "n",
    "null",
    "~",
    "",
    "true",
    "2026-11-29",
    ".inf",
    "1.0",
    "-",
    "a: b",
    "# c",
    "@x",
    "a #b",
    "line\nbreak",
    " lead",
    "tab\t",
    "sha256:00",
    "=",
    "<<",
    "e1",
    "\u2028",
    "ü",
]
TEXTS = st.sampled_from(TRICKY) | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"), max_size=20
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_every_reader_reads_what_was_written(value: dict[str, Any]) -> None:
    text = dump(value)
    assert yaml.safe_load(text) == value  # YAML 1.1
    assert parse_document(text.encode(), "x")[0] == value  # kvgate's own, YAML 1.2


def test_keys_keep_their_order() -> None:
    assert dump({"b": 1, "a": {"d": None, "c": []}}) == "b: 1\na:\n  d: null\n  c: []\n"


@pytest.fixture
def captured(make_checkpoint: MakeCheckpoint, quick: None, tmp_path_factory: pytest.TempPathFactory) -> Captured:  # noqa: ARG001
    return capture(str(make_checkpoint()), snapshot_to=tmp_path_factory.mktemp("taken") / "snapshot")


def test_a_folder_gets_the_manifest_and_its_sidecars(captured: Captured, tmp_path: Path) -> None:
    path = write(captured, tmp_path / "deep" / "release")
    assert sorted(file.name for file in path.parent.iterdir()) == ["manifest.yaml", "tokens.jsonl", "weights.jsonl"]
    manifest = yaml.safe_load(path.read_text())
    tensor_map = manifest["weights"]["checkpoint"]["map"]
    assert captured.weights is not None
    assert read_map(path.parent / tensor_map["file"], tensor_map["sha256"]).digest == captured.weights.digest
    snapshot = manifest["tokenizer"]["snapshot"]
    assert captured.tokens is not None
    copied = open_snapshot(path.parent / snapshot["file"], snapshot["sha256"])
    assert list(copied.entries()) == list(captured.tokens.entries())
    assert "map" not in captured.manifest["weights"]["checkpoint"]  # what was captured is not changed
    assert write(captured, path.parent) == path  # again, over what is there


def test_a_failure_leaves_what_was_there(captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(captured, tmp_path / "m.yaml")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}

    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvgate.deployments.write.dump", fail)
    with pytest.raises(InputError, match="No space left"):
        write(captured, path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".kvgate")]


def test_a_place_that_cannot_be_written_gives_one_clear_error(captured: Captured, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write(captured, tmp_path / "file" / "m.yaml")
    with pytest.raises(InputError, match="cannot be written"):
        write(captured, tmp_path / "file")


@pytest.mark.parametrize("last", ["manifest.yaml", "tokens.jsonl"])
def test_interrupted_between_its_files_it_leaves_the_old_ones(
    last: str, captured: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest beside the sidecars of another capture is of no use to anybody."""
    old, fresh = tmp_path / "old", tmp_path / "fresh"
    write(captured, old)
    for file in old.iterdir():
        file.write_text(f"what was there, {file.name}")
    before = {file.name: file.read_text() for file in old.iterdir()}
    move = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if path.name == last and ".kvgate-" in path.parent.name:
            raise KeyboardInterrupt
        return move(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    for folder in (old, fresh):
        with pytest.raises(KeyboardInterrupt):
            write(captured, folder)
    assert {file.name: file.read_text() for file in old.iterdir()} == before
    assert not list(fresh.iterdir())


def test_two_captures_at_once_leave_one_of_them_whole(captured: Captured, tmp_path: Path) -> None:
    """Each puts its files while nobody else does: no manifest with the sidecars of the other."""
    other = replace(captured, manifest={**captured.manifest, "release": {"version": "2"}})
    other = replace(other, weights=replace(other.weights, entries=other.weights.entries[:1]))  # type: ignore[type-var, union-attr]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            list(pool.map(lambda one: write(one, tmp_path / "out"), (captured, other)))
            manifest = yaml.safe_load((tmp_path / "out" / "manifest.yaml").read_text())
            data = (tmp_path / "out" / "weights.jsonl").read_bytes()
            assert manifest["weights"]["checkpoint"]["map"]["sha256"] == f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize("name", ["m.yaml", "out", "deep/er/out"])
def test_whether_a_place_can_be_written_is_known_before(name: str, tmp_path: Path) -> None:
    require_writable(tmp_path / name)
    assert not list(tmp_path.iterdir())
    (tmp_path / name.partition("/")[0]).write_text("")
    if name != "m.yaml":
        with pytest.raises(InputError, match="cannot be written"):
            require_writable(tmp_path / name)
    (tmp_path / "taken" / "manifest.yaml").mkdir(parents=True)
    with pytest.raises(InputError, match="is a folder, and"):
        require_writable(tmp_path / "taken")
    with pytest.raises(InputError, match="a manifest is a YAML file"):
        require_writable(tmp_path / "m.txt")
    (tmp_path / "m.txt").mkdir()
    require_writable(tmp_path / "m.txt")


@pytest.mark.parametrize("name", ["manifest.yaml", "weights.jsonl", "tokens.jsonl"])
def test_a_file_that_no_capture_wrote_is_not_overwritten(name: str, captured: Captured, tmp_path: Path) -> None:
    write(captured, tmp_path)
    require_writable(tmp_path)
    (tmp_path / name).write_text("kind: Deployment\n")
    with pytest.raises(InputError, match="no capture wrote it") as caught:
        require_writable(tmp_path)
    assert caught.value.where == str(tmp_path / name)
