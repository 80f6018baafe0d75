"""The child process of :mod:`kvgate.corpora.bounded`: limits itself first, then does one job."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import traceback
from typing import IO, Any

from kvgate.corpora.limits import Limits
from kvgate.rules.errors import InputError


class Channel:
    """The child's end of the pipe to the process that started it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    def step(self, name: str, what: str, where: str | None) -> None:
        """Say what begins now: the limit called ``name`` runs from here, and ``what`` begins its message."""
        self._send({"step": name, "what": what, "where": where})

    def item(self, value: Any) -> None:
        """Hand over an intermediate result."""
        self._send({"item": value})

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
        self._pipe.write(json.dumps(message).encode("ascii") + b"\n")
        self._pipe.flush()


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


def _die_with_parent(pipe: IO[bytes]) -> None:
    pipe.read(1)
    os._exit(1)


def _run(request: dict[str, Any], channel: Channel) -> None:
    limits = Limits(**request["limits"])
    allowance = Allowance(limits)
    try:
        # torch is installed on serving machines, and loading it would double the start-up time for nothing:
        # no tokenizer needs it. transformers then takes it for absent.
        sys.modules["torch"] = None  # type: ignore[assignment]
        from kvgate.corpora.examination import examine_here
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
    """Read one request from standard input, do it, and write messages to what was standard output."""
    # Libraries print; only this channel may write to the pipe.
    channel = Channel(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    pipe = os.fdopen(0, "rb")
    line = pipe.readline()
    if not line:
        return
    threading.Thread(target=_die_with_parent, args=(pipe,), daemon=True).start()
    _run(json.loads(line), channel)
    sys.stderr.flush()
    os._exit(0)  # the watching thread holds the pipe; there is nothing to clean up


if __name__ == "__main__":
    main()
