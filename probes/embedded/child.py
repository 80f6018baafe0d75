"""The child process of the embedded back end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Literal

from kvgate.probes.rehearsal.process import ChildProcess

Device = Literal["cpu", "cuda"]

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
}
_ON: Mapping[str, Mapping[str, str]] = {
    "cpu": {"CUDA_VISIBLE_DEVICES": ""},
    "cuda": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},  # without it the same product may be another one
}


class Child(ChildProcess):
    """One child process for a whole rehearsal, with its scratch folder.

    Args:
        memory: bytes that it may allocate; not limited where it has a GPU, whose driver maps far more than it uses.
        seconds: how long one answer may take.
        device: ``cpu`` or ``cuda``: whether it sees a GPU.

    """

    def __init__(self, *, memory: int = 8 << 30, seconds: float = 120.0, device: Device = "cpu") -> None:
        limit = memory if device == "cpu" else 0
        worker = [sys.executable, "-m", "kvgate.probes.embedded.worker", str(limit)]
        super().__init__(worker, {**_ENVIRONMENT, **_ON[device]}, seconds=seconds)

    def clear(self) -> None:
        """Remove every store; models are kept."""
        for folder in self.scratch.glob("*"):
            if folder.name != "torch":  # its own
                shutil.rmtree(folder, ignore_errors=True)
