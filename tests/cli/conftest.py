"""The command, and manifests on disk for it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from tests.rules.clean import data

COMMAND = [sys.executable, "-m", "kvgate.cli.main"]
SECONDS = 60


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which nothing of the caller's terminal is left."""
    dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    return {**{name: value for name, value in os.environ.items() if name not in dropped}, **(extra or {})}


Run = Callable[..., Ran]
MakeManifest = Callable[..., str]


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Run ``kvgate`` as a process of its own."""

    def call(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=environment(env),
            timeout=SECONDS,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process, which is much quicker and, ``test_process.py`` aside, as good."""
    monkeypatch.chdir(tmp_path)
    return in_process


def in_process(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run the command in this process, in the current folder."""
    from kvgate.cli.main import build

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    given = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with (
        mock.patch.object(sys, "stdin", given),
        mock.patch.dict(os.environ, environment(), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        build(arguments[0] if arguments else None)(args=list(arguments), prog_name="kvgate")
    texts = []
    for stream in (out, err):
        stream.flush()
        raw = stream.buffer
        assert isinstance(raw, io.BytesIO)
        texts.append(raw.getvalue().decode())
    assert isinstance(ended.value.code, int)
    return Ran(ended.value.code, *texts)


@pytest.fixture
def manifest(tmp_path: Path) -> MakeManifest:
    """Write the clean manifest with changes, and return its name."""

    def make(name: str, changes: dict[str, Any] | None = None) -> str:
        (tmp_path / name).write_text(yaml.safe_dump(data(changes), sort_keys=False, allow_unicode=True))
        return name

    return make
