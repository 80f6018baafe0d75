"""Adapters by content: equal digests beside another, or an unknown, rank or alpha."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.clean import FORGET, digest
from tests.rules.connectors import base
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, decided

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


LIVE, GONE = serving(), serving(removed=True)
OTHERS, OTHERS_GONE = serving(digest=digest("8")), serving(digest=digest("8"), removed=True)
UNTOLD_GONE = {**FRONT, "adapters": [{"name": "billing", "removed": True}]}
NONE = {**FRONT, "adapters": []}


@pytest.mark.parametrize("before", [LIVE, GONE], ids=["live", "gone"])
def test_a_tombstone_is_of_the_bytes_that_it_follows(before: dict[str, Any]) -> None:
    """Or it would give the name free for bytes of its own, while the store holds those that were there."""
    assert decided(before, GONE).verdict == REUSE
    for after, code, kind in ((OTHERS_GONE, 10, "replaced"), (UNTOLD_GONE, 11, "unverified")):
        decision = decided(before, after)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, code)
        assert [one.change.kind for one in decision.findings] == [kind]
        assert "tombstone" in decision.findings[0].change.detail
    # In the order of what was served, a name that comes back is what it was.
    assert decided(GONE, LIVE).verdict == REUSE
    assert not decided(GONE, OTHERS).accepted


def test_a_tombstone_proves_no_more_than_what_it_follows() -> None:
    declared = {"provenance.adapters": "declared"}
    for more in ({}, declared):  # of a tombstone itself nothing can be computed
        assert decided(LIVE, {**GONE, **more}).verdict == REUSE
        assert decided({**GONE, **declared}, {**GONE, **more}).verdict == REUSE
        assert decided({**LIVE, **declared}, {**GONE, **more}).exit_code == 11
    assert decided({**GONE, **declared}, LIVE).exit_code == 11
    assert decided({**LIVE, **declared}, NONE).verdict == REUSE


@pytest.mark.parametrize(
    "connector", [{}, {**base("lmcache-mp"), "request_features": []}], ids=["adapter in the key", "not in the key"]
)
def test_a_tombstone_that_is_left_out_is_said_and_asks_for_nothing(connector: dict[str, Any]) -> None:
    """Every fresh capture leaves it out."""
    decision = decided({**GONE, **connector}, {**NONE, **connector})
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert [(one.change.kind, one.change.path) for one in decision.findings] == [("forgotten", "adapters.billing")]
    assert decided({**NONE, **connector}, {**GONE, **connector}).verdict == REUSE


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "vllm-mooncake", "sglang-hicache-file"])
def test_other_bytes_at_another_path_are_other_keys_where_the_key_holds_it(connector: str) -> None:
    """vLLM 0.33.0, v1/core/kv_cache_utils.py:578; SGLang 0.5.23, srt/lora/lora_registry.py:48."""
    front = {**base(connector), "request_features": ["lora"]}

    def at(path: Any, letter: str, **changes: Any) -> dict[str, Any]:
        entry = {"name": "a.b", "digest": digest(letter), **({} if path is FORGET else {"path": path})}
        return {**front, "adapters": [entry], **changes}

    apart = decided(at("/adapters/one", "8"), at("/adapters/two", "9"))
    assert (apart.verdict, apart.exit_code, apart.findings[0].keys_separate) == (NAMESPACE, 0, "yes")
    for old, new in (("/one", "/one"), (FORGET, "/two"), ("/one", FORGET), (None, "/two"), ("/one", None)):
        decision = decided(at(old, "8"), at(new, "9"))
        assert (decision.verdict, decision.exit_code, decision.findings[0].keys_separate) == (NAMESPACE, 10, "no")
    # Readers that stay up load what they are told to, and the store may have been written under either path.
    hot = {"request_features": ["lora", "lora_hot_load"]}
    assert decided(at("/one", "8", **hot), at("/two", "9", **hot)).verdict == CLEAR


def test_a_path_separates_only_where_the_key_is_known_to_hold_it() -> None:
    for connector in ("trtllm", "llm-d-fs", "vllm-example"):
        front = {**base(connector), "request_features": ["lora"]}
        old, new = (
            {**front, "adapters": [{"name": "billing", "path": f"/{letter}", "digest": digest(letter)}]}
            for letter in "89"
        )
        assert not decided(old, new).accepted
