"""The process that holds engines and servers takes everything with it, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program

_SHARES = """
import _multiprocessing, os, sys, time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
lock = _multiprocessing.SemLock(1, 1, 1, f"/mp-kvgate-{os.getpid()}", False)
with open(sys.argv[1] + ".new", "w") as said:
    said.write(f"{memory._name} sem.{lock.name[1:]}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
_STARTS = """
import sys, time
from pathlib import Path
from tests.probes.engines.test_program import started
program, names = started(Path(sys.argv[1]))
print(*names, program.scratch, flush=True)
time.sleep(600)
"""
_SECONDS = 60  # a hang guard


def started(folder: Path) -> tuple[Program, list[str]]:
    """Start a server that shares memory and a semaphore; return its process, and what they are called."""
    program = Program(Installation(Path(sys.executable)))
    said = folder / "name"
    program.serve(folder, ["-c", _SHARES, str(said)], program=Path(sys.executable))
    _there(said)
    return program, said.read_text().split()


def _there(path: Path) -> None:
    until = time.monotonic() + _SECONDS
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)


def _gone(path: Path) -> None:
    until = time.monotonic() + _SECONDS
    while path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)


def _shared(names: list[str]) -> list[Path]:
    found = [Path("/dev/shm") / name.lstrip("/") for name in names]
    assert [path.exists() for path in found] == [True, True]
    return found


def test_closing_it_leaves_nothing(tmp_path: Path) -> None:
    program, names = started(tmp_path)
    shared = _shared(names)
    program.close()
    for path in (*shared, program.scratch):
        _gone(path)


def test_ending_what_it_holds_leaves_nothing_of_that(tmp_path: Path) -> None:
    program, names = started(tmp_path)
    try:
        shared = _shared(names)
        program.end()
        assert not any(path.exists() for path in shared)
        assert program.scratch.exists()
    finally:
        program.close()


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
def test_a_parent_that_is_killed_leaves_nothing(ends: signal.Signals, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", _STARTS, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    try:
        assert parent.stdout is not None
        *names, scratch = parent.stdout.readline().decode().split()
        shared = _shared(names)
        parent.send_signal(ends)
        for path in (*shared, Path(scratch)):
            _gone(path)
    finally:
        parent.kill()
        parent.communicate()


def test_an_answer_that_nobody_reads_any_more_leaves_nothing(tmp_path: Path) -> None:
    scratch, said = tmp_path / "scratch", tmp_path / "name"
    scratch.mkdir()
    code = Path(str(resources.files("kvgate.probes.engines"))) / "vllm_program.py"
    lifeline, held = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(code), str(lifeline), str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        served = {"op": "serve", "program": sys.executable, "arguments": ["-c", _SHARES, str(said)]}
        process.stdin.write(json.dumps({**served, "folder": str(tmp_path), "environment": {}}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"{}\n"
        _there(said)
        process.stdout.close()
        process.stdin.write(b'{"op": "ask", "engine": "none"}\n')
        process.stdin.flush()
        for path in (*_shared(said.read_text().split()), scratch):
            _gone(path)
    finally:
        process.kill()
        process.wait()
        os.close(held)
        os.close(lifeline)
