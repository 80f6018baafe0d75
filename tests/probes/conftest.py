"""The command in this process, and manifests for it."""

from __future__ import annotations

from tests.cli.conftest import manifest, run

__all__ = ["manifest", "run"]
