"""Connectors that are started for a rehearsal: vLLM's example connector, and LMCache's server on files or a Redis."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from kvgate.corpora.endpoints.client import Client
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.places import FolderPlaces, Places, RedisPlaces
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest
from kvgate.rules.places import tiers
from kvgate.rules.profile import cover
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Request, Scheme

_LOOPBACK = "127.0.0.1"
_PATIENCE = 10.0  # until what is locked in LMCache's memory is taken for left behind
_SECONDS = 60.0  # within which a server must answer, and an entry must have been written


class Connector(Protocol):
    """What stands between engines and scratch stores."""

    transfer: Mapping[str, Any]
    """The engine's ``--kv-transfer-config``, but for what a launch line has beside it."""

    places: Places

    def forget(self) -> None:
        """Have it forget what it remembers of the store that was in place before."""

    def settled(self, manifest: Manifest, request: Request) -> None:
        """Wait until all of a prompt that is ever written has been.

        Raises:
            CannotStageError: it does not come.

        """

    def held(self, manifest: Manifest, request: Request) -> int:
        """Return how many tokens of a prompt lie in the store that is in place."""


def connector_for(manifest: Manifest, program: Program, installation: Installation) -> Connector:
    """Start what one deployment stores with.

    Raises:
        CannotStageError: nothing that is started here.

    """
    covered = cover(manifest)
    name = covered.profile.id if covered.profile is not None else manifest.value("cache.connector")
    if name == "vllm-example":
        return ExampleConnector(program)
    if name != "lmcache-mp":
        raise CannotStageError(f"cache.connector: {name} is not started here; vllm-example and lmcache-mp are")
    kinds = {
        tier.partition("://")[0] if "://" in tier else "file" for tier in tiers(str(manifest.value("cache.location")))
    }
    if len(kinds) != 1 or not kinds <= {"file", "fs", "redis", "rediss"}:
        raise CannotStageError(
            f"cache.location: LMCache is started here on files or on one Redis, not on {sorted(kinds)}"
        )
    chunk = manifest.value("cache.chunk_size")
    if chunk is None:
        raise CannotStageError("cache.chunk_size is not known")
    redis = installation.redis
    if kinds <= {"file", "fs"}:
        return LMCacheServer(program, int(chunk), None)
    if redis is None:
        raise CannotStageError("cache.location is a Redis, and there is no redis-server to start")
    return LMCacheServer(program, int(chunk), redis)


class ExampleConnector:
    """vLLM's own, which writes files before it answers."""

    def __init__(self, program: Program) -> None:
        places = FolderPlaces(program.folder("example"))
        self.places: Places = places
        self.transfer: Mapping[str, Any] = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(places.place)},
        }

    def forget(self) -> None:
        """Nothing: it looks at the folder every time."""

    def settled(self, manifest: Manifest, request: Request) -> None:
        """Nothing: what it writes is there before the answer."""

    def held(self, manifest: Manifest, request: Request) -> int:
        """See :class:`Connector`: it stores whole prompts."""
        block = int(manifest.value("engine.block_size") or 1)
        found = set(_foretold("vllm-example", manifest, request)) & _stored("vllm-example", self.places)
        return (len(request.token_ids) - 1) // block * block if found else 0


class LMCacheServer:
    """LMCache's server with one store behind its memory.

    Args:
        program: what starts it.
        chunk: tokens that are stored together.
        redis: a program to store with; ``None``: files.

    """

    def __init__(self, program: Program, chunk: int, redis: Path | None) -> None:
        self._chunk = chunk
        folder = program.folder("lmcache")
        if redis is None:
            folders = FolderPlaces(folder / "files")
            folders.put("none", "", keeps=True)  # LMCache wants a folder when it starts
            self.places: Places = folders
            adapter: dict[str, Any] = {"type": "fs", "base_path": str(folders.place)}
        else:
            url = _start_redis(program, redis, folder)
            self.places = RedisPlaces(url)
            adapter = {"type": "resp", "host": _LOOPBACK, "port": int(url.rpartition(":")[2])}
        port, http, metrics = (free_port() for _ in range(3))
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
        wanted = set(_foretold("lmcache-mp", manifest, request))
        until = time.monotonic() + _SECONDS
        while not wanted <= _stored("lmcache-mp", self.places):
            if time.monotonic() > until:
                raise CannotStageError("LMCache does not write all chunks of a prompt")
            time.sleep(0.05)

    def held(self, manifest: Manifest, request: Request) -> int:
        """See :class:`Connector`."""
        there = _stored("lmcache-mp", self.places)
        leading = itertools.takewhile(there.__contains__, _foretold("lmcache-mp", manifest, request))
        return self._chunk * sum(1 for _ in leading)


_Entry = tuple[str | None, str | None]
"""Namespace and hash of an entry: the model is another path where a stand-in answers, and layers are fewer."""


def _foretold(scheme_id: str, manifest: Manifest, request: Request) -> list[_Entry]:
    scheme = SCHEMES[scheme_id]
    found = scheme.predict(manifest, request)
    if found.names is None:
        raise CannotStageError(f"under which names entries lie is not known: {'; '.join(found.unknown)}")
    return list(dict.fromkeys(_entries(scheme, found.names)))


def _stored(scheme_id: str, places: Places) -> set[_Entry]:
    return set(_entries(SCHEMES[scheme_id], places.names()))


def _entries(scheme: Scheme, names: Iterable[str]) -> Iterator[_Entry]:
    for name in names:
        if (found := scheme.parse(name)) is not None:
            yield found.namespace, found.hash


def _counts(status: Any) -> Iterator[int]:
    """Yield how many entries each part of the server's memory holds (report_status of l1_manager.py, 0.5.6)."""
    if isinstance(status, dict):
        for name, value in status.items():
            if name == "total_object_count":
                yield value
            else:
                yield from _counts(value)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port: int = free.getsockname()[1]
    return port


def _start_redis(program: Program, redis: Path, folder: Path) -> str:
    port = free_port()
    arguments = ["--bind", _LOOPBACK, "--port", str(port), "--save", "", "--appendonly", "no", "--databases", "64"]
    program.serve(folder, [*arguments, "--dir", str(folder)], program=redis)
    until = time.monotonic() + _SECONDS
    while True:
        with socket.socket() as tried:
            if tried.connect_ex((_LOOPBACK, port)) == 0:
                return f"redis://{_LOOPBACK}:{port}"
        if time.monotonic() > until:
            raise CannotStageError("the Redis that was started does not answer")
        time.sleep(0.05)
