"""GGUF: the digest of what the package writes, and a wall against files that lie."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.weights import gguf as gguf_files
from kvgate.weights.digest import hash_tensor
from kvgate.weights.fingerprint import CheckpointFingerprint, fingerprint_checkpoint
from kvgate.weights.gguf import open_gguf
from kvgate.weights.gguf_types import block_sizes, type_names
from kvgate.weights.tensor_map import read_map, write_map

from .builders import Tensor, write

U32, U64, I32, F32, TEXT, ARRAY = 4, 10, 5, 6, 8, 9


def _written(path: Path, change: Callable[[Any], None] = lambda _: None, **how: Any) -> Path:
    """Write a model with the package and return its path."""
    writer = gguf.GGUFWriter(path, "llama", **how)
    writer.add_block_count(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"token {number}" for number in range(300)])
    writer.add_array("llama.rope.dimension_sections", [1, 2, 3])
    change(writer)
    writer.add_tensor("blk.0.attn_q.weight", np.arange(192, dtype=np.float32).reshape(3, 64))
    quantized = np.arange(288, dtype=np.uint16).astype(np.uint8).reshape(2, 144)
    writer.add_tensor("blk.0.attn_k.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.add_tensor("blk.0.bias", np.ones(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _print(path: Path) -> CheckpointFingerprint:
    return fingerprint_checkpoint(path, {"model_type": "llama"})


def test_what_the_package_writes_and_reads(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.gguf")
    found = _print(path)
    reader = gguf.GGUFReader(path)
    theirs = [
        hash_tensor(
            one.name, f"GGUF:{one.tensor_type.name}", tuple(int(n) for n in reversed(one.shape)), one.data.tobytes()
        )
        for one in reader.tensors
    ]
    assert found.entries == tuple(sorted(theirs))
    assert [(entry.dtype, entry.shape) for entry in found.entries] == [
        ("GGUF:Q4_K", (2, 256)),
        ("GGUF:F32", (3, 64)),
        ("GGUF:F16", (5,)),
    ]
    assert (found.bytes, found.kv_rule, found.kv_digest) == (288 + 768 + 10, "1/all-tensors", found.digest)
    assert found.metadata is not None
    assert found.metadata["llama.rope.freq_base"] == 10000.0
    assert found.metadata["llama.rope.dimension_sections"] == [1, 2, 3]
    assert found.metadata["tokenizer.ggml.tokens"].keys() == {"digest", "count"}
    assert _print(tmp_path) == found, "a folder with one model is that model"
    sha256 = write_map(found, tmp_path / "map.jsonl")
    assert read_map(tmp_path / "map.jsonl", sha256).entries == found.entries


def test_the_table_is_the_packages() -> None:
    assert set(type_names().values()) == block_sizes().keys()
    assert block_sizes()["Q4_K"] == (256, 144)
    assert type_names()[30] == "BF16"


@pytest.mark.parametrize(
    "change",
    [
        lambda writer: writer.add_rope_scaling_factor(2.0),
        lambda writer: writer.add_string("general.type", "another"),
        lambda writer: writer.add_uint64("llama.expert_count", 8),
        lambda writer: writer.add_array("tokenizer.ggml.merges", ["a b"] * 100),
    ],
)
def test_metadata_counts_in_its_digest_and_in_no_other(change: Callable[[Any], None], tmp_path: Path) -> None:
    old, new = _print(_written(tmp_path / "a.gguf")), _print(_written(tmp_path / "b.gguf", change))
    assert new.digest == old.digest
    assert new.metadata_digest != old.metadata_digest
    assert new.metadata != old.metadata


LABELS = ["general.name", "general.quantized_by", "general.license.link", "general.base_model.0.name",
          "quantize.imatrix.file"]  # fmt: skip


@pytest.mark.parametrize("key", LABELS)
def test_what_a_model_is_called_and_where_it_comes_from_does_not_count(key: str, tmp_path: Path) -> None:
    """Every new upload of the same quantization says something else there."""

    def of(value: str) -> CheckpointFingerprint:
        return _print(_written(tmp_path / f"{value}.gguf", lambda writer: writer.add_string(key, value)))

    old, new = of("one"), of("two")
    assert (new.digest, new.metadata_digest, new.metadata) == (old.digest, old.metadata_digest, old.metadata)


def test_alignment_and_splitting_change_the_layout_and_nothing_else(tmp_path: Path) -> None:
    whole = _print(_written(tmp_path / "m.gguf"))
    aligned = _print(_written(tmp_path / "n.gguf", lambda writer: writer.add_custom_alignment(256)))
    (tmp_path / "parts").mkdir()
    _written(tmp_path / "parts" / "m.gguf", split_max_tensors=1)
    names = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert names == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    split = _print(tmp_path / "parts")
    assert split == _print(tmp_path / "parts" / names[1]), "any part names the model"
    for other in (aligned, split):
        assert other.layout != whole.layout
        assert (other.digest, other.entries, other.metadata_digest) == (
            whole.digest,
            whole.entries,
            whole.metadata_digest,
        )


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    _written(tmp_path / "m.gguf", split_max_tensors=1)
    first, second, third = sorted(tmp_path.iterdir())
    data = second.read_bytes()
    second.write_bytes(third.read_bytes())
    with pytest.raises(InputError, match="it says that it is part 3 of 3, not 2 of 3"):
        open_gguf(first)
    second.unlink()
    with pytest.raises(InputError, match="No such file"):
        open_gguf(first)
    second.write_bytes(data)
    third.rename(tmp_path / "alone.gguf")
    with pytest.raises(InputError, match="it says that it is part 3 of 3, not 1 of 1"):
        open_gguf(tmp_path / "alone.gguf")


def test_several_models_in_a_folder_are_refused_and_safetensors_come_first(tmp_path: Path) -> None:
    _written(tmp_path / "a.gguf")
    _written(tmp_path / "b.gguf")
    with pytest.raises(InputError, match=r"several GGUF models here \(a.gguf, b.gguf\)"):
        _print(tmp_path)
    write(tmp_path, {"w": Tensor("U8", (1,), b"x")})
    assert [entry.name for entry in _print(tmp_path).entries] == ["w"]


def test_without_the_package_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _written(tmp_path / "m.gguf")
    block_sizes.cache_clear()
    type_names.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match="need the gguf package") as caught:
        open_gguf(path)
    assert caught.value.hint == "pip install 'kvgate[gguf]'"


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _file(*keys: bytes, tensors: tuple[bytes, ...] = (), data: bytes = b"", **counts: int) -> bytes:
    head = struct.pack(
        "<IQQ", counts.get("version", 3), counts.get("count", len(tensors)), counts.get("keys", len(keys))
    )
    header = b"GGUF" + head + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data if tensors else header


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _tensor(name: bytes, sizes: tuple[int, ...], kind: int = 24, offset: int = 0) -> bytes:
    packed = struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    return _text(name) + packed + struct.pack("<IQ", kind, offset)


GOOD = _file(_key(b"a", U32, struct.pack("<I", 1)), tensors=(_tensor(b"t", (4,)),), data=b"abcd")
BYTE = _tensor(b"t", (1,))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "another magic": b"GGML" + GOOD[4:],
    "magic alone": b"GGUF",
    "version 1": _file(version=1),
    "big-endian": _file(version=3 << 24),
    "billions of tensors": _file(count=2**63),
    "as many tensors as are allowed, and none there": _file(count=500_000),
    "billions of keys": _file(keys=2**60),
    "a long key": _file(struct.pack("<Q", 2**63) + b"x", keys=1),
    "a key that is no text": _file(_key(b"\xff", U32, bytes(4))),
    "a key twice": _file(_key(b"a", U32, bytes(4)), _key(b"a", U32, bytes(4))),
    "a value of no known type": _file(_key(b"a", 99, bytes(8))),
    "a text of 2^64 bytes": _file(_key(b"a", TEXT, b"\xff" * 8)),
    "an array of 2^64 numbers": _file(_key(b"a", ARRAY, struct.pack("<I", F32) + b"\xff" * 8)),
    "an array of 2^64 texts": _file(_key(b"a", ARRAY, struct.pack("<I", TEXT) + b"\xff" * 8)),
    "an array of texts that ends early": _file(
        _key(b"a", ARRAY, struct.pack("<IQ", TEXT, 3) + _text(b"x") + bytes(20))
    ),
    "an array with a text of 2^64 bytes": _file(
        _key(b"a", ARRAY, struct.pack("<IQ", TEXT, 1) + b"\xff" * 8 + bytes(9))
    ),
    "an array of arrays": _file(_key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(64))),
    "deep arrays": _file(_key(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000)),
    "no alignment": _file(_key(b"general.alignment", U32, bytes(4)), tensors=(BYTE,), data=b"a"),
    "an odd alignment": _file(_key(b"general.alignment", U32, struct.pack("<I", 24)), tensors=(BYTE,), data=b"a"),
    "an alignment of 2^31": _file(_key(b"general.alignment", U32, struct.pack("<I", 2**31)), tensors=(BYTE,)),
    "an alignment that is text": _file(_key(b"general.alignment", TEXT, _text(b"32")), tensors=(BYTE,), data=b"a"),
    "a tensor twice": _file(tensors=(BYTE, _tensor(b"t", (1,), offset=32)), data=bytes(33)),
    "a tensor name that is no text": _file(tensors=(_tensor(b"\xff", (1,)),), data=b"a"),
    "many dimensions": _file(tensors=(_text(b"t") + struct.pack("<I", 2**32 - 1),), data=bytes(100)),
    "a product of 2^64 and more": _file(tensors=(_tensor(b"t", (2**33, 2**33)),), data=b"a"),
    "a product that wraps to 0": _file(tensors=(_tensor(b"t", (2**32, 2**32)),), data=b""),
    "an unknown type": _file(tensors=(_tensor(b"t", (1,), kind=4),), data=b"a"),
    "a row that fills no block": _file(tensors=(_tensor(b"t", (255,), kind=12),), data=bytes(144)),
    "a scalar of blocks": _file(tensors=(_tensor(b"t", (), kind=12),), data=bytes(144)),
    "an offset off the alignment": _file(tensors=(_tensor(b"t", (1,), offset=1),), data=b"aa"),
    "an offset behind the end": _file(tensors=(_tensor(b"t", (1,), offset=2**40),), data=b"a"),
    "an offset of 2^64 - 32": _file(tensors=(_tensor(b"t", (1,), offset=2**64 - 32),), data=b"a"),
    "the last byte missing": GOOD[:-1],
    "half of the header": GOOD[:30],
    "overlap": _file(tensors=(_tensor(b"a", (40,)), _tensor(b"b", (1,), offset=32)), data=bytes(40)),
    "the same bytes twice": _file(tensors=(_tensor(b"a", (1,)), _tensor(b"b", (1,))), data=b"a"),
    "a hole": _file(tensors=(_tensor(b"a", (1,)), _tensor(b"b", (1,), offset=64)), data=bytes(65)),
    "bytes of no tensor": GOOD + bytes(32),
    "no tensor": _file(),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_fast(case: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[case])
    begin = time.process_time()
    with pytest.raises(InputError) as caught:
        _print(path)
    assert time.process_time() - begin < 5
    assert caught.value.where == str(path)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def test_the_good_one_among_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GOOD)
    assert _print(path).entries == (hash_tensor("t", "GGUF:I8", (4,), b"abcd"),)


@given(data=st.data())
def test_whatever_is_read_the_package_reads_alike(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("g") / "m.gguf"
    path.write_bytes(bytes(raw))
    try:
        (file,) = open_gguf(path).files
    except InputError:
        return
    theirs = gguf.GGUFReader(path).tensors
    assert [(t.name, t.dtype, t.shape, bytes(raw[t.begin : t.end])) for t in file.tensors] == [
        (t.name, f"GGUF:{t.tensor_type.name}", tuple(int(n) for n in reversed(t.shape)), t.data.tobytes())
        for t in theirs
    ]


def test_the_parts_of_a_model_share_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").mkdir()
    _written(tmp_path / "parts" / "m.gguf", split_max_tensors=1)
    monkeypatch.setattr(gguf_files, "MAX_TENSORS", 2)
    with pytest.raises(InputError, match="more than 2 tensors in all parts"):
        _print(tmp_path / "parts")
