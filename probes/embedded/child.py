"""The parent's end of the embedded back end's child process: one request, one answer, each within its time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kvgate.probes.rehearsal.backend import CannotStageError

_LONGEST = 64 << 20  # bytes of one answer
_WITHHELD = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
}


class Child:
    """One child process for a whole rehearsal, with its scratch folder.

    Args:
        memory: bytes that it may allocate.
        seconds: how long one answer may take.

    """

    def __init__(self, *, memory: int = 8 << 30, seconds: float = 120.0) -> None:
        self._seconds = seconds
        self._scratch = Path(tempfile.mkdtemp(prefix="kvgate-rehearsal-"))
        self._process: subprocess.Popen[bytes] | None = None
        lifeline, self._held = os.pipe()  # closes with this process, whatever ends it
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and numbers
                [sys.executable, "-m", "kvgate.probes.embedded.worker", str(lifeline), str(self._scratch), str(memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={
                    **{name: value for name, value in os.environ.items() if not any(one in name for one in _WITHHELD)},
                    **_ENVIRONMENT,
                },
                cwd="/",  # `-m` puts the working directory on the import path
                start_new_session=True,
                pass_fds=(lifeline,),
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(lifeline)

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

    def clear(self) -> None:
        """Remove every store; models are kept."""
        for folder in self._scratch.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)

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
        self.close()
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with {code}"
        return CannotStageError(f"the model's process ended {how}, most likely for want of memory")

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
        shutil.rmtree(self._scratch, ignore_errors=True)
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)
