"""Pickle as what it is without running code: files of bytes, in digests that are no tensors'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.rules.errors import InputError
from kvgate.weights.digest import hash_tensor
from kvgate.weights.fingerprint import CheckpointFingerprint, fingerprint_checkpoint
from kvgate.weights.tensor_map import read_map, write_map

from .builders import Tensor, write

FILES = {"pytorch_model-00001.bin": b"cos\nsystem\n(S'exit 1'\ntR.", "b.pt": b"", "c.pth": b"1", "d.ckpt": b"2"}
INDEX = "pytorch_model.bin.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "README.md").write_text("words")
    return tmp_path


def _opaque(folder: Path) -> CheckpointFingerprint:
    return fingerprint_checkpoint(folder, {"model_type": "llama"}, opaque_pickle=True)


def test_files_are_hashed_as_they_are_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only pickle weights here") as caught:
        fingerprint_checkpoint(folder, None)
    assert "--opaque-pickle" in str(caught.value.hint)
    found = _opaque(folder)
    expected = [hash_tensor(name, "OPAQUE", (len(data),), data) for name, data in FILES.items()]
    assert found.entries == tuple(sorted(expected))
    assert (found.kv_rule, found.kv_digest, found.bytes) == ("opaque", found.digest, sum(map(len, FILES.values())))
    sha256 = write_map(found, tmp_path / "map.jsonl")
    assert read_map(tmp_path / "map.jsonl", sha256).digest == found.digest


@pytest.mark.parametrize("name", [*FILES, "new.bin"])
def test_every_file_and_name_counts(name: str, folder: Path) -> None:
    before = _opaque(folder).digest
    (folder / name).write_bytes(FILES.get(name, b"") + b"!")
    changed = _opaque(folder).digest
    (folder / name).rename(folder / f"x-{name}")
    assert len({before, changed, _opaque(folder).digest}) == 3


def test_no_set_of_tensors_has_the_digest_of_opaque_files(folder: Path, tmp_path: Path) -> None:
    tensors = {name: Tensor("U8", (len(data),), data) for name, data in FILES.items()}
    assert fingerprint_checkpoint(write(tmp_path / "s", tensors), None).digest != _opaque(folder).digest


def test_the_index_is_one_of_the_files(folder: Path) -> None:
    before = _opaque(folder).digest
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "b.pt"}}))
    assert _opaque(folder).digest != before
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": "sub/b.pt"}}))
    with pytest.raises(InputError, match=r"names 'sub/b\.pt', which is not here"):
        _opaque(folder)


def test_what_loaders_would_take_instead_is_not_passed_over(folder: Path) -> None:
    write(folder, {"w": Tensor("U8", (1,), b"x")})
    with pytest.raises(InputError, match="there are safetensors beside the pickle files"):
        _opaque(folder)


def test_nothing_is_still_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no safetensors weights here"):
        _opaque(tmp_path)


def test_a_missing_part_is_noticed_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"1")
    with pytest.raises(InputError, match="of 2 shards 'pytorch_model' there are 1; number 2 is missing"):
        _opaque(tmp_path)
