"""Deployments with several pools: every pair is staged, and one that fails is named."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.probes.rehearsal.pools import rehearse_pools
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.rules.manifest import Manifest
from tests.probes.rehearsal.conftest import LEAST
from tests.probes.rehearsal.pairs import ROLLED, WEIGHTS, deployment

_POOLS: dict[str, dict[str, Any]] = {"decode": {"engine.max_model_len": 4096}, "prefill": {}}


def _split(*changes: dict[str, Any], **pools: dict[str, Any]) -> Manifest:
    return deployment(
        *changes, {"roles": [{"name": name, "set": {**_POOLS[name], **own}} for name, own in pools.items()]}
    )


@pytest.fixture
def rehearsed_pools(child: Child) -> Any:
    def run(old: Manifest, new: Manifest) -> Rehearsal:
        def backend(one: Manifest, two: Manifest) -> Any:
            return lambda: EmbeddedBackend(one, two, child=child)

        return rehearse_pools(old, new, backend, rendered=None, size=LEAST)

    return run


def test_every_pair_of_pools_is_staged(rehearsed_pools: Any) -> None:
    old, new = _split(decode={}, prefill={}), _split(WEIGHTS, ROLLED, decode={}, prefill={})
    seen = rehearsed_pools(old, new)
    assert (seen.claim, seen.state) == ("separate", "proved"), seen.reason
    assert seen.reason.startswith("each of 4 pairs of pools: ")
    assert len(seen.control.hits) == 4 * seen.asked
    assert "weights" in seen.staged
    assert "pools" in seen.missing
    assert seen.layers is None


def test_one_pool_whose_namespace_was_not_rolled_is_named(rehearsed_pools: Any) -> None:
    old, new = _split(decode={}, prefill={}), _split(WEIGHTS, decode=ROLLED, prefill={})
    seen = rehearsed_pools(old, new)
    assert seen.state == "refuted"
    assert seen.reason.startswith("decode to prefill: ")
    assert "namespace-not-rolled" in [mistake.id for mistake in seen.mistakes]


def test_a_pool_that_cannot_be_staged_is_no_proof_of_the_rest(rehearsed_pools: Any) -> None:
    new = _split(WEIGHTS, ROLLED, decode={}, prefill={"cache.version": "9.9"})
    seen = rehearsed_pools(deployment(), new)
    assert seen.state == "not-run"
    assert seen.reason.startswith("the one pool to prefill: ")
