"""Progress: a line now and then in a log, a bar on a terminal; none for quick work, none when nobody wants it."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kvgate.cli import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("kvgate.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(quiet=False) as listener:
        for second in range(14):
            clock[0] = float(second)
            listener("hashing weights", second * 1_500_000, 20_000_000, "bytes")
        clock[0] = 20.0
        listener("rendering\x1b[31m", 3, 149, "conversations")
        clock[0] = 30.0
        listener("asking", 1200, None, "files")
    assert capsys.readouterr().err.splitlines() == [
        "hashing weights: 3.0 MB of 20.0 MB",
        "hashing weights: 10.5 MB of 20.0 MB",
        "hashing weights: 18.0 MB of 20.0 MB",
        "rendering\\x1b[31m: 3 of 149 conversations",
        "asking: 1,200 files",
    ]


def test_quick_work_and_quiet_work_say_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(quiet=False) as listener:
        listener("hashing weights", 1, 2, "bytes")
    with progress.shown(quiet=True) as listener:
        clock[0] = 100.0
        listener("hashing weights", 1, 2, "bytes")
    assert capsys.readouterr().err == ""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class _Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "no_color", "colours", "moves"),
    [
        ({"TERM": "xterm-256color"}, False, True, True),
        ({"TERM": "xterm-256color"}, True, False, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False, False, True),
        ({"TERM": "dumb"}, False, False, False),
    ],
)
def test_a_bar_has_colours_where_somebody_wants_them_and_is_drawn_where_it_can_be_taken_back(
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    no_color: bool,
    colours: bool,
    moves: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown(quiet=False, no_color=no_color) as listener:
        clock[0] = 10.0
        listener("hashing weights", 3_000_000, 20_000_000, "bytes")
    shown = terminal.getvalue()
    assert "3.0 MB of 20.0 MB" in shown
    assert bool(_COLOUR.search(shown)) is colours
    assert ("\x1b[" in shown) is moves
