"""How the rooms that work for a long time say how far they are; only ``cli`` shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the work at hand; must be cheap, must not raise.

    Args:
        stage: what is being done, a short noun phrase ("hashing weights").
        done: units finished so far.
        total: units in all, ``None`` where it is not known.
        unit: what is counted: ``"bytes"``, ``"conversations"``, ``"files"``.

    """

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Take note of how far the work is."""


def silent(stage: str, done: int, total: int | None, unit: str) -> None:
    """Report progress to nobody: the default where no caller listens."""
