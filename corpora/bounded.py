"""Runs kvgate's own functions on untrusted files in a child process that is bounded, and can be stopped.

Request and answers are JSON lines over pipes: nothing is pickled, so a child that was taken over cannot
answer with code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from kvgate.corpora.limits import Limits
from kvgate.rules.errors import InputError

_STDERR_KEPT = 4096

# What the child must not inherit: credentials it has no use for.
_WITHHELD = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    # One thread each: on a host with many cores the pools alone would use up the memory limit.
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
}


@dataclasses.dataclass
class _Step:
    """What the child is at: it says so before it begins, so that a limit can name it."""

    name: str = "start"
    what: str = "starting the renderer's process"
    where: str | None = None
    began: float = dataclasses.field(default_factory=time.monotonic)


def run_bounded(
    job: str,
    arguments: Mapping[str, Any],
    *,
    limits: Limits,
    conversations: int = 0,
    on_item: Callable[[Any], None],
) -> Any:
    """Run ``job`` of :mod:`kvgate.corpora.worker` in a child process and return its answer.

    The child gets its own session and dies with this process, on Ctrl-C, and at every limit.

    Args:
        job: a name the worker knows.
        arguments: what the job takes; JSON values.
        limits: the bounds.
        conversations: how many will be rendered: each adds to the time allowed in all.
        on_item: called with every intermediate result, in order.

    Raises:
        InputError: a limit was passed, the child crashed on its input, or the job refused it.
        RuntimeError: the job failed in a way that is a defect of kvgate, with the child's traceback.

    """
    request = json.dumps({"job": job, "arguments": arguments, "limits": dataclasses.asdict(limits)})
    environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvgate.corpora.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | _ENVIRONMENT,
        cwd="/",  # `-m` puts the working directory on the import path; nobody else can write here
        start_new_session=True,
    )
    try:
        return _Conversation(process, request, limits, conversations).listen(on_item)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no orphan: kill the child's whole group, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class _Conversation:
    """The parent's end of the pipes: sends the request, watches the clock, sorts what comes back."""

    def __init__(self, process: subprocess.Popen[bytes], request: str, limits: Limits, conversations: int) -> None:
        self._process = process
        self._limits = limits
        self._line_bytes = 32 * limits.text_bytes  # the text, escaped, and its ids, on two dates
        render_total = limits.render_total_seconds + 0.1 * conversations
        self._each = {
            "start": limits.load_seconds,
            "load": limits.load_seconds,
            "parse": limits.parse_seconds,
            "render": limits.render_seconds,
            "sweep": limits.sweep_seconds,
        }
        self._total = {"render": render_total, "sweep": limits.sweep_total_seconds}
        self._left = dict(self._total)
        self._step = _Step()
        self._errors = b""
        assert process.stdin is not None  # noqa: S101 - Popen was asked for the pipe
        # A thread, because a request larger than the pipe would block while the child already answers. The
        # pipe stays open: that it closes tells the child that this process is gone.
        threading.Thread(target=_send, args=(process.stdin, request.encode("ascii") + b"\n"), daemon=True).start()

    def listen(self, on_item: Callable[[Any], None]) -> Any:
        """Read messages until the answer."""
        assert self._process.stdout is not None  # noqa: S101 - Popen was asked for the pipes
        assert self._process.stderr is not None  # noqa: S101
        pending = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ, True)
            selector.register(self._process.stderr, selectors.EVENT_READ, False)
            while selector.get_map():
                ready = selector.select(self._seconds_left())
                if not ready and self._seconds_left() <= 0:
                    raise self._too_slow()
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 18)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data:
                        pending += data
                        if b"\n" in data:
                            *lines, rest = bytes(pending).split(b"\n")
                            pending = bytearray(rest)
                            for line in lines:
                                message = json.loads(line)
                                if "answer" in message:
                                    return message["answer"]
                                self._take(message, on_item)
                        if len(pending) > self._line_bytes:
                            raise self._refusal("gives more output than can be handled")
                    else:
                        self._errors = (self._errors + data)[-_STDERR_KEPT:]
        raise self._died()

    def _take(self, message: dict[str, Any], on_item: Callable[[Any], None]) -> None:
        if "step" in message:
            self._spend()
            self._step = _Step(message["step"], message["what"], message["where"])
            if self._seconds_left() <= 0:
                raise self._too_slow()
        elif "item" in message:
            on_item(message["item"])
        elif "refused" in message:
            raise InputError(**message["refused"])
        elif "memory" in message:
            raise self._refusal(f"needs more memory than the limit of {message['memory'] >> 20} MiB")
        else:
            raise RuntimeError(f"the renderer's process failed:\n{message['failed']}")

    def _spend(self) -> None:
        if self._step.name in self._left:
            self._left[self._step.name] -= time.monotonic() - self._step.began

    def _seconds_left(self) -> float:
        allowed = min(self._each[self._step.name], self._left.get(self._step.name, float("inf")))
        return max(0.0, self._step.began + allowed - time.monotonic())

    def _too_slow(self) -> InputError:
        each = self._each[self._step.name]
        if self._left.get(self._step.name, each) < each:
            return self._refusal(f"took more than {self._total[self._step.name]:g} s in all")
        return self._refusal(f"did not finish within {each:g} s")

    def _refusal(self, what: str) -> InputError:
        return InputError(f"{self._step.what} {what}", where=self._step.where)

    def _died(self) -> InputError | RuntimeError:
        code = self._process.wait()
        words = " ".join(self._errors.decode("utf-8", "replace").split())[-300:]
        if code == -signal.SIGXCPU:
            return self._refusal(f"used more than {self._limits.processor_seconds} s of processor time")
        if code < 0:
            name = signal.Signals(-code).name
            # An allocation that the limit refuses aborts native code, and the kernel kills on its own limit.
            return self._refusal(
                f"ended the child process with {name}, most likely for want of memory" + (f": {words}" if words else "")
            )
        return RuntimeError(f"the renderer's process ended with {code} and no answer: {words}")


def _send(pipe: IO[bytes], data: bytes) -> None:
    # A child that is gone is noticed where its answer is read.
    with contextlib.suppress(OSError, ValueError):
        pipe.write(data)
        pipe.flush()
