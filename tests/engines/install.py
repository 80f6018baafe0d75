"""Install a vLLM that serves on the CPU beside this virtual environment: what this one does not have, 0.8 GB.

    python -m tests.engines.install [TARGET]     the default is share/kvgate-engines/vllm of this environment
    KVGATE_VLLM=TARGET pytest tests/engines

The interpreter and torch are this environment's; the folder goes in front of its search path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from tests.renderers.install import ensure

HERE = Path(__file__).parent
PINS = HERE / "vllm.yaml"
ALONE = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def default_target() -> Path:
    """Where the folder lies: beside the environment, so that a second run installs nothing."""
    return Path(sys.prefix) / "share" / "kvgate-engines" / "vllm"


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a process that finds vLLM, and the modules that tests give it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON", "VLLM_"))}
    return {**kept, **ALONE, "PYTHONPATH": os.pathsep.join([str(HERE), str(folder)])}


def main() -> int:
    """Install, and say what could not be installed."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default_target()
    target.parent.mkdir(parents=True, exist_ok=True)
    problems = ensure(target, yaml.safe_load(PINS.read_text(encoding="utf-8"))["pins"])
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
