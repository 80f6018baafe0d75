"""The parent's end of the process that holds engines, and the servers beside them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvgate.probes.engines.installation import DROPPED, Installation
from kvgate.probes.rehearsal.backend import Generation
from kvgate.probes.rehearsal.process import ChildProcess

_SECONDS = 600.0  # an engine loads a model
_LEAVES = 5.0  # within which it has removed what it leaves


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as an engine knows it.

    Attributes:
        name: its own.
        number: from 1 on, another one for each.
        folder: of its checkpoint.

    """

    name: str
    number: int
    folder: Path


class Program(ChildProcess):
    """One process that imports vLLM, for a whole rehearsal or several; everything started is its child.

    Args:
        installation: what it imports.
        seconds: how long one answer may take.

    """

    name = "vLLM"

    def __init__(self, installation: Installation, *, seconds: float = _SECONDS) -> None:
        program = Path(str(resources.files("kvgate.probes.engines"))) / "vllm_program.py"
        command = [str(installation.python), str(program)]
        self._folders = 0
        super().__init__(command, installation.environment(), seconds=seconds, dropped=DROPPED, speaks=True)

    def close(self) -> None:
        """End the process and all that it started; it is given the time to remove what they share in memory."""
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVES)
        super().close()

    def folder(self, name: str) -> Path:
        """Make a folder that is removed with the process, and return it; each call another one."""
        self._folders += 1
        folder = self.scratch / f"{name}-{self._folders}"
        folder.mkdir()
        return folder

    def start(
        self, engine: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str], transfer: Any
    ) -> None:
        """Start an engine, instead of the one of this name if there is one.

        Args:
            engine: its name.
            folder: in which it runs.
            arguments: of vLLM's server.
            environment: what is set for it.
            transfer: its ``--kv-transfer-config``.

        Raises:
            CannotStageError: it does not start.

        """
        request = {"op": "start", "engine": engine, "folder": str(folder), "arguments": list(arguments)}
        self.ask({**request, "environment": dict(environment), "transfer": dict(transfer)})

    def generate(
        self,
        engine: str,
        token_ids: Sequence[int],
        tokens: int,
        salt: str | None,
        *,
        skip: bool,
        adapter: Adapter | None = None,
        keep: bool = False,
    ) -> Generation:
        """Have an engine answer a prompt.

        Args:
            engine: its name.
            token_ids: the prompt's.
            tokens: how many are generated.
            salt: the request's ``cache_salt``.
            skip: read no cache.
            adapter: that answers.
            keep: leave what was computed in the engine's own cache, for the next prompt.

        Raises:
            CannotStageError: it did not.

        """
        request = {"op": "ask", "engine": engine, "token_ids": list(token_ids), "tokens": tokens}
        lora = None if adapter is None else [adapter.name, adapter.number, str(adapter.folder)]
        found = self.ask({**request, "salt": salt, "skip": skip, "keep": keep, "adapter": lora})
        steps = ({int(token): value for token, value in step.items()} for step in found["top"])
        return Generation(tuple(found["token_ids"]), tuple(steps), found["cached"])

    def caches(self, engine: str) -> dict[str, Any]:
        """Return what an engine says of its own cache: ``block``, ``dtype``, and ``ranks``, the layers of each."""
        return self.ask({"op": "layout", "engine": engine})

    def end(self) -> None:
        """End all engines and servers; the process stays, with vLLM imported."""
        self.ask({"op": "end"})
        for folder in self.scratch.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    def serve(self, folder: Path, arguments: Sequence[str], *, program: Path | None = None) -> None:
        """Start a server: a program, or LMCache's where there is none."""
        request = {"op": "serve", "folder": str(folder), "arguments": list(arguments), "environment": {}}
        self.ask(request if program is None else {**request, "program": str(program)})
