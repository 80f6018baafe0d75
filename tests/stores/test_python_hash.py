"""Python's hash of a text, as a process with another seed makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvgate.stores.keys.python_hash import text_hash

TEXTS = ["0", "7", "vllm-none-hash", "x" * 7, "x" * 8, "x" * 9, "a long text of more than two words of eight bytes"]
PROGRAM = "import json, sys; print(json.dumps([hash(text) for text in json.loads(sys.argv[1])]))"


@pytest.mark.parametrize("seed", ["0", "1", "7", "4294967295"])
def test_a_process_with_that_seed_agrees(seed: str) -> None:
    if sys.hash_info.algorithm != "siphash13":  # before Python 3.11
        assert sys.version_info < (3, 11)
        return
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, json.dumps(TEXTS)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    assert [text_hash(text, seed) for text in TEXTS] == json.loads(done.stdout)


@pytest.mark.parametrize("seed", ["random", "", "-1", "4294967296", "٣"])
def test_where_each_process_draws_its_own_nothing_is_said(seed: str) -> None:
    assert text_hash("7", seed) is None


@pytest.mark.parametrize("text", ["", "é"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ASCII"):
        text_hash(text, "0")
