"""Headers: what the format allows is read, everything else is refused quickly and in one line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.weights import safetensors as headers
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.safetensors import DTYPE_BITS, MAX_DIMENSIONS, MAX_HEADER, Left, read_header
from kvgate.weights.tensor_map import read_map, write_map

from .builders import Tensor, encode, sized

U8 = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'


def deserialize(data: bytes) -> Any:
    """Read a file with the library that users load it with."""
    read: Callable[[bytes], Any] = safetensors.deserialize
    return read(data)


def _file(folder: Path, data: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return path


def _info(dtype: object, shape: object, offsets: object) -> bytes:
    return json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


HOSTILE = {
    "empty": b"",
    "seven bytes": b"\x02\0\0\0\0\0\0",
    "length 2^63": (2**63).to_bytes(8, "little") + b"{}",
    "length 2^64-1": b"\xff" * 8 + b"{}",
    "length just over the cap": (MAX_HEADER + 1).to_bytes(8, "little") + b"{}",
    "length past the end": (100).to_bytes(8, "little") + b"{}",
    "no header": sized(b""),
    "not UTF-8": sized(b'{"\xff":1}'),
    "byte order mark": sized(b"\xef\xbb\xbf{}"),
    "a list": sized(b"[]"),
    "not closed": sized(b'{"t":' + U8.encode(), b"a"),
    "trailing comma": sized(b'{"t":' + U8.encode() + b",}", b"a"),
    "two objects": sized(b'{"t":' + U8.encode() + b"}{}", b"a"),
    "duplicate tensor": sized(f'{{"t":{U8},"t":{U8}}}'.encode(), b"a"),
    "duplicate by escape": sized(f'{{"t":{U8},"\\u0074":{U8}}}'.encode(), b"a"),
    "duplicate metadata": sized(b'{"__metadata__":{},"__metadata__":{}}'),
    "duplicate in metadata": sized(b'{"__metadata__":{"a":"1","a":"2"}}'),
    "metadata with a number": sized(b'{"__metadata__":{"a":1}}'),
    "metadata with an object": sized(b'{"__metadata__":{"a":{}}}'),
    "metadata null": sized(b'{"__metadata__":null}'),
    "duplicate field": sized(b'{"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"),
    "unknown field": sized(b'{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}', b"a"),
    "missing field": sized(b'{"t":{"dtype":"U8","shape":[1]}}', b"a"),
    "null tensor": sized(b'{"t":null}'),
    "lone surrogate": sized(f'{{"\\ud800":{U8}}}'.encode(), b"a"),
    "control character": sized(b'{"a\nb":' + U8.encode() + b"}", b"a"),
    "unknown dtype": sized(_info("F3", [1], [0, 1]), b"a"),
    "dtype a list": sized(_info(["U8"], [1], [0, 1]), b"a"),
    "lower case dtype": sized(_info("u8", [1], [0, 1]), b"a"),
    "shape a number": sized(_info("U8", 1, [0, 1]), b"a"),
    "negative size": sized(_info("U8", [-1], [0, 1]), b"a"),
    "boolean size": sized(_info("U8", [True], [0, 1]), b"a"),
    "fractional size": sized(_info("U8", [1.0], [0, 1]), b"a"),
    "size 2^63": sized(_info("U8", [2**63, 0], [0, 0])),
    "NaN size": sized(b'{"t":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"a"),
    "shape overflow to the right size": sized(_info("U8", [2**32, 2**32], [0, 0])),
    "size too small": sized(_info("BF16", [2], [0, 2]), b"ab"),
    "half a byte": sized(_info("F4", [3], [0, 2]), b"ab"),
    "offsets reversed": sized(_info("U8", [1], [1, 0]), b"a"),
    "offset negative": sized(_info("U8", [1], [-1, 0]), b"a"),
    "three offsets": sized(_info("U8", [1], [0, 1, 1]), b"a"),
    "offset past the end": sized(_info("U8", [2], [0, 2]), b"a"),
    "hole at the start": sized(_info("U8", [1], [1, 2]), b"ab"),
    "bytes behind the last": sized(_info("U8", [1], [0, 1]), b"ab"),
    "overlap": sized(
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        b"abc",
    ),
    "the same bytes twice": sized(f'{{"a":{U8},"b":{U8}}}'.encode(), b"a"),
    "empty tensor inside another": sized(
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}',
        b"ab",
    ),
    "deep nesting": sized(b'{"t":' + b"[" * 1_000_000),
    "deep nesting in a tensor": sized(b'{"t":{"dtype":' + b"[" * 2000 + b"}}"),
    "deep objects": sized(b'{"t":' * 500_000),
    "a long string": sized(b'{"' + b"\\" * 5_000_000),
    "many digits": sized(b'{"t":{"dtype":"U8","shape":[' + b"9" * 1900 + b'],"data_offsets":[0,1]}}', b"a"),
    "very many digits": sized(b'{"t":{"dtype":"U8","shape":[' + b"9" * 5_000_000 + b"]}}"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_fast(case: str, tmp_path: Path) -> None:
    path = _file(tmp_path, HOSTILE[case])
    begin = time.process_time()
    with pytest.raises(InputError) as caught:
        read_header(path, path.name, Left())
    assert time.process_time() - begin < 2
    assert caught.value.where == str(path)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def test_every_dtype_of_the_library_is_known(tmp_path: Path) -> None:
    with pytest.raises(safetensors.SafetensorError) as caught:
        deserialize(sized(_info("?", [1], [0, 1]), b"a"))
    listed = str(caught.value).split("expected one of ")[1]
    assert {word for word in listed.split("`") if word[:1].isupper()} == DTYPE_BITS.keys()
    for dtype, bits in DTYPE_BITS.items():
        data = encode({"t": Tensor(dtype, (4,), b"x" * (bits // 2))})
        assert deserialize(data)[0][0] == "t"
        (record,) = read_header(_file(tmp_path, data), "m", Left()).tensors
        assert record.dtype == dtype
        assert record.end - record.begin == bits // 2


def test_what_the_format_allows_is_read(tmp_path: Path) -> None:
    data = sized(
        b' {"__metadata__" : {"a": "}{", "b": "\\"},"},\n "z":{"data_offsets":[2,3],"shape":[],"dtype":"I8"},'
        b'"a\\u00e9" :{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]} ,'
        b'"e":{"dtype":"F32","shape":[3,0],"data_offsets":[2,2]}}   ',
        b"abc",
    )
    assert len(deserialize(data)) == 3
    tensors = read_header(_file(tmp_path, data), "m", Left()).tensors
    assert [(t.name, t.dtype, t.shape, t.end - t.begin) for t in tensors] == [
        ("aé", "F4", (2, 2), 2),
        ("e", "F32", (3, 0), 0),
        ("z", "I8", (), 1),
    ]
    assert data[tensors[2].begin : tensors[2].end] == b"c"


@given(data=st.data())
def test_whatever_is_read_the_library_reads_alike(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = bytearray(encode({"a": Tensor("U8", (2,), b"ab"), "b": Tensor("I16", (1,), b"cd")}, padding=3))
    for _ in range(data.draw(st.integers(0, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.sampled_from(list(range(32, 127))))
    raw = bytes(good)[: data.draw(st.sampled_from([len(good), len(good) - 1]))]
    path = _file(tmp_path_factory.mktemp("f"), raw)
    try:
        read = read_header(path, "m", Left()).tensors
    except InputError:
        return
    theirs = {name: (v["dtype"], tuple(v["shape"]), bytes(v["data"])) for name, v in deserialize(raw)}
    assert {t.name: (t.dtype, t.shape, raw[t.begin : t.end]) for t in read} == theirs


def test_what_is_no_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("pipe", "folder", "dangling", "missing"):
        with pytest.raises(InputError, match=name):
            read_header(tmp_path / name, name, Left())


def test_the_files_of_a_checkpoint_share_what_headers_may_say(tmp_path: Path) -> None:
    path = _file(tmp_path, encode({name: Tensor("U8", (0,), b"") for name in "abc"}))
    length = int.from_bytes(path.read_bytes()[:8], "little")
    left = Left(tensors=7, bytes=3 * length - 1)
    read_header(path, "m", left)
    read_header(path, "m", left)
    assert left == Left(tensors=1, bytes=length - 1)
    with pytest.raises(InputError, match="the headers of all files have more than"):
        read_header(path, "m", left)
    with pytest.raises(InputError, match="more than 500000 tensors in all files"):
        read_header(path, "m", Left(tensors=2))


def test_a_shape_is_as_long_as_a_map_reads(tmp_path: Path) -> None:
    for length, sound in ((MAX_DIMENSIONS, True), (MAX_DIMENSIONS + 1, False)):
        path = _file(tmp_path, encode({name: Tensor("U8", (1,) * length, b"a") for name in "ab"}))
        if sound:
            sha256 = write_map(fingerprint_checkpoint(tmp_path, None), tmp_path / "m.jsonl")
            assert read_map(tmp_path / "m.jsonl", sha256).entries[0].shape == (1,) * length
        else:
            with pytest.raises(InputError, match="at most 64 sizes"):
                read_header(path, "m", Left())


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"n" * 65_535: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, None),
        ({"n" * 65_536: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, "a name of more than 65535 bytes"),
        ({"€" * 21_846: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, "a name of more than 65535 bytes"),
        ({"__metadata__": {str(number): "" for number in range(101)}}, "more than 100 keys in __metadata__"),
    ],
    ids=["longest name", "longer", "longer in bytes", "metadata"],
)
def test_names_and_metadata_are_bounded(
    header: dict[str, Any], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "_MAX_METADATA", 100)
    path = _file(tmp_path, sized(json.dumps(header, ensure_ascii=False).encode()))
    if says is None:
        assert len(read_header(path, "m", Left()).tensors) == 1
    else:
        with pytest.raises(InputError, match=says):
            read_header(path, "m", Left())
