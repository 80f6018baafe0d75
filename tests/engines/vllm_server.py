"""A real vLLM with its OpenAI server on the loopback interface, on the CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvgate.corpora.endpoints.client import Client
from kvgate.rules.errors import InputError
from tests.engines.install import environment, installed
from tests.engines.servers import free_port

MINUTES = 900  # a hang guard


@contextmanager
def vllm(model: Path, extension: str, ranks: int, log: Path, *more: str) -> Iterator[str]:
    """Serve a model, and yield the URL; its workers have an extension, and its development mode is on.

    Args:
        model: its folder.
        extension: the workers' class.
        ranks: how many there are.
        log: where the server's words go.
        more: further flags, which go before those that are given here.

    """
    port = free_port()
    small = ["--dtype", "bfloat16", "--max-model-len", "64", "--block-size", "32", "--max-num-seqs", "2"]
    program = Path(__file__).parent / "programs" / "serve_openai.py"
    command = [sys.executable, str(program), "--model", str(model), *small]
    command += ["--enforce-eager", "--skip-tokenizer-init", "--tensor-parallel-size", str(ranks)]
    command += ["--worker-extension-cls", extension, "--host", "127.0.0.1", "--port", str(port), *more]
    with log.open("wb") as said:
        server = subprocess.Popen(
            command,
            env={**environment(installed("vllm")), "VLLM_SERVER_DEV_MODE": "1"},
            cwd=log.parent,  # not the repository's: its folders would shadow packages
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(server, url, log)
            yield url
        finally:
            _end(server)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + MINUTES
    while server.poll() is None and time.monotonic() < until:
        with suppress(InputError), Client(url) as client:
            if client.get("/version").ok:
                return
        time.sleep(0.2)
    raise AssertionError(f"vLLM does not serve: {log.read_text(errors='replace')[-4000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, and end what is left of its own processes: they are a session."""
    shared = _shared_memory(server.pid)
    server.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        server.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    for file in shared:
        file.unlink(missing_ok=True)


def _shared_memory(session: int) -> set[Path]:
    """Return the shared memory of a session's processes, which vLLM on the CPU leaves behind (0.32.0)."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(process.name)) == session:
                found |= set(map(Path, re.findall(r"/dev/shm/(?:vllm_dist|psm)_\S+", (process / "maps").read_text())))
    return found
