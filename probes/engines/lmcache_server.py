"""LMCache's server, started in front of scratch stores: files, or a Redis.

An entry is the KV of one chunk of tokens, as it lies in the engine, with nothing in front: (layer, token, number) where
keys and values lie together, (2, layer, token, number) where they lie apart. Source: lmcache 0.5.6 wheel,
v1/distributed/l2_adapters/fs_l2_adapter.py, v1/multiprocess/modules/engine_driven_transfer.py
(``register_kv_cache_engine_driven_context``).
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvgate.corpora.endpoints.client import Client
from kvgate.probes.engines.entries import Stretch, foretold, stored
from kvgate.probes.engines.layout import Layout, UnlikeError
from kvgate.probes.engines.places import FolderPlaces, Places, RedisPlaces
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request

_ID = "lmcache-mp"
_LOOPBACK = "127.0.0.1"
_PATIENCE = 10.0  # until what is locked in LMCache's memory is taken for left behind
_SECONDS = 60.0  # within which a server must answer, and an entry must have been written


class LMCacheServer:
    """One server with one store behind its memory.

    Args:
        program: what starts it.
        chunk: tokens that are stored together.
        places: of the store.

    """

    def __init__(self, program: Program, chunk: int, places: FolderPlaces | RedisPlaces) -> None:
        self._chunk = chunk
        self.places: Places = places
        folder = program.folder("lmcache")
        if isinstance(places, FolderPlaces):
            places.put("none", "", keeps=True)  # LMCache wants a folder when it starts
            adapter: dict[str, Any] = {"type": "fs", "base_path": str(places.place)}
        else:
            adapter = {"type": "resp", "host": _LOOPBACK, "port": int(places.url.rpartition(":")[2])}
        port, http, metrics = (_free_port() for _ in range(3))
        arguments = ["server", "--eviction-policy", "LRU", "--chunk-size", str(chunk), "--l1-size-gb", "0.25"]
        arguments += ["--host", _LOOPBACK, "--port", str(port), "--http-host", _LOOPBACK, "--http-port", str(http)]
        arguments += ["--prometheus-port", str(metrics), "--supported-transfer-mode", "auto"]
        arguments += ["--l2-adapter", json.dumps(adapter)]
        program.serve(folder, arguments)
        self._url = f"http://{_LOOPBACK}:{http}"
        server = {"lmcache.mp.host": f"tcp://{_LOOPBACK}", "lmcache.mp.port": port, "lmcache.mp.mq_timeout": _SECONDS}
        self.transfer: Mapping[str, Any] = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": server,
        }

    def forget(self) -> None:
        """Empty the server's memory, so that what is read comes from the store."""
        begun = time.monotonic()
        # An engine that failed on what it read has left that locked, for minutes.
        while not self._emptied(by_force=time.monotonic() > begun + _PATIENCE):
            if time.monotonic() > begun + _SECONDS:
                raise CannotStageError("LMCache's server does not empty its memory")
            time.sleep(0.05)

    def _emptied(self, *, by_force: bool) -> bool:
        """Ask for it; what is just being read or written stays, and is asked for again."""
        try:
            with Client(self._url) as client:
                cleared, status = client.post("/cache/clear", {"force": by_force}), client.get("/status")
        except InputError:
            return False  # it is not up yet
        left = list(_counts(status.data))
        return cleared.ok and bool(left) and not any(left)

    def settled(self, manifest: Manifest, request: Request) -> None:
        """Wait until every chunk that the connector's scheme foretells lies in the store."""
        wanted = set(foretold(_ID, manifest, request))
        until = time.monotonic() + _SECONDS
        while not wanted <= stored(_ID, self.places).keys():
            if time.monotonic() > until:
                raise CannotStageError("LMCache does not write all chunks of a prompt")
            time.sleep(0.05)

    def held(self, manifest: Manifest, request: Request) -> int:
        """See :class:`kvgate.probes.engines.connectors.Connector`."""
        there = stored(_ID, self.places)
        leading = itertools.takewhile(there.__contains__, foretold(_ID, manifest, request))
        return self._chunk * sum(1 for _ in leading)

    def stored(self, manifest: Manifest, request: Request, layout: Layout) -> list[Stretch]:
        """See :class:`kvgate.probes.engines.connectors.Connector`."""
        import numpy as np

        there = stored(_ID, self.places)
        planes, layers = layout.planes, len(layout.layers)
        size = self._chunk * layers * layout.token_bytes
        read = []
        for entry in itertools.takewhile(there.__contains__, foretold(_ID, manifest, request)):
            pieces = sorted(there[entry], key=lambda key: int(key.fields["worker"]))
            if {key.fields["world_size"] for key in pieces} != {layout.ranks} or len(pieces) != layout.ranks:
                raise UnlikeError("other ranks")
            shape = (planes, layers, self._chunk, layout.width)
            each = [layout.array(self.places.read(key.name, size), shape).swapaxes(0, 1) for key in pieces]
            read.append(np.concatenate(each, axis=-1))
        return read


def _counts(status: Any) -> Iterator[int]:
    """Yield how many entries each part of the server's memory holds (report_status of l1_manager.py, 0.5.6)."""
    if isinstance(status, dict):
        for name, value in status.items():
            if name == "total_object_count":
                yield value
            else:
                yield from _counts(value)


def start_redis(program: Program, redis: Path) -> RedisPlaces:
    """Start a Redis that keeps nothing on disk, and return its databases.

    Raises:
        CannotStageError: it does not answer.

    """
    port = _free_port()
    folder = program.folder("redis")
    arguments = ["--bind", _LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no", "--databases", "64"]
    program.serve(folder, [*arguments, "--dir", str(folder)], program=redis)
    until = time.monotonic() + _SECONDS
    while True:
        with socket.socket() as tried:
            if tried.connect_ex((_LOOPBACK, port)) == 0:
                return RedisPlaces(f"redis://{_LOOPBACK}:{port}")
        if time.monotonic() > until:
            raise CannotStageError("the Redis that was started does not answer")
        time.sleep(0.05)


def _free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port: int = free.getsockname()[1]
    return port
