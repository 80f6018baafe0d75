"""What ``import kvgate`` offers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import kvgate

from .packaging import project

HEAVY = ("deepdiff", "huggingface_hub", "jinja2", "pydantic", "tokenizers", "torch", "transformers", "yaml")


@pytest.mark.parametrize("name", [name for name in kvgate.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(kvgate, name)
    assert value.__name__ == name
    assert value.__doc__


def test_names_that_are_not_public_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'decide'"):
        _ = kvgate.decide


def test_one_version() -> None:
    assert kvgate.__version__ == project()["version"]


def test_importing_it_costs_nothing() -> None:
    script = f"import json, sys, kvgate; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == []
