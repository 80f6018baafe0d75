"""Adapters by content: equal digests beside another, or an unknown, rank or alpha."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.clean import digest
from tests.rules.connectors import base
from tests.rules.deciding import NAMESPACE, REUSE, decided

FRONT = {**base("vllm-offload-fs"), "request_features": ["lora"]}


def serving(**parts: Any) -> dict[str, Any]:
    return {**FRONT, "adapters": [{"name": "billing", "digest": digest("9"), **parts}]}


@pytest.mark.parametrize("part", ["rank", "alpha"])
def test_knowing_less_of_an_adapter_never_helps(part: str) -> None:
    for value in (8, None):
        for left, right in ((value, 16), (16, value)):
            given = [serving(**({} if one is None else {part: one})) for one in (left, right)]
            decision = decided(*given)
            assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
    assert decided(serving(**{part: 16}), serving(**{part: 16})).verdict == REUSE
    assert decided(serving(), serving()).verdict == REUSE


def test_a_tombstone_needs_no_rank() -> None:
    """The digest covers it, and the tombstone of a name holds no more than that."""
    assert decided(serving(removed=True), serving(rank=16, alpha=32)).verdict == REUSE
