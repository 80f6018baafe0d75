"""The child process of the embedded back end."""

from __future__ import annotations

import shutil
import sys

from kvgate.probes.rehearsal.process import ChildProcess

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


class Child(ChildProcess):
    """One child process for a whole rehearsal, with its scratch folder.

    Args:
        memory: bytes that it may allocate.
        seconds: how long one answer may take.

    """

    def __init__(self, *, memory: int = 8 << 30, seconds: float = 120.0) -> None:
        worker = [sys.executable, "-m", "kvgate.probes.embedded.worker", str(memory)]
        super().__init__(worker, _ENVIRONMENT, seconds=seconds)

    def clear(self) -> None:
        """Remove every store; models are kept."""
        for folder in self.scratch.glob("*"):
            shutil.rmtree(folder, ignore_errors=True)
