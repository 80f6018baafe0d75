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
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.child.position import Position, shared
from kvgate.rules.errors import InputError

_STDERR_KEPT = 4096
_BLOCK = 1 << 18
_PER_CONVERSATION = 256 << 10  # bytes of output: a long system prompt in the template, on two dates
_LOOKS = 0.05  # seconds between two looks at the child's position
# On a host with many cores the stacks and heaps of the threads alone would use up the memory limit.
_THREADS = 8

# What the child must not inherit: credentials it has no use for.
_WITHHELD = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Conversations for the child: their ids, so that one that passes a limit can be named, and one line of JSON."""

    names: tuple[str, ...]
    line: bytes


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
    on_item: Callable[[Any], None],
    feed: Iterable[Batch] = (),
    on_lines: Callable[[bytes, int], None] | None = None,
) -> Any:
    """Run ``job`` of :mod:`kvgate.corpora.child.worker` in a child process and return its answer.

    The child gets its own session and dies with this process, on Ctrl-C, and at every limit.

    Args:
        job: a name the worker knows.
        arguments: what the job takes; JSON values.
        limits: the bounds.
        on_item: called with every intermediate result, in order.
        feed: what the job works on, asked for as the child gets on; every conversation adds to the time allowed in all.
        on_lines: called with pieces of the finished lines as they come, each with the number of lines that end with it.

    Raises:
        InputError: a limit was passed, the child crashed on its input, or the job refused it.
        RuntimeError: the job failed in a way that is a defect of kvgate, with the child's traceback.

    """
    request = json.dumps({"job": job, "arguments": arguments, "limits": dataclasses.asdict(limits)}).encode("ascii")
    with contextlib.ExitStack() as stack:
        lifeline, held = os.pipe()  # never written to: it closes with this process
        stack.callback(os.close, held)
        try:
            cell = shared()
            position = Position(cell)
            stack.callback(position.close)
            process = _start(lifeline, cell)
        finally:
            os.close(lifeline)
            os.close(cell)
        stack.callback(_end, process)
        return _Talk(process, request + b"\n", iter(feed), position, limits).listen(on_item, on_lines)


def _start(lifeline: int, cell: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    threads = min(_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return subprocess.Popen(  # noqa: S603 - this interpreter, and numbers
        [sys.executable, "-m", "kvgate.corpora.child.worker", str(lifeline), str(cell)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | _ENVIRONMENT | {"RAYON_NUM_THREADS": str(threads)},
        cwd="/",  # `-m` puts the working directory on the import path; nobody else can write here
        start_new_session=True,
        pass_fds=(lifeline, cell),
    )


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


class _Talk:
    """The parent's end of the pipes: sends request and conversations, watches the clock, sorts what comes back."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        request: bytes,
        feed: Iterator[Batch],
        position: Position,
        limits: Limits,
    ) -> None:
        self._process = process
        self._limits = limits
        self._feed = feed
        self._unsent = memoryview(request)
        self._position = position
        self._moved = (position.get(), time.monotonic())
        self._names: deque[str] = deque()  # of conversations that were sent and have not come back
        self._returned = 0
        self._sent = 0
        self._allowed = limits.output_bytes
        self._line_bytes = 32 * limits.text_bytes  # the text, escaped, and its ids, on two dates
        self._coming = (0, 0)  # bytes and lines of the finished lines that are on their way
        self._each = {
            "start": limits.load_seconds,
            "load": limits.load_seconds,
            "parse": limits.parse_seconds,
            "sweep": limits.sweep_seconds,
        }
        self._left = {"render": limits.render_total_seconds, "sweep": limits.sweep_total_seconds}
        self._total = dict(self._left)
        self._step = _Step()
        self._errors = b""

    def listen(self, on_item: Callable[[Any], None], on_lines: Callable[[bytes, int], None] | None) -> Any:
        """Send, and read messages until the answer."""
        source, sink, errors = self._process.stdout, self._process.stdin, self._process.stderr
        assert source is not None  # noqa: S101 - Popen was asked for the pipes
        assert sink is not None  # noqa: S101
        assert errors is not None  # noqa: S101
        os.set_blocking(sink.fileno(), False)
        pending = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            selector.register(errors, selectors.EVENT_READ)
            selector.register(sink, selectors.EVENT_WRITE)
            while source.fileno() in selector.get_map() or errors.fileno() in selector.get_map():
                ready = selector.select(min(self._seconds_left(), _LOOKS))
                if self._seconds_left() <= 0 and not any(key.fileobj is source for key, _ in ready):
                    raise self._too_slow()
                for key, _ in ready:
                    if key.fileobj is sink:
                        if not self._send(sink.fileno()):
                            selector.unregister(sink)
                            sink.close()  # there is no more: the child's input ends here
                        continue
                    data = os.read(key.fd, _BLOCK)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is errors:
                        self._errors = (self._errors + data)[-_STDERR_KEPT:]
                    else:
                        pending += data
                        for message in self._messages(pending, on_lines):
                            if "answer" in message:
                                return message["answer"]
                            self._take(message, on_item)
        raise self._died()

    def _send(self, sink: int) -> bool:
        """Write what the pipe takes; whether there may be more to send."""
        if not self._unsent:
            batch = next(self._feed, None)
            if batch is None:
                return False
            self._names.extend(batch.names)
            self._sent += len(batch.names)
            self._allowed += _PER_CONVERSATION * len(batch.names) + 64 * len(batch.line)
            for left in (self._left, self._total):
                left["render"] += 0.1 * len(batch.names)
            self._unsent = memoryview(batch.line)
        try:
            self._unsent = self._unsent[os.write(sink, self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:  # a child that is gone is noticed where its answer is read
            return False
        return True

    def _messages(self, pending: bytearray, on_lines: Callable[[bytes, int], None] | None) -> Iterator[dict[str, Any]]:
        """Take the messages out of what was read, and hand over finished lines as they come."""
        while pending:
            size, lines = self._coming
            if size:
                piece = bytes(pending[:size])
                del pending[:size]
                self._allowed -= len(piece)
                if self._allowed < 0:
                    raise self._refusal("gives more output than can be handled")
                self._coming = (size - len(piece), lines)
                ended = lines if len(piece) == size else 0
                for _ in range(min(ended, len(self._names))):
                    self._names.popleft()
                self._returned += ended
                if on_lines is not None:
                    on_lines(piece, ended)
                continue
            end = pending.find(b"\n")
            if end < 0:
                if len(pending) > self._line_bytes:
                    raise self._refusal("gives more output than can be handled")
                return
            message = json.loads(bytes(pending[:end]))
            del pending[: end + 1]
            if "lines" in message:
                self._coming = (message["bytes"], message["lines"])
            else:
                yield message

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

    def _each_limit(self) -> tuple[float, float]:
        """Return how long what the child is at may take, and since when it has been at it."""
        if self._step.name != "render":
            return self._each[self._step.name], self._step.began
        now, (seen, since) = self._position.get(), self._moved
        if now != seen:
            since = time.monotonic()
            self._moved = (now, since)
        limits = {
            "rendering": self._limits.render_seconds,
            "encoding": self._limits.encode_seconds,
            "waiting": float("inf"),  # for conversations, which it gets from here
        }
        return limits[now[2]], max(since, self._step.began)

    def _seconds_left(self) -> float:
        each, since = self._each_limit()
        total = self._left.get(self._step.name, float("inf"))
        now = time.monotonic()
        return max(0.0, min(since + each - now, self._step.began + total - now))

    def _too_slow(self) -> InputError:
        each, since = self._each_limit()
        if time.monotonic() - since >= each:
            return self._refusal(f"did not finish within {each:g} s")
        return self._refusal(f"took more than {self._total[self._step.name]:g} s in all")

    def _refusal(self, what: str) -> InputError:
        return InputError(f"{self._what()} {what}", where=self._step.where)

    def _what(self) -> str:
        if self._step.name != "render":
            return self._step.what
        _, conversation, doing = self._position.get()
        index = conversation - self._returned
        if not 0 <= index < len(self._names):
            return self._step.what
        if doing == "encoding":
            return f"encoding the conversations up to {self._names[index]!r}"
        return f"rendering the chat template on conversation {self._names[index]!r}"

    def _died(self) -> InputError | RuntimeError:
        code = self._process.wait()
        words = " ".join(self._errors.decode("utf-8", "replace").split())[-300:]
        if code == -signal.SIGXCPU:
            return self._refusal(
                f"used more than {self._limits.processor_seconds + self._sent // 2} s of processor time"
            )
        if code < 0:
            name = signal.Signals(-code).name
            # An allocation that the limit refuses aborts native code, and the kernel kills on its own limit.
            return self._refusal(
                f"ended the child process with {name}, most likely for want of memory" + (f": {words}" if words else "")
            )
        return RuntimeError(f"the renderer's process ended with {code} and no answer: {words}")
