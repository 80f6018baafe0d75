"""One digest for one set of tensors: layout never matters, every bit, type and name does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.weights import hashing
from kvgate.weights.digest import hash_tensor, root_digest
from kvgate.weights.fingerprint import CheckpointFingerprint, fingerprint_checkpoint

from .builders import Tensor, Tensors, encode, llama, llama_config, words, write, write_shards

_TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
    st.binary(max_size=12).map(lambda data: Tensor("U8", (len(data),), data)),
    min_size=1,
    max_size=6,
)


def _fingerprint(folder: Path, config: dict[str, object] | None = None) -> CheckpointFingerprint:
    return fingerprint_checkpoint(folder, config)


@settings(max_examples=50)
@given(tensors=_TENSORS, data=st.data())
def test_layout_changes_the_layout_and_nothing_else(
    tensors: Tensors, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("c")
    plain = _fingerprint(write(folder / "plain", tensors))
    assert plain.digest == root_digest(hash_tensor(name, *tensor) for name, tensor in tensors.items())
    assert (plain.tensors, plain.bytes) == (len(tensors), sum(len(tensor.data) for tensor in tensors.values()))
    order = data.draw(st.permutations(list(tensors)))
    cut = data.draw(st.integers(0, len(order)))
    shards = [part for part in (order[:cut], order[cut:]) if part]
    padded = _fingerprint(
        write(folder / "padded", tensors, order=order, metadata={"format": "pt"}, padding=data.draw(st.integers(1, 9)))
    )
    sharded = _fingerprint(write_shards(folder / "sharded", tensors, shards))
    for other in (padded, sharded):
        assert other.layout != plain.layout
        assert (other.digest, other.kv_digest, other.entries) == (plain.digest, plain.kv_digest, plain.entries)


@settings(max_examples=50)
@given(tensors=_TENSORS.filter(lambda tensors: any(t.data for t in tensors.values())), data=st.data())
def test_every_bit_counts(tensors: Tensors, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("c")
    old = _fingerprint(write(folder / "old", tensors))
    name = data.draw(st.sampled_from([name for name in tensors if tensors[name].data]))
    content = bytearray(tensors[name].data)
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    new = _fingerprint(write(folder / "new", {**tensors, name: tensors[name]._replace(data=bytes(content))}))
    assert new.digest != old.digest
    assert new.kv_digest != old.kv_digest
    assert new.layout == old.layout
    assert {e.name for e in set(new.entries) - set(old.entries)} == {name}


@pytest.mark.parametrize(
    "change",
    [
        {"a": Tensor("F16", (2, 2), words(1, 2, 3, 4))},  # the same bytes read as another type
        {"a": Tensor("I32", (2, 1), words(1, 2, 3, 4))},
        {"a": Tensor("BF16", (4,), words(1, 2, 3, 4))},  # and in another shape
        {"a": Tensor("BF16", (2, 2, 1), words(1, 2, 3, 4))},
        {"a": Tensor("BF16", (2, 2), words(5, 6, 7, 8)), "b": Tensor("BF16", (2, 2), words(1, 2, 3, 4))},  # swapped
        {"empty": Tensor("F32", (0,), b"")},
        {"empty": Tensor("BF16", (0, 3), b"")},
        {"more": Tensor("F32", (0,), b"")},
    ],
)
def test_type_shape_and_name_count(change: Tensors, tmp_path: Path) -> None:
    tensors = {
        "a": Tensor("BF16", (2, 2), words(1, 2, 3, 4)),
        "b": Tensor("BF16", (2, 2), words(5, 6, 7, 8)),
        "empty": Tensor("F32", (0, 3), b""),
    }
    old = _fingerprint(write(tmp_path / "old", tensors))
    new = _fingerprint(write(tmp_path / "new", {**tensors, **change}))
    assert new.digest != old.digest


def test_a_renamed_file_changes_the_layout_only(tmp_path: Path) -> None:
    old = _fingerprint(write(tmp_path, llama()))
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    new = _fingerprint(tmp_path)
    assert new.layout != old.layout
    assert new.entries == old.entries


def test_large_and_small_tensors_in_windows_are_hashed_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_JOB", 1000)
    monkeypatch.setattr(hashing, "_WINDOW", 700)
    sizes = {f"t{size}": size for size in (0, 1, 64, 699, 700, 701, 999, 1000, 1001, 1400, 5000, 70_000)}
    tensors = {name: Tensor("U8", (size,), os.urandom(size)) for name, size in sizes.items()}
    seen: list[int] = []
    totals: set[int | None] = set()

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:
        assert (stage, unit) == ("hashing weights", "bytes")
        seen.append(done)
        totals.add(total)

    found = fingerprint_checkpoint(write(tmp_path, tensors), None, progress)
    assert found.entries == tuple(sorted(hash_tensor(name, *tensor) for name, tensor in tensors.items()))
    assert seen == sorted(seen)
    assert seen[-1] == sum(sizes.values())
    assert totals == {sum(sizes.values())}


@pytest.mark.parametrize("what", ["truncated", "rewritten", "replaced", "removed"])
def test_a_file_that_changes_meanwhile_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_JOB", 4096)
    monkeypatch.setattr(hashing, "_WINDOW", 4096)
    monkeypatch.setattr(hashing, "_cores", lambda: 1)  # another thread would be reading while the file is cut
    data = encode({f"t{number}": Tensor("U8", (100_000,), os.urandom(100_000)) for number in range(4)})
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))
    changed = False

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:  # noqa: ARG001
        nonlocal changed
        if changed or done < 50_000:
            return
        changed = True
        if what == "truncated":
            os.truncate(path, 1000)
        elif what == "rewritten":
            with path.open("r+b") as stream:
                stream.seek(-1, os.SEEK_END)
                stream.write(b"!")
        elif what == "replaced":
            (tmp_path / "new").write_bytes(data)
            (tmp_path / "new").rename(path)
        else:
            path.unlink()

    with pytest.raises(InputError, match=r"changed while it was read|No such file"):
        fingerprint_checkpoint(tmp_path, None, progress)
    assert changed


def test_a_tied_head_is_an_alias_and_dropping_it_changes_the_layout_only(tmp_path: Path) -> None:
    tensors = llama()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    config = llama_config(tie_word_embeddings=True)
    stored = _fingerprint(write(tmp_path / "stored", tensors), config)
    dropped = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    bare = _fingerprint(write(tmp_path / "bare", dropped), config)
    assert stored.layout != bare.layout
    assert stored == CheckpointFingerprint(**{**vars(bare), "layout": stored.layout})


@pytest.mark.parametrize("config", [None, llama_config(), llama_config(tie_word_embeddings=None)])
def test_equal_bytes_alone_are_no_alias(config: dict[str, object] | None, tmp_path: Path) -> None:
    tensors = llama()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    names = [entry.name for entry in _fingerprint(write(tmp_path, tensors), config).entries]
    assert "lm_head.weight" in names


@pytest.mark.parametrize(
    "head",
    [Tensor("F16", (2,), words(18, 19)), Tensor("BF16", (2, 1), words(18, 19)), Tensor("BF16", (2,), words(1, 1))],
)
def test_a_different_head_is_no_alias(head: Tensor, tmp_path: Path) -> None:
    tensors = llama()
    assert tensors["model.embed_tokens.weight"] == Tensor("BF16", (2,), words(18, 19))
    tensors["lm_head.weight"] = head
    found = _fingerprint(write(tmp_path, tensors), llama_config(tie_word_embeddings=True))
    assert found.tensors == len(tensors)
