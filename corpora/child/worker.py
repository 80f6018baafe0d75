"""The child process of :mod:`kvgate.corpora.child.bounded`: limits itself first, then does one job."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import IO, Any

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.child.position import Position
from kvgate.rules.errors import InputError


class Channel:
    """The child's end of the pipe to the process that started it."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], position: Position) -> None:
        self._requests = requests
        self._answers = answers
        self.position = position

    def request(self) -> dict[str, Any] | None:
        """Return what is to be done; ``None``: the other process is gone."""
        line = self._requests.readline()
        return json.loads(line) if line else None

    def feed(self) -> Iterator[list[dict[str, Any]]]:
        """Yield what is to be worked on, a batch at a time, until there is no more."""
        while line := self._requests.readline():
            yield json.loads(line)

    def step(self, name: str, what: str, where: str | None) -> None:
        """Say what begins now: the limit called ``name`` runs from here, and ``what`` begins its message."""
        self._send({"step": name, "what": what, "where": where})

    def item(self, value: Any) -> None:
        """Hand over an intermediate result."""
        self._send({"item": value})

    def lines(self, data: bytes, count: int) -> None:
        """Hand over finished lines, which the other process copies without reading them."""
        self._answers.write(json.dumps({"lines": count, "bytes": len(data)}).encode("ascii") + b"\n" + data)
        self._answers.flush()

    def answer(self, value: Any) -> None:
        """Hand over the result: the job is done."""
        self._send({"answer": value})

    def refuse(self, error: InputError) -> None:
        """Say that the input is at fault."""
        self._send({"refused": {"message": error.message, "where": error.where, "hint": error.hint}})

    def out_of_memory(self, limit: int) -> None:
        """Say that ``limit`` bytes were not enough."""
        self._send({"memory": limit})

    def fail(self, trace: str) -> None:
        """Say that kvgate is at fault."""
        self._send({"failed": trace})

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message).encode("ascii") + b"\n")
        self._answers.flush()


class Allowance:
    """The memory limit of this process, which shrinks once the trusted part of the work is done."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.in_force = limits.memory_bytes
        # RLIMIT_DATA counts what is written to; RLIMIT_AS also counts mapped files and reservations, so it is
        # only the second line. Neither is kept by every system: the clock still is.
        _limit(resource.RLIMIT_DATA, limits.memory_bytes)
        _limit(resource.RLIMIT_AS, 2 * limits.memory_bytes + (4 << 30))
        _limit(resource.RLIMIT_CPU, limits.processor_seconds)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_FSIZE, 0)  # this process writes no file

    def extend(self, conversations: int) -> None:
        """Allow the processor time that so many conversations may take in all."""
        _limit(resource.RLIMIT_CPU, self._limits.processor_seconds + conversations // 2)

    def shrink(self) -> None:
        """Allow ``template_bytes`` beyond what is in use now: a template comes next."""
        with contextlib.suppress(OSError):
            with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - not a file but a kernel interface
                used = int(statm.read().split()[5]) * resource.getpagesize()
            _limit(resource.RLIMIT_DATA, min(self._limits.memory_bytes, used + self._limits.template_bytes))
            self.in_force = self._limits.template_bytes


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (value, hard))


def _die_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written to it: it ends when the other process does
    os._exit(1)


def _run(request: dict[str, Any], channel: Channel) -> None:
    limits = Limits(**request["limits"])
    allowance = Allowance(limits)
    try:
        # torch is installed on serving machines, and loading it would double the start-up time for nothing:
        # no tokenizer needs it. transformers then takes it for absent.
        sys.modules["torch"] = None  # type: ignore[assignment]
        from kvgate.corpora.rendering.examination import examine_here
        from kvgate.corpora.sweeps.here import sweep_here

        jobs = {"examine": examine_here, "sweep": sweep_here}
        channel.answer(jobs[request["job"]](request["arguments"], limits, channel, allowance))
    except InputError as error:
        channel.refuse(error)
    except MemoryError:
        channel.out_of_memory(allowance.in_force)
    except Exception:
        channel.fail(traceback.format_exc())


def main() -> None:
    """Do what is asked for on standard input, and write messages to what was standard output.

    Two descriptors come as arguments: one that closes when the other process is gone, and the file of
    :mod:`kvgate.corpora.child.position`.
    """
    lifeline, position = (int(number) for number in sys.argv[1:])
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    # Libraries print; only this channel may write to the pipe.
    channel = Channel(os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb"), Position(position))
    os.dup2(2, 1)
    request = channel.request()
    if request is not None:
        _run(request, channel)
    sys.stderr.flush()
    os._exit(0)  # the watching thread waits for ever; there is nothing to clean up


if __name__ == "__main__":
    main()
