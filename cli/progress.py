"""Showing progress on standard error: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvgate.cli import console
from kvgate.rules.progress import Progress, silent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_FIRST_SECONDS = 2.0  # quick work is done before anybody wonders
_SECONDS = 5.0
_BAR_SECONDS = 0.1


@contextlib.contextmanager
def shown(*, quiet: bool, no_color: bool = False) -> Iterator[Progress]:
    """Yield a listener that shows progress while the block runs, and clears its bar afterwards."""
    if quiet:
        yield silent
    elif sys.stderr.isatty() and not console.dumb():  # a dumb terminal takes nothing back, and so no bar
        bar = _Bar(no_color=not console.colored(sys.stderr, no_color=no_color))
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield _Lines()


class _Lines:
    """At most one line every few seconds."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _FIRST_SECONDS
        self._begun: str | None = None  # a stage that was said to be under way, and not yet to have ended
        self._lock = threading.Lock()

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        with self._lock:  # hashing reports from its threads
            now = time.monotonic()
            ended = self._begun == stage and total is not None and done >= total
            if now < self._due and not ended:
                return
            self._due = now + _SECONDS
            self._begun = None if ended else stage
        console.say(f"{stage}: {_far(done, total, '' if stage.endswith(unit) else unit)}")


class _Bar:
    """A Rich bar; made when the first report comes, since most checks are done before one would be seen."""

    def __init__(self, *, no_color: bool) -> None:
        self._no_color = no_color
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._due = time.monotonic() + _BAR_SECONDS
        self._lock = threading.Lock()

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._due:
                return
            self._due = now + _BAR_SECONDS
            if self._bars is None:
                self._bars = _bars(no_color=self._no_color)
                self._bars.start()
            if self._task is None or stage != self._stage:
                if self._task is not None:
                    self._bars.remove_task(self._task)
                self._task, self._stage = self._bars.add_task(stage, total=total, amount=""), stage
            self._bars.update(self._task, completed=done, total=total, amount=_far(done, total, unit))

    def close(self) -> None:
        """Take the bar off the screen."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()


def _bars(*, no_color: bool) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True, no_color=no_color, highlight=False, markup=False, emoji=False),
        transient=True,
    )


def _far(done: int, total: int | None, unit: str) -> str:
    if unit != "bytes":
        return f"{done:,} of {total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip()
    return f"{_size(done)} of {_size(total)}" if total else _size(done)


def _size(count: int) -> str:
    size = float(count)
    for name in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {name}" if name == "B" else f"{size:.1f} {name}"
        size /= 1000
    return f"{size:.1f} TB"
