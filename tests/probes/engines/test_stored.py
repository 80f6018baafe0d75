"""What lies in a scratch store is read as an engine understands it, and as nothing else."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvgate.probes.engines.connectors import kind_of
from kvgate.probes.engines.example_connector import ExampleConnector
from kvgate.probes.engines.layout import Layout, UnlikeError
from kvgate.probes.engines.lmcache_server import LMCacheServer
from kvgate.probes.engines.places import FolderPlaces
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Request
from tests.probes.rehearsal.pairs import deployment

_LAYERS = tuple(f"model.layers.{number}.self_attn.attn" for number in range(2))
_LAYOUT = Layout(_LAYERS, "float16", planes=1, heads=2, content=8, block=32)
_APART = Layout(_LAYERS, "float16", planes=2, heads=2, content=4, block=32)
_PROMPT = Request(tuple(range(80)))
_KEPT = 64


def _served(connector: str) -> Manifest:
    return deployment(
        {
            "cache.connector": connector,
            "cache.version": None if connector == "vllm-example" else "0.5.6",
            "cache.namespace": None,
            "cache.chunk_size": 32,
            "engine.block_size": 32,
            "model.config.num_hidden_layers": 2,
        }
    )


@pytest.fixture
def places(tmp_path: Path) -> FolderPlaces:
    found = FolderPlaces(tmp_path / "stores")
    found.put("store", "/kv", keeps=True)
    return found


def _numbers(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float16).reshape(shape) / 8


class _Program:
    """Starts nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, name: str) -> Path:
        return self._folder / name

    def serve(self, *_: object) -> None:
        pass


def _lmcache(tmp_path: Path, places: FolderPlaces) -> LMCacheServer:
    server = LMCacheServer(cast("Program", _Program(tmp_path)), 32, places)
    places.put("store", "/kv", keeps=True)
    return server


def _names(connector: str) -> tuple[str, ...]:
    names = SCHEMES[connector].predict(_served(connector), _PROMPT).names
    assert names is not None
    return names


def _written(places: FolderPlaces, values: Any) -> list[Path]:
    files = [places.place / name for name in _names("vllm-example")]
    files[0].parent.mkdir()
    for file, layer in zip(files, values, strict=True):
        save_file({"kv_cache": layer}, file)
    return files


def test_a_prompt_of_the_example_connector(places: FolderPlaces) -> None:
    connector, served = ExampleConnector(places), _served("vllm-example")
    assert connector.stored(served, _PROMPT, _LAYOUT) == []
    values = _numbers(2, _KEPT, 2, 8)
    _written(places, values)
    (found,) = connector.stored(served, _PROMPT, _LAYOUT)
    assert np.array_equal(found, values.reshape(2, 1, _KEPT, 16))
    assert connector.held(served, _PROMPT) == _KEPT
    assert connector.stored(served, Request(tuple(range(1, 81))), _LAYOUT) == []


def test_a_prompt_of_the_example_connector_with_keys_and_values_apart(places: FolderPlaces) -> None:
    values = _numbers(2, 2, _KEPT, 2, 4)
    _written(places, values)
    (found,) = ExampleConnector(places).stored(_served("vllm-example"), _PROMPT, _APART)
    assert np.array_equal(found, values.reshape(2, 2, _KEPT, 8))


