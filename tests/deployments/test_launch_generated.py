"""Generated hostile launch files: read or refused in one line, nothing run, and no credential in anything that is said.

``benchmarks/hostile_launches.py`` does the same with as many as one likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployments.conftest import MakeCheckpoint
from tests.deployments.hostile_launch import CANARY, Hostile, harm_of_the_command, make, read

READ = 250
CAPTURED = 12


def test_generated_files_do_no_harm(tmp_path: Path) -> None:
    canary = tmp_path / CANARY
    engines = set()
    for number in range(READ):
        hostile = make(number, canary)
        facts, said = read(hostile)
        assert hostile.secret not in said, number
        assert not canary.exists(), number
        engines.add(facts.engine if facts is not None else "")
    assert engines == {"vllm", "sglang", "tensorrt-llm", ""}  # or nothing much is looked at


@pytest.mark.usefixtures("quick")
def test_what_is_captured_of_generated_files_and_checked_says_no_secret(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint, canary = make_checkpoint(), tmp_path / CANARY
    checked = 0
    for number in range(READ, READ + CAPTURED):
        hostile = make(number, canary)
        harm, reached = harm_of_the_command(hostile, checkpoint, tmp_path / str(number), canary)
        assert harm == [], number
        checked += reached
    assert checked


def test_harm_is_seen(make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above look for is found where it is: a credential that stands where none is expected."""
    monkeypatch.chdir(tmp_path)
    secret = "k" + "x" * 24
    hostile = Hostile("serve.sh", f"vllm serve org/m --served-model-name {secret}".encode(), secret)
    assert secret in read(hostile)[1]
    canary = tmp_path / CANARY
    canary.touch()
    harm, _ = harm_of_the_command(Hostile("x.sh", b"ls", secret), make_checkpoint(), tmp_path / "one", canary)
    assert harm == ["a command of the file was run"]
