"""Which files count, and what is refused because two loaders would read two different models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.rules.errors import InputError
from kvgate.weights.checkpoint import INDEX, open_checkpoint, open_weights
from kvgate.weights.fingerprint import fingerprint_checkpoint

from .builders import Tensor, Tensors, encode, write, write_shards

A: Tensors = {"a": Tensor("U8", (1,), b"a")}
B: Tensors = {"b": Tensor("U8", (1,), b"b")}


def _names(folder: Path) -> list[str]:
    return [file.name for file in open_checkpoint(folder)]


def _index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_one_file_or_the_shards_of_an_index(tmp_path: Path) -> None:
    assert _names(write(tmp_path / "one", A)) == ["model.safetensors"]
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert _names(write_shards(tmp_path / "two", {**A, **B}, [["a"], ["b"]])) == shards


def test_everything_a_loader_might_read_counts_but_adapters(tmp_path: Path) -> None:
    write(tmp_path, A)
    (tmp_path / "consolidated.safetensors").write_bytes(encode(B))  # what vLLM prefers when it is there
    (tmp_path / "adapter_model.safetensors").write_bytes(encode({"base_model.model.c.lora_A.weight": A["a"]}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "x.safetensors").write_bytes(b"not read: no index names it")
    assert _names(tmp_path) == ["consolidated.safetensors", "model.safetensors"]


def test_a_file_that_only_calls_itself_an_adapter_counts(tmp_path: Path) -> None:
    """Without an index vLLM loads every ``*.safetensors`` of a folder."""
    write(tmp_path, A)
    patch = tmp_path / "adapter_patch.safetensors"
    patch.write_bytes(encode({"base_model.model.c.lora_A.weight": A["a"], **B}))
    assert _names(tmp_path) == ["adapter_patch.safetensors", "model.safetensors"]
    patch.write_bytes(encode(A))
    with pytest.raises(InputError, match=r"tensor 'a' is in adapter_patch\.safetensors and in model\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert _names(tmp_path) == ["adapter_patch.safetensors"]


def test_a_missing_shard_is_noticed_without_an_index(tmp_path: Path) -> None:
    for count, first in ((3, 1), (2, 0)):
        for number in range(first, first + count):
            name = f"model-{number:05}-of-{count:06}.safetensors"
            (tmp_path / name).write_bytes(encode({f"t{count}{number}": A["a"]}))
    (tmp_path / "model-extra.safetensors").write_bytes(encode(B))
    assert len(_names(tmp_path)) == 6
    (tmp_path / "model-00002-of-000003.safetensors").unlink()
    with pytest.raises(InputError, match="of 3 shards 'model' there are 2; number 2 is missing"):
        open_checkpoint(tmp_path)
    _index(tmp_path, {"t31": "model-00001-of-000003.safetensors", "t33": "model-00003-of-000003.safetensors"})
    assert len(_names(tmp_path)) == 5, "an index vouches for them"
    (tmp_path / "model-00001-of-000002.safetensors").unlink()
    with pytest.raises(InputError, match="of 2 shards 'model' there are 1; number 1 is missing"):
        open_checkpoint(tmp_path)


def test_a_count_of_shards_that_nobody_has_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / f"model-00001-of-{'9' * 100}.safetensors").write_bytes(encode(A))
    with pytest.raises(InputError, match="number 2 is missing"):
        open_checkpoint(tmp_path)


def test_a_file_the_index_does_not_name_counts_too(tmp_path: Path) -> None:
    write_shards(tmp_path, A, [["a"]])
    (tmp_path / "input_scales.safetensors").write_bytes(encode(B))
    assert _names(tmp_path) == ["input_scales.safetensors", "model-00001-of-00001.safetensors"]


def test_naming_a_file_in_the_index_is_a_difference(tmp_path: Path) -> None:
    """vLLM and transformers load the files that the index names, and no others."""
    write_shards(tmp_path, A, [["a"]])
    (tmp_path / "scales.safetensors").write_bytes(encode(B))
    left_out = fingerprint_checkpoint(tmp_path, None)
    assert [entry.name for entry in left_out.entries] == ["(not in the index) b", "a"]
    _index(tmp_path, {"a": "model-00001-of-00001.safetensors", "b": "scales.safetensors"})
    named = fingerprint_checkpoint(tmp_path, None)
    assert [entry.name for entry in named.entries] == ["a", "b"]
    assert named.digest != left_out.digest
    (tmp_path / INDEX).unlink()
    assert fingerprint_checkpoint(tmp_path, None).digest == named.digest, "without an index all are loaded"


def test_what_lies_aside_cannot_be_claimed_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a tensor with the name '\(not in the index\) b'"):
        open_checkpoint(write(tmp_path, {**A, "(not in the index) b": B["b"]}))


def test_index_may_name_a_subfolder(tmp_path: Path) -> None:
    write(tmp_path / "parts", A)
    _index(tmp_path, {"a": "parts/model.safetensors"})
    assert _names(tmp_path) == ["parts/model.safetensors"]


def test_hidden_files_are_no_weights(tmp_path: Path) -> None:
    """Loaders look for ``*.safetensors``, which matches no ``._model.safetensors`` that a Mac leaves behind."""
    write(tmp_path, A)
    (tmp_path / "._model.safetensors").write_bytes(b"\0\5\x16\7 Mac OS X")
    assert _names(tmp_path) == ["model.safetensors"]


def test_links_into_a_blob_store_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(encode(A))
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blob")
    assert _names(tmp_path / "snapshot") == ["model.safetensors"]


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, A, [["a"]])
    write(tmp_path, A)  # transformers would read this one, vLLM the shards
    with pytest.raises(InputError, match=r"tensor 'a' is in model-00001-of-00001\.safetensors and in model\.safe"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["../x.safetensors", "/x.safetensors", "a/../x.safetensors", "./x.safetensors"])
def test_index_cannot_leave_the_folder(file: str, tmp_path: Path) -> None:
    write(tmp_path, A)
    _index(tmp_path, {"a": file})
    with pytest.raises(InputError, match="inside the folder"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["model.bin", "", 7, None, "x\0.safetensors", "x\ny.safetensors"])
def test_index_must_name_safetensors_files(file: object, tmp_path: Path) -> None:
    write(tmp_path, A)
    _index(tmp_path, {"a": file})
    with pytest.raises(InputError, match="a safetensors file inside the folder is expected"):
        open_checkpoint(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    missing = write_shards(tmp_path / "missing", {**A, **B}, [["a"], ["b"]])
    (missing / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002\.safetensors: cannot be read: No such file"):
        open_checkpoint(missing)
    absent = write_shards(tmp_path / "absent", A, [["a"]])
    _index(absent, {"a": "model-00001-of-00001.safetensors", "b": "model-00001-of-00001.safetensors"})
    with pytest.raises(InputError, match="the index puts tensor 'b' into"):
        open_checkpoint(absent)
    twice = write_shards(tmp_path / "twice", {**A, **B}, [["a", "b"], ["b"]])
    with pytest.raises(InputError, match="tensor 'b' is in"):
        open_checkpoint(twice)


BROKEN_INDEXES = {
    "empty": "",
    "a list": "[]",
    "no map": "{}",
    "empty map": '{"weight_map":{}}',
    "map a list": '{"weight_map":["a"]}',
    "duplicate": '{"weight_map":{"a":"model.safetensors","a":"model.safetensors"}}',
    "NaN": '{"weight_map":{"a":NaN}}',
    "deep": '{"weight_map":' + "[" * 1_000_000,
}


@pytest.mark.parametrize("case", BROKEN_INDEXES)
def test_broken_indexes_are_refused(case: str, tmp_path: Path) -> None:
    write(tmp_path, A)
    (tmp_path / INDEX).write_text(BROKEN_INDEXES[case])
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickle_is_never_loaded(pickle: str, tmp_path: Path) -> None:
    (tmp_path / pickle).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(InputError, match="pickle can run code and is never loaded"):
        open_checkpoint(tmp_path)


def test_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no safetensors weights here"):
        open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="hold no tensor"):
        open_checkpoint(write(tmp_path, {}))
    with pytest.raises(InputError, match="is no checkpoint: neither a folder nor a file of a known kind"):
        open_checkpoint(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="there is no such file or folder"):
        open_checkpoint(tmp_path / "missing")


@pytest.mark.parametrize("named", ["sub/other.safetensors", "adapter_model.bin", INDEX, 7, ["model.safetensors"]])
def test_weights_that_the_config_has_loaded_instead_are_refused(named: object, tmp_path: Path) -> None:
    """transformers 5.24 takes the file that ``transformers_weights`` names before ``model.safetensors``."""
    write(tmp_path, A)
    config = tmp_path / "config.json"
    config.write_text('{"transformers_weights": "model.safetensors"}')
    assert open_weights(tmp_path).files == open_checkpoint(tmp_path)
    config.write_text(json.dumps({"transformers_weights": named}))
    with pytest.raises(InputError, match="transformers_weights names") as refused:
        open_weights(tmp_path)
    assert refused.value.where == str(config)


def test_pickle_that_the_config_names_counts_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    config = tmp_path / "config.json"
    config.write_text('{"transformers_weights": "pytorch_model.bin"}')
    assert [file.name for file in open_weights(tmp_path, opaque_pickle=True).files] == ["pytorch_model.bin"]
    config.write_text('{"transformers_weights": "adapter_model.bin"}')
    with pytest.raises(InputError, match=r"transformers_weights names 'adapter_model\.bin'"):
        open_weights(tmp_path, opaque_pickle=True)
