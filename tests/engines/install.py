"""Install what tests ask of real engines beside this virtual environment: a folder for each file of pins here.

    python -m tests.engines.install [TARGET]     vLLM's folder, by default share/kvgate-engines/vllm of this environment
    KVGATE_VLLM=TARGET pytest tests/engines

The others lie beside vLLM's, which is 0.8 GB. The interpreter and torch are this environment's; the folders go in front
of its search path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from tests.renderers.install import ensure

HERE = Path(__file__).parent
PINS = sorted(HERE.glob("*.yaml"))
ALONE = {
    "OMP_NUM_THREADS": "1",  # for models this small two threads wait for each other longer than either computes
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def default_target() -> Path:
    """Where the folder lies: beside the environment, so that a second run installs nothing."""
    return Path(sys.prefix) / "share" / "kvgate-engines" / "vllm"


def installed(name: str) -> Path:
    """Return the folder of one file of pins, beside the vLLM that ``KVGATE_VLLM`` names."""
    return Path(os.environ["KVGATE_VLLM"]).with_name(name)


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that finds what folders hold, and the modules that tests give it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON", "VLLM_"))}
    return {**kept, **ALONE, "PYTHONPATH": os.pathsep.join(map(str, [HERE, *folders]))}


def main() -> int:
    """Install, and say what could not be installed."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default_target()
    target.parent.mkdir(parents=True, exist_ok=True)
    problems = []
    for pins in PINS:
        folder = target if pins.stem == "vllm" else target.with_name(pins.stem)
        problems += ensure(folder, yaml.safe_load(pins.read_text(encoding="utf-8"))["pins"])
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
