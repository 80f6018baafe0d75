"""A skip that nobody expects fails the run: a check that did not run is not a check that passed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .repository import ROOT

TESTS = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no such service here")
def test_does_not():
    pass
"""


@pytest.mark.parametrize(
    ("workers", "expected", "status"),
    [
        ("0", "", 1),
        ("2", "# test_it.py::test_does_not\ntest_it.py\n", 1),
        ("2", "test_it.py::test_does_not\n", 0),
    ],
)
def test_only_named_skips_pass(tmp_path: Path, workers: str, expected: str, status: int) -> None:
    plugins = tmp_path / "house" / "plugins"
    plugins.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "plugins" / "expected_skips.py", plugins)
    (tmp_path / "house" / "expected-skips.txt").write_text(expected)
    (tmp_path / "test_it.py").write_text(TESTS)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "expected_skips", "-n", workers, "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(plugins), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("test_it.py::test_does_not: Skipped: no such service here" in done.stdout) == (status == 1)
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1]
