"""Files beside a model that an engine may read by their names: each counts by its bytes unless it is on a list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from kvgate.deployments.capture import capture
from kvgate.deployments.side_files import side_files

from .conftest import MakeCheckpoint
from .test_capture import LINE, launched

READ = ["quantize_config.json", "quant_config.json", "sparse_attention_config.json", "params.json"]
KNOWN = ["generation_config.json", "configuration.json", "tokenizer.json", "model.safetensors.index.json", "notes.txt"]


def _found(folder: Path) -> dict[str, str]:
    (folder / "config.json").write_text("{}")
    return side_files(folder, subfolders=True)


@pytest.mark.parametrize("name", READ)
def test_a_file_that_is_on_no_list_counts_by_its_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"checkpoint_format": "gptq"}')
    before = _found(tmp_path)
    assert list(before) == [name]
    (tmp_path / name).write_text('{"checkpoint_format": "gptq_v2"}')
    assert list(_found(tmp_path)) == [name]
    assert _found(tmp_path) != before


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_read_elsewhere_or_says_nothing_does_not_count_twice(name: str, tmp_path: Path) -> None:
    if not name.endswith("index.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / ".hidden.json").write_text("{}")
    assert _found(tmp_path) == {}


def test_weights_in_a_subfolder_count_where_no_index_names_them(tmp_path: Path) -> None:
    import numpy as np

    for name in ("whisper/model.safetensors", "shards/model-1.safetensors", ".cache/model.safetensors"):
        (tmp_path / name).parent.mkdir()
        save_file({"t": np.zeros(4, dtype=np.float32)}, tmp_path / name)
    index = {"weight_map": {"t": "shards/model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    before = _found(tmp_path)
    assert list(before) == ["whisper/model.safetensors"]
    assert side_files(tmp_path, subfolders=False) == {}
    save_file({"t": np.ones(4, dtype=np.float32)}, tmp_path / "whisper" / "model.safetensors")
    assert _found(tmp_path) != before


@pytest.mark.usefixtures("quick")
def test_they_are_a_part_of_the_effective_configuration(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    plain = capture(str(folder), launch=launched(LINE)).manifest["model"]["config"]
    assert "side_files" not in plain
    (folder / "quantize_config.json").write_text("{}")
    found = capture(str(folder), launch=launched(LINE)).manifest["model"]["config"]
    assert list(found["side_files"]) == ["quantize_config.json"]
    assert {**found, "side_files": None} == {**plain, "side_files": None}
