"""Captures that meet in one folder, and one that is interrupted: every manifest that is there is whole."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import KVGATE, SECONDS, Check, environment
from tests.acceptance.releases import serve

ENDING = {signal.SIGINT: b"interrupted", signal.SIGTERM: b"terminated", signal.SIGHUP: b"terminated"}
TOLD = ("--set", "engine.accelerator=H200", "--set", "cache.tenancy=null", "--set", "inputs=null")


def _start(folder: Path, base: Path, *more: str) -> subprocess.Popen[bytes]:
    (folder / "serve.sh").write_text(serve())
    (folder / "scratch").mkdir(exist_ok=True)
    return subprocess.Popen(
        [KVGATE, "capture", str(base), "--from", "serve.sh", "--renderer", "here", *TOLD, "-o", "out", *more],
        cwd=folder,
        env=environment({"TMPDIR": str(folder / "scratch")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_interruptible,
    )


def _interruptible() -> None:
    """Take interrupts: what a shell starts in the background inherits that they are ignored."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


def test_two_captures_into_one_folder(check: Check, base: Path, tmp_path: Path) -> None:
    started = [_start(tmp_path, base, "-q") for _ in range(2)]
    for one in started:
        out, err = one.communicate(timeout=SECONDS)
        assert (one.returncode, out, err) == (0, b"out/manifest.yaml\n", b"")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("manifest.yaml", "tokens.jsonl", "weights.jsonl")
    ]
    assert (*check("out", "out"),) == ("verified-compatible-reuse", 0, [])


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_an_interrupt_leaves_what_was_there_and_nothing_else(
    number: signal.Signals, base: Path, tmp_path: Path
) -> None:
    """A cancelled CI job sends SIGTERM; what was rendered on the way is prompt text."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.yaml").write_text("schema: kvgate/manifest/v1 # the last one\n")
    started = _start(tmp_path, base, "-q")
    # Once it has a child of its own it is in the middle of its work.
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    deadline = time.monotonic() + SECONDS
    while not children.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(number)
    out, err = started.communicate(timeout=SECONDS)
    assert (started.returncode, out) == (128 + number, b"")
    assert err == ENDING[number] + b": nothing was left half-written\n"
    assert not list((tmp_path / "scratch").iterdir())
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "manifest.yaml": "schema: kvgate/manifest/v1 # the last one\n"
    }
