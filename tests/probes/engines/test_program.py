"""The process that holds engines and servers takes everything with it, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program

_SHARES = """
import sys, time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
open(sys.argv[1], "w").write(memory._name)
time.sleep(600)
"""
_STARTS = """
import sys, time
from pathlib import Path
from tests.probes.engines.test_program import started
program, name = started(Path(sys.argv[1]))
print(name, program.scratch, flush=True)
time.sleep(600)
"""
_SECONDS = 60  # a hang guard


def started(folder: Path) -> tuple[Program, str]:
    """Start a server that shares memory; return its process, and the name of the memory."""
    program = Program(Installation(Path(sys.executable)))
    said = folder / "name"
    program.serve(folder, ["-c", _SHARES, str(said)], program=Path(sys.executable))
    until = time.monotonic() + _SECONDS
    while not (said.exists() and said.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return program, said.read_text()


def _gone(path: Path) -> None:
    until = time.monotonic() + _SECONDS
    while path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)


def _memory(name: str) -> Path:
    found = Path("/dev/shm") / name.lstrip("/")
    assert found.exists()
    return found


def test_closing_it_leaves_nothing(tmp_path: Path) -> None:
    program, name = started(tmp_path)
    memory = _memory(name)
    program.close()
    assert not memory.exists()
    assert not program.scratch.exists()


def test_ending_what_it_holds_leaves_nothing_of_that(tmp_path: Path) -> None:
    program, name = started(tmp_path)
    try:
        memory = _memory(name)
        program.end()
        assert not memory.exists()
        assert program.scratch.exists()
    finally:
        program.close()


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_parent_that_is_killed_leaves_nothing(ends: signal.Signals, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", _STARTS, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    try:
        assert parent.stdout is not None
        name, scratch = parent.stdout.readline().decode().split()
        memory = _memory(name)
        parent.send_signal(ends)
        _gone(memory)
        _gone(Path(scratch))
    finally:
        parent.kill()
        parent.communicate()
