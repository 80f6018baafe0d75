"""Install the releases of renderers.yaml beside this virtual environment; what is there is not installed again.

python tests/renderers/install.py [TARGET]     the default is share/kvgate-renderers of this environment
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RENDERERS = Path(__file__).with_name("renderers.yaml")
STAMP = ".pins"
SECONDS = 900


@dataclass(frozen=True)
class Renderer:
    """An interpreter that finds one release of each library, and neither kvgate nor what kvgate needs."""

    name: str
    folders: tuple[Path, ...]

    @property
    def command(self) -> list[str]:
        """What to put in front of a script: no site-packages, nothing of the caller's working directory.

        The first process writes the bytecode that pip was told to leave out: compiling is half of what a start costs.
        """
        return [sys.executable, "-S"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of its process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, self.folders)), "HF_HUB_OFFLINE": "1"}


def default_target() -> Path:
    """Where the folders lie: beside the environment, so that a second run installs nothing."""
    return Path(sys.prefix) / "share" / "kvgate-renderers"


@cache
def _data() -> Mapping[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(RENDERERS.read_text(encoding="utf-8"))
    return loaded


def renderer(name: str, target: Path | None = None) -> Renderer:
    """Return a renderer of renderers.yaml."""
    place = target or default_target()
    folders = tuple(place / folder for folder in _data()["renderers"][name])
    if missing := [folder.name for folder in folders if not folder.is_dir()]:
        raise FileNotFoundError(f"{', '.join(missing)}: run python tests/renderers/install.py")
    return Renderer(name, folders)


def install(target: Path) -> list[str]:
    """Install what is missing, and return what went wrong, a sentence each."""
    target.mkdir(parents=True, exist_ok=True)
    problems = []
    for name, pins in _data()["folders"].items():
        problems += ensure(target / name, pins)
    return problems


def ensure(folder: Path, pins: list[str]) -> list[str]:
    """Make a folder of pinned releases, unless it is there, and return what went wrong, a sentence each."""
    stamp = _stamp(pins)
    return [] if _is_there(folder, stamp) else _install(folder, pins, stamp)


def _install(folder: Path, pins: list[str], stamp: str) -> list[str]:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        made = Path(work) / folder.name
        how = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(made)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *how, *pins],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
            return [f"{', '.join(pins)}: pip could not install it: {said[-1]}"]
        (made / STAMP).write_text(stamp)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)
    return []


def _stamp(pins: list[str]) -> str:
    """Return what a folder was made of: the pins, and the interpreter that its binary modules are for."""
    return hashlib.sha256(repr((pins, sys.version_info[:2], sys.platform)).encode()).hexdigest()


def _is_there(folder: Path, stamp: str) -> bool:
    try:
        return (folder / STAMP).read_text() == stamp
    except OSError:
        return False


def main() -> int:
    """Install, and say what could not be installed."""
    problems = install(Path(sys.argv[1]) if len(sys.argv) > 1 else default_target())
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
