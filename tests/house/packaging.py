"""What pyproject.toml says about the packages, and what git says is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .repository import ROOT, tracked
from .rooms import ALLOWED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def project() -> dict[str, Any]:
    """Return ``[project]`` of pyproject.toml."""
    return _pyproject("project")


def setuptools_table() -> dict[str, Any]:
    """Return ``[tool.setuptools]`` of pyproject.toml."""
    table: dict[str, Any] = _pyproject("tool")["setuptools"]
    return table


def _pyproject(table: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[table]
    return found


def room_files() -> dict[str, str]:
    """Return the tracked files of the rooms: path in an installation → path in the checkout."""
    return {installed(name): name for name in tracked() if name.partition("/")[0] in ALLOWED}


def installed(name: str) -> str:
    """Return where a file of a room lies in an installation: ``api`` is the package ``kvgate`` itself."""
    return f"kvgate/{name.removeprefix('api/')}"


def package_of(folder: Path) -> str:
    """Return the package that a folder of the checkout (relative to its root) is."""
    parts = folder.parts[1:] if folder.parts[0] == "api" else folder.parts
    return ".".join(("kvgate", *parts))