def _file(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _header(**changes: Any) -> dict[str, Any]:
    size = 2 * _KEPT * 16
    return {"kv_cache": {"dtype": "F16", "shape": [_KEPT, 2, 8], "data_offsets": [0, size], **changes}}


_DATA = bytes(2 * _KEPT * 16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        _DATA,
        struct.pack("<Q", 1 << 60) + _DATA,
        _file(b"[" * 60000, b""),
        _file(b"\xff\xfe", _DATA),
        _file([], _DATA),
        _file({"kv_cache": None}, _DATA),
        _file({"other": _header()["kv_cache"]}, _DATA),
        _file(_header(dtype="BF16"), _DATA),
        _file(_header(dtype="F32"), _DATA),
        _file(_header(shape=[_KEPT, 2, 9]), _DATA),
        _file(_header(shape=[_KEPT + 32, 2, 8]), _DATA),
        _file(_header(shape=[1 << 40, 2, 8]), _DATA),
        _file(_header(shape=[-_KEPT, 2, 8]), _DATA),
        _file(_header(shape=[True, 2, 8]), _DATA),
        _file(_header(shape=["64", 2, 8]), _DATA),
        _file(_header(shape=[]), _DATA),
        _file(_header(shape=None), _DATA),
        _file(_header(data_offsets=[0, 8]), _DATA),
        _file(_header(data_offsets=[2, 2 * _KEPT * 16]), _DATA),
        _file(_header(), _DATA[:-2]),
        _file(_header(), _DATA + _DATA),
        _file(_header(shape=[_KEPT // 2, 2, 8], data_offsets=[0, _KEPT * 16]), _DATA[: _KEPT * 16]),
    ],
)
def test_a_file_that_is_something_else_is_not_compared(content: bytes, places: FolderPlaces) -> None:
    last = _written(places, _numbers(2, _KEPT, 2, 8))[-1]
    last.write_bytes(content)
    with pytest.raises(UnlikeError):
        ExampleConnector(places).stored(_served("vllm-example"), _PROMPT, _LAYOUT)


def test_other_layers_are_not_compared(places: FolderPlaces) -> None:
    _written(places, _numbers(2, _KEPT, 2, 8))[-1].unlink()
    with pytest.raises(UnlikeError):
        ExampleConnector(places).stored(_served("vllm-example"), _PROMPT, _LAYOUT)


@pytest.mark.parametrize("layout", [_LAYOUT, _APART])
def test_chunks_of_lmcache_are_read_in_order_up_to_one_that_is_not_there(
    layout: Layout, tmp_path: Path, places: FolderPlaces
) -> None:
    server, served = _lmcache(tmp_path, places), _served("lmcache-mp")
    assert server.stored(served, _PROMPT, layout) == []
    values = _numbers(2, layout.planes, 2, 32, layout.width)  # chunk, plane, layer, token, number
    files = [places.place / name for name in _names("lmcache-mp")]
    files[1].write_bytes(values[1].tobytes())
    assert server.stored(served, _PROMPT, layout) == []  # what nobody would read: its beginning is not there
    files[0].write_bytes(values[0].tobytes())
    found = server.stored(served, _PROMPT, layout)
    assert np.array_equal(np.stack(found), values.swapaxes(1, 2))


@pytest.mark.parametrize("size", [0, 2 * 2 * 32 * 16 - 2, 2 * 2 * 32 * 16 + 2, 2 * 2 * 32 * 16 - 1])
def test_a_chunk_of_another_size_is_not_compared(size: int, tmp_path: Path, places: FolderPlaces) -> None:
    server = _lmcache(tmp_path, places)
    (places.place / _names("lmcache-mp")[0]).write_bytes(bytes(size))
    with pytest.raises(UnlikeError):
        server.stored(_served("lmcache-mp"), _PROMPT, _LAYOUT)


_TWO = replace(_LAYOUT, ranks=2)
_RANKS = ("0x02000200", "0x02010201")


def _of_ranks(places: FolderPlaces, values: Any, ranks: tuple[str, ...] = _RANKS) -> None:
    for rank, value in zip(ranks, values, strict=False):
        (places.place / _names("lmcache-mp")[0].replace("0x01000100", rank)).write_bytes(value.tobytes())


def test_chunks_of_several_ranks_are_put_together(tmp_path: Path, places: FolderPlaces) -> None:
    server, served = _lmcache(tmp_path, places), _served("lmcache-mp")
    values = _numbers(2, 2, 32, 16)  # rank, layer, token, number
    _of_ranks(places, values)
    (found,) = server.stored(served, _PROMPT, _TWO)
    assert np.array_equal(found, np.concatenate(list(values), axis=-1)[:, None])


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [(_LAYOUT, _RANKS), (_TWO, _RANKS[:1]), (_TWO, ("0x01000100",)), (_TWO, ("0x01000100", _RANKS[1]))],
)
def test_chunks_of_other_ranks_are_not_compared(
    layout: Layout, ranks: tuple[str, ...], tmp_path: Path, places: FolderPlaces
) -> None:
    server = _lmcache(tmp_path, places)
    _of_ranks(places, _numbers(2, 2, 32, 16), ranks)
    with pytest.raises(UnlikeError):
        server.stored(_served("lmcache-mp"), _PROMPT, layout)


def test_files_that_all_ranks_write_are_not_compared(places: FolderPlaces) -> None:
    _written(places, _numbers(2, _KEPT, 2, 8))
    assert ExampleConnector(places).stored(_served("vllm-example"), _PROMPT, _TWO) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "files"),
        ({"cache.location": "file:///kv"}, "files"),
        ({"cache.location": "redis://cache-1:6379/0"}, "redis"),
        ({"cache.location": "s3://bucket/kv"}, None),
        ({"cache.chunk_size": None}, None),
        ({"cache.connector": "vllm-example", "cache.version": None}, "example"),
        ({"cache.connector": "sglang-hicache-file"}, None),
    ],
)
def test_what_can_be_started(change: dict[str, Any], kind: str | None) -> None:
    if kind is None:
        with pytest.raises(CannotStageError):
            kind_of(deployment(change))
    else:
        assert kind_of(deployment(change)) == kind
