"""The kernels, without a GPU: what they compute in Triton's interpreter, what they compile to for an H200."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from .reference import chunk, parent

HERE = Path(__file__).parent
MINUTES = 600  # a hang guard


def _run(script: str, folder: Path, **environment: str) -> Any:
    """Run a script of this folder and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, HERE / script],
        env={**os.environ, "TRITON_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=MINUTES,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    found: dict[str, list[str]] = _run("interpreted.py", tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1")
    return found


@pytest.mark.parametrize("group", ["one launch", "subtrees", "far"])
def test_the_kernels_compute_blake3(interpreted: dict[str, list[str]], group: str) -> None:
    cases = {name: pair for name, pair in interpreted.items() if name.startswith(f"{group}: ")}
    assert len(cases) > 2
    assert {name: pair for name, pair in cases.items() if pair[0] != pair[1]} == {}


def test_they_were_given_every_type_of_torch(interpreted: dict[str, list[str]]) -> None:
    import torch

    every = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
    given = {name.partition(": ")[2] for name in interpreted if ": torch." in name}
    assert every - given == {"torch.qint8", "torch.qint32", "torch.quint8", "torch.quint4x2", "torch.quint2x4"}


def test_the_vectors_contents_are_what_the_kernels_computed(interpreted: dict[str, list[str]]) -> None:
    vectors = json.loads((HERE / "vectors.json").read_text())["tensors"]
    computed = {
        f"one launch: {vector['content']}": interpreted[f"one launch: {vector['content']}"][0] for vector in vectors
    }
    assert computed == {name: name.partition("blake3:")[2] for name in computed}


def test_the_reference_is_blake3() -> None:
    data = bytes(i % 251 for i in range(1030))
    assert chunk(data[:1000], 0, root=True) == blake3(data[:1000]).digest()
    assert parent(chunk(data[:1024], 0), chunk(data[1024:], 1), root=True) == blake3(data).digest()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = _run("compiled.py", tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="0")
    return found


@pytest.mark.parametrize("kernel", ["hash_chunks", "join_pairs"])
def test_they_compile_to_what_makes_them_fast(compiled: dict[str, dict[str, Any]], kernel: str) -> None:
    """For sm_90: 16 bytes a load, the whole schedule in registers, and no more work than BLAKE3 is."""
    text, usage = compiled[kernel]["ptx"], compiled[kernel]["usage"]
    assert len(re.findall(r"ld\.global\.v4\.b32", text)) == 4
    assert not re.findall(r"(?:ld|st)\.local", text)
    assert len(re.findall(r"shf\.l\.wrap\.b32", text)) == 7 * 8 * 4, "rotations: 4 in each of 8 mixings in 7 rounds"
    assert usage["spilled"] == 0
    assert usage["registers"] <= 96, "two thirds of an SM's threads find room"
