"""The parent's end of a child process: one request, one answer, each within its time, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvgate.probes.rehearsal.backend import CannotStageError

_LONGEST = 64 << 20  # bytes of one answer
_WITHHELD = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
_SAID = 2000  # bytes of its last words that are looked at


class ChildProcess:
    """One child process for a whole rehearsal, with its scratch folder.

    It is given two arguments: a descriptor that closes when this process ends, whatever ends it, and the folder.

    Args:
        command: what to run.
        environment: on top of this process's own, without what looks like a credential.
        seconds: how long one answer may take.
        dropped: variables of this process's own that it does not get, by how they begin.
        speaks: keep what it says in ``log`` in its folder, for messages.

    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        seconds: float,
        dropped: tuple[str, ...] = (),
        speaks: bool = False,
    ) -> None:
        self._seconds = seconds
        self.scratch = Path(tempfile.mkdtemp(prefix="kvgate-rehearsal-"))
        self._process: subprocess.Popen[bytes] | None = None
        lifeline, self._held = os.pipe()  # closes with this process, whatever ends it
        self._log = self.scratch / "log" if speaks else None
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(dropped) and not any(one in name for one in _WITHHELD)
        }
        try:
            with (self._log or Path(os.devnull)).open("wb") as said:
                self._process = subprocess.Popen(  # noqa: S603 - an interpreter that the caller names
                    [*command, str(lifeline), str(self.scratch)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env={**kept, **environment},
                    cwd="/",  # `-m` puts the working directory on the import path
                    start_new_session=True,
                    pass_fds=(lifeline,),
                )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(lifeline)

    name = "the model's process"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            CannotStageError: it says that it cannot, takes too long, or ended.

        """
        if self._process is None:
            raise CannotStageError("the back end is closed")
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None  # noqa: S101 - Popen was asked for both
        assert source is not None  # noqa: S101
        try:
            sink.write(json.dumps(request).encode("ascii") + b"\n")
            sink.flush()
        except OSError:
            raise self._ended() from None
        answer: dict[str, Any] = json.loads(self._line(source.fileno()))
        if "failed" in answer:
            raise CannotStageError(answer["failed"])
        return answer

    def last_words(self) -> str:
        """Return the last line that looks like an error in what it said; empty where there is none."""
        if self._log is None or not self._log.is_file():
            return ""
        with self._log.open("rb") as said:
            said.seek(-min(_SAID, said.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = said.read().decode("utf-8", "replace").splitlines()
        found = [line.strip() for line in lines if "Error" in line]
        return f": {found[-1][:300]}" if found else ""

    def _line(self, descriptor: int) -> bytes:
        pending = bytearray()
        until = time.monotonic() + self._seconds
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not pending.endswith(b"\n"):
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise CannotStageError(f"no answer within {self._seconds:g} s")
                data = os.read(descriptor, 1 << 18)
                if not data:
                    raise self._ended()
                pending += data
                if len(pending) > _LONGEST:
                    self.close()
                    raise CannotStageError("an answer was longer than can be handled")
        return bytes(pending)

    def _ended(self) -> CannotStageError:
        code = None if self._process is None else self._process.wait()
        last = self.last_words()
        self.close()
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with {code}"
        return CannotStageError(f"{self.name} ended {how}{last or ', most likely for want of memory'}")

    def close(self) -> None:
        """End the process and remove the folder; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)
