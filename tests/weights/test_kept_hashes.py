"""Hashes kept from an earlier run: unchanged files are not read, and what is kept cannot claim what does not follow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvgate.rules.errors import InputError
from kvgate.weights import kept_hashes
from kvgate.weights.digest import hash_tensor, root_digest
from kvgate.weights.fingerprint import CheckpointFingerprint, fingerprint_checkpoint
from kvgate.weights.kept_hashes import SCHEMA, KeptHashes

from .builders import Tensor, Tensors, write_shards

NAMES = ["a", 'b"\\é\u2028', "c"]
TENSORS: Tensors = {name: Tensor("U8", (4,), f"{number}abc".encode()) for number, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards that count as written long ago."""
    monkeypatch.setattr(kept_hashes, "_SETTLED_NS", -(10**12))
    return write_shards(tmp_path / "m", TENSORS, [NAMES[:2], NAMES[2:]])


def _run(folder: Path, cache: Path) -> tuple[CheckpointFingerprint, int]:
    """Return the fingerprint and how many bytes were read for it."""
    read = [0]

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:  # noqa: ARG001
        read.append(done)

    return fingerprint_checkpoint(folder, None, progress, kept=KeptHashes(cache)), max(read)


def test_unchanged_files_are_not_read_again(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    plain = fingerprint_checkpoint(folder, None)
    first, read = _run(folder, cache)
    assert (first, read, first.kept) == (plain, 12, 0)
    second, read = _run(folder, cache)
    assert (second.entries, second.digest, read, second.kept) == (plain.entries, plain.digest, 0, 2)
    assert cache.stat().st_mode & 0o777 == 0o600


def test_of_what_changed_only_that_is_read(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    last = folder / "model-00002-of-00002.safetensors"
    data, status = last.read_bytes(), last.stat()
    last.write_bytes(data[:-1] + b"!")
    os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns))  # what a program can set does not hide the change
    found, read = _run(folder, cache)
    assert (found.kept, read) == (1, 4)
    assert found == replace(fingerprint_checkpoint(folder, None), kept=1)
    assert _run(folder, cache)[1] == 0


@pytest.mark.parametrize("change", ["replaced", "touched", "linked elsewhere"])
def test_another_file_of_the_same_bytes_is_read(change: str, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    file = folder / "model-00001-of-00002.safetensors"
    if change == "replaced":
        (tmp_path / "new").write_bytes(file.read_bytes())
        (tmp_path / "new").rename(file)
    elif change == "touched":
        os.utime(file, ns=(1, 1))
    else:
        (tmp_path / "new").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "new")
    assert _run(folder, cache)[1] == 8


def test_a_file_that_changed_just_now_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_hashes, "_SETTLED_NS", 3600 * 10**9)
    cache = tmp_path / "hashes"
    assert _run(folder, cache)[1] == 12
    assert _run(folder, cache)[1] == 12
    assert not cache.exists()


