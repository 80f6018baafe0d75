"""The sidecar: what is written is read, and a map cannot claim what its lines do not say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.weights import tensor_map
from kvgate.weights.digest import TensorEntry, hash_tensor, root_digest
from kvgate.weights.fingerprint import Fingerprint
from kvgate.weights.tail import kv_digest
from kvgate.weights.tensor_map import TensorMap, compare_maps, kv_digest_of, read_map, write_map

from .builders import Tensor, Tensors, llama, llama_config, words

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SMALL = st.dictionaries(
    _NAMES,
    st.tuples(
        st.sampled_from(["U8", "F4"]), st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple), st.binary(max_size=1)
    ),
    max_size=5,
)


def _map(tensors: Tensors) -> TensorMap:
    entries = tuple(sorted(hash_tensor(name, *tensor) for name, tensor in tensors.items()))
    return TensorMap(root_digest(entries), entries)


def _fingerprint(entries: tuple[TensorEntry, ...]) -> Fingerprint:
    root = root_digest(entries)
    return Fingerprint(root, root, "1/all-tensors", len(entries), 0, entries)


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@settings(max_examples=60)
@given(_SMALL)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> None:
    path = tmp_path_factory.mktemp("m") / "weights.jsonl"
    entries = tuple(sorted(hash_tensor(name, *tensor) for name, tensor in tensors.items()))
    sha256 = write_map(_fingerprint(entries), path)
    assert sha256 == _sha256(path.read_bytes())
    assert read_map(path, sha256) == TensorMap(root_digest(entries), entries)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]  # JSON Lines it is
    assert lines[0] == {"schema": "kvgate/tensor-map/v1", "tensors": len(entries), "root": root_digest(entries)}
    assert [(line["name"], line["dtype"], tuple(line["shape"]), line["content"]) for line in lines[1:]] == [
        (*entry[:3], entry.content) for entry in entries
    ]
    assert [file.name for file in path.parent.iterdir()] == ["weights.jsonl"]  # and nothing is left beside it


def test_kv_digest_of_a_map_is_that_of_its_checkpoint(tmp_path: Path) -> None:
    tensors = _map(llama())
    path = tmp_path / "weights.jsonl"
    sha256 = write_map(_fingerprint(tensors.entries), path)
    found = kv_digest_of(read_map(path, sha256), llama_config())
    assert found == kv_digest(tensors.entries, llama_config(), tensors.digest)
    assert found[1] == "1/llama"
    assert found[0] != tensors.digest


def _swap(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def _lines(edit: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: "\n".join([*edit(text.split("\n")[:-1]), ""])


FORGERIES: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda _: "", "header"),
    "another schema": (lambda text: _swap(text, "tensor-map/v1", "tensor-map/v2"), "header"),
    "no last line end": (lambda text: text[:-1], "header"),
    "truncated": (lambda text: text[:-20], "header"),
    "another count": (lambda text: _swap(text, '"tensors":3', '"tensors":2'), "says 2 tensors"),
    "another root": (lambda text: _swap(text, '"root":"blake3:', '"root":"blake3:0')[:-1], "header"),
    "claimed root": (
        lambda text: _swap(text, json.loads(text.split("\n")[0])["root"], "blake3:" + "0" * 64),
        "claims the root",
    ),
    "another name": (lambda text: _swap(text, '"name":"b"', '"name":"bb"'), "claims the root"),
    "another dtype": (lambda text: _swap(text, "BF16", "F16"), "claims the root"),
    "another shape": (lambda text: _swap(text, '"shape":[2]', '"shape":[1]'), "claims the root"),
    "another content": (lambda text: text[:-4] + ("0" if text[-4] != "0" else "1") + text[-3:], "claims the root"),
    "a tensor less": (_lines(lambda lines: lines[:-1]), "says 3 tensors"),
    "named twice": (_lines(lambda lines: [*lines, lines[-1]]), "out of order or named twice"),
    "out of order": (_lines(lambda lines: [lines[0], lines[2], lines[1], lines[3]]), "out of order"),
    "unknown dtype": (lambda text: _swap(text, "BF16", "BF17"), "unknown dtype"),
    "unknown key": (lambda text: _swap(text, '"dtype"', '"x":1,"dtype"'), "a tensor with name"),
    "another spelling": (lambda text: _swap(text, '"dtype":', '"dtype": '), "a tensor with name"),
    "nested": (_lines(lambda lines: [*lines[:-1], "[" * 100_000]), "a tensor with name"),
    "negative size": (lambda text: _swap(text, '"shape":[2]', '"shape":[-2]'), "a tensor with name"),
    "huge size": (lambda text: _swap(text, '"shape":[2]', f'"shape":[{"9" * 5000}]'), "a tensor with name"),
    "short content": (lambda text: text[:-5] + text[-3:], "a tensor with name"),
    "lone surrogate": (lambda text: _swap(text, '"name":"b"', '"name":"\\ud800"'), "broken name"),
    "bad escape": (lambda text: _swap(text, '"name":"b"', '"name":"\\x"'), "broken name"),
    "blank line": (_lines(lambda lines: [*lines, ""]), "a tensor with name"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_forged_maps_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.jsonl"
    entries = [hash_tensor(name, "BF16", (2,), words(number, 0)) for number, name in enumerate("abc")]
    write_map(_fingerprint(tuple(entries)), path)
    edit, message = FORGERIES[case]
    forged = edit(path.read_text()).encode()
    path.write_bytes(forged)
    with pytest.raises(InputError, match=message) as caught:
        read_map(path, _sha256(forged))  # the forger controls the manifest too
    assert str(caught.value.where).startswith(f"{path}:")


def test_a_map_must_be_the_one_the_manifest_names(tmp_path: Path) -> None:
    path = tmp_path / "weights.jsonl"
    sha256 = write_map(_fingerprint(_map(llama()).entries), path)
    with pytest.raises(InputError, match="the tensor map has the digest sha256:"):
        read_map(path, sha256[:-1] + ("0" if sha256[-1] != "0" else "1"))
    path.write_bytes(b"\xff" * 10)
    with pytest.raises(InputError, match="not UTF-8"):
        read_map(path, _sha256(b"\xff" * 10))
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        read_map(path, sha256)


def test_a_map_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_map(_fingerprint(()), tmp_path / "no" / "weights.jsonl")
    (tmp_path / "weights.jsonl").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_map(_fingerprint(()), tmp_path / "weights.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["weights.jsonl"]


def test_difference_names_each_kind() -> None:
    one, two, three = (Tensor("BF16", (1,), words(value)) for value in (1, 2, 3))
    old = _map({"same": one, "bytes": one, "type": one, "gone": two, "moved": three})
    new = _map({"same": one, "bytes": two, "type": Tensor("F16", (1,), words(1)), "come": one, "new": three})
    found = compare_maps(old, new)
    assert (found.added, found.removed, found.changed) == (("come",), ("gone",), ("bytes", "type"))
    assert (found.renamed, found.equal) == ((("moved", "new"),), 1)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)),
)
def test_difference_accounts_for_every_tensor(old: dict[str, int], new: dict[str, int]) -> None:
    before = _map({name: Tensor("BF16", (1,), words(value)) for name, value in old.items()})
    after = _map({name: Tensor("BF16", (1,), words(value)) for name, value in new.items()})
    found = compare_maps(before, after)
    assert found.equal == sum(new.get(name) == value for name, value in old.items())
    assert set(found.changed) == {name for name in old.keys() & new.keys() if old[name] != new[name]}
    sources, targets = ({pair[side] for pair in found.renamed} for side in (0, 1))
    assert {*found.removed} | sources == old.keys() - new.keys()
    assert {*found.added} | targets == new.keys() - old.keys()
    assert len(sources) == len(targets) == len(found.renamed)
    assert all(old[source] == new[target] for source, target in found.renamed)
    assert not {old[name] for name in found.removed} & {new[name] for name in found.added}


def test_a_map_that_nobody_could_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _fingerprint(_map(llama()).entries)
    size = tmp_path / "weights.jsonl"
    write_map(found, size)
    monkeypatch.setattr(tensor_map, "MAX_BYTES", size.stat().st_size - 1)
    with pytest.raises(InputError, match="at most"):
        write_map(found, tmp_path / "other.jsonl")
    assert not (tmp_path / "other.jsonl").exists()
