"""What engines are started with: an installation of vLLM, which need not be in the environment that kvgate runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DROPPED = ("HF_", "PYTHON", "VLLM_", "LMCACHE_")
"""Variables of this process that no engine gets: what is staged must not depend on who stages it."""

_ALONE: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Installation:
    """Where an engine is installed.

    Attributes:
        python: the interpreter that has vLLM, and LMCache where that is staged.
        folders: that go in front of its search path.
        redis: a ``redis-server``; ``None``: there is none, and nothing in a Redis is staged.
        threads: that an engine computes in; ``None``: as many as it likes.

    """

    python: Path
    folders: tuple[Path, ...] = ()
    redis: Path | None = None
    threads: int | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables of its processes, beside those of this one that are not in ``DROPPED``."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**_ALONE, **threads, "PYTHONPATH": os.pathsep.join(map(str, self.folders))}