def test_an_interrupted_run_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hashes"
    keep = KeptHashes.keep

    def interrupted(self: KeptHashes, *arguments: object) -> None:
        keep(self, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(KeptHashes, "keep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _run(folder, cache)
    monkeypatch.undo()
    found, read = _run(folder, cache)
    assert (found.kept, read) == (1, 4)


def test_a_file_that_changes_after_it_was_found_kept_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    entries = KeptHashes.entries

    def change(self: KeptHashes, file: object) -> object:
        found = entries(self, file)  # type: ignore[arg-type]
        (folder / "model-00001-of-00002.safetensors").touch()
        return found

    monkeypatch.setattr(KeptHashes, "entries", change)
    with pytest.raises(InputError, match="changed while it was read"):
        _run(folder, cache)


def _lines(cache: Path) -> list[str]:
    return cache.read_text().splitlines()


def _swapped(lines: list[str]) -> list[str]:
    return [line.replace('["a"', '["?"') for line in lines]


DAMAGE: dict[str, Callable[[list[str]], list[str]]] = {
    "empty": lambda _: [],
    "another version": lambda lines: [lines[0].replace("/v1", "/v2"), *lines[1:]],
    "another count": lambda lines: [lines[0].replace('"files":2', '"files":3'), *lines[1:]],
    "cut": lambda lines: lines[:-1],
    "a file twice": lambda lines: lines[:4] + lines[1:4],
    "another content": lambda lines: [
        line if not line.startswith('["a"') else f'["a","blake3:{"0" * 64}"]' for line in lines
    ],
    "another name": _swapped,
    "a name twice": lambda lines: [
        line.replace('["b', '["a').replace('["a\\"\\\\\\u00e9\\u2028', '["a') for line in lines
    ],
    "another root": lambda lines: [
        line if '"root"' not in line else line[: line.index("blake3:")] + f'blake3:{"1" * 64}"}}' for line in lines
    ],
    "a broken name": lambda lines: [line.replace('["a"', '["\\x"') for line in lines],
    "a stamp that is none": lambda lines: [line.replace('"stamp":[', '"stamp":[[') for line in lines],
    "nesting": lambda _: ["[" * 100_000],
    "a manifest": lambda _: ["schema: kvgate/manifest/v1"],
    "bytes": lambda _: ["\udcff" * 100],
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_or_forged_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    lines = DAMAGE[case](_lines(cache))
    assert lines != _lines(cache)
    cache.write_bytes("".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
    before = cache.read_bytes()
    with pytest.raises(InputError) as caught:
        _run(folder, cache)
    assert str(caught.value.where).startswith(str(cache))
    assert caught.value.hint is not None
    assert cache.read_bytes() == before, "a file that is none of ours is never written over"


def test_types_and_shapes_come_from_the_file(folder: Path, tmp_path: Path) -> None:
    """A whole forgery has to be a consistent one: type and shape that are not the file's cannot be kept."""
    cache = tmp_path / "hashes"
    _run(folder, cache)
    entries = [hash_tensor(name, "I8", TENSORS[name].shape, TENSORS[name].data) for name in NAMES[:2]]
    right = root_digest(hash_tensor(name, *TENSORS[name]) for name in NAMES[:2])
    text = cache.read_text()
    assert right in text
    cache.write_text(text.replace(right, root_digest(entries)))
    with pytest.raises(InputError, match="contradicts itself or the file"):
        _run(folder, cache)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_refused(mode: int, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    cache.chmod(mode)
    with pytest.raises(InputError, match="others may write it"):
        _run(folder, cache)


def test_the_form_is_documented(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    header, file, *tensors = map(json.loads, _lines(cache))
    assert header == {"schema": SCHEMA, "files": 2}
    assert file["file"] == str(folder / "model-00001-of-00002.safetensors")
    assert tensors[:2] == [[name, hash_tensor(name, *TENSORS[name]).content] for name in NAMES[:2]]


def _files(cache: Path) -> list[str]:
    lines = map(json.loads, cache.read_text().splitlines())
    return [Path(line["file"]).parent.name for line in lines if isinstance(line, dict) and "file" in line]


def _folder(folder: Path, name: str) -> Path:
    return write_shards(folder.parent / name, TENSORS, [NAMES])


def test_runs_that_share_a_file_keep_what_the_others_wrote(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    other = _folder(folder, "n")
    first, second = KeptHashes(cache), KeptHashes(cache)  # both begin before either writes
    fingerprint_checkpoint(folder, None, kept=first)
    fingerprint_checkpoint(other, None, kept=second)
    assert sorted(_files(cache)) == ["m", "m", "n"]
    assert [_run(each, cache)[1] for each in (folder, other)] == [0, 0]


def test_what_another_run_wrote_is_read_as_carefully(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    kept = KeptHashes(cache)
    cache.write_text("{}\n")
    cache.chmod(0o600)
    with pytest.raises(InputError, match="not a sound kvgate/kept-hashes"):
        fingerprint_checkpoint(folder, None, kept=kept)


def test_files_that_are_gone_or_changed_are_dropped(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    gone, changed = _folder(folder, "gone"), _folder(folder, "changed")
    for each in (gone, changed, folder):
        _run(each, cache)
    assert _files(cache) == ["gone", "changed", "m", "m"]
    (gone / "model-00001-of-00001.safetensors").unlink()
    os.utime(changed / "model-00001-of-00001.safetensors", ns=(1, 1))
    _run(_folder(folder, "new"), cache)
    assert _files(cache) == ["m", "m", "new"]


def test_no_more_is_written_than_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "hashes"
    _run(folder, cache)
    monkeypatch.setattr(kept_hashes, "MAX_BYTES", cache.stat().st_size + 100)
    for name in ("a", "b"):
        _run(_folder(folder, name), cache)
        assert cache.stat().st_size <= kept_hashes.MAX_BYTES
    assert _files(cache)[-1] == "b"
    assert _files(cache).count("m") < 2, "the oldest went"
    monkeypatch.setattr(kept_hashes, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="at most 10 are read") as caught:
        KeptHashes(cache)
    assert "delete it" in str(caught.value.hint)


def test_a_program_that_is_the_file_system_can_set_every_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hashes"
    monkeypatch.setattr(kept_hashes, "_devices_of_programs", lambda: frozenset({folder.stat().st_dev}))
    assert [_run(folder, cache)[1] for _ in range(2)] == [12, 12]
    assert not cache.exists()


def test_file_systems_of_programs_are_known_by_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "23 22 0:45 / /mnt/hub rw,nosuid - fuse.rclone remote: rw,user_id=0\n"
        "24 22 0:46 / /mnt/fuse rw,nosuid shared:2 master:1 - tmpfs fuse rw\n"
        "25 22 8:17 / /mnt/disk rw - fuseblk /dev/sdb1 rw\n"
    )
    monkeypatch.setattr(kept_hashes, "_MOUNTS", mounts)
    assert kept_hashes._devices_of_programs.__wrapped__() == {os.makedev(0, 45), os.makedev(8, 17)}
    monkeypatch.setattr(kept_hashes, "_MOUNTS", tmp_path / "elsewhere")
    assert kept_hashes._devices_of_programs.__wrapped__() == set()
