"""Progress in a log: a line now and then, none for quick work, none when nobody wants it."""

from __future__ import annotations

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
