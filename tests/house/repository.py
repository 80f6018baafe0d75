"""The checkout that these tests look at."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> tuple[str, ...]:
    """Return the paths that git knows and that exist on disk, relative to the root, sorted."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    names = done.stdout.decode().split("\0")
    return tuple(sorted(name for name in names if name and (ROOT / name).exists()))
