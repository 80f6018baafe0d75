"""Everyday rollouts in front of several connectors: none cries wolf, and none is let through that is not safe."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import OTHER, base
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, decided

FRONT = ("lmcache-mp", "vllm-offload-fs", "vllm-mooncake", "sglang-hicache-file")
MLA: dict[str, Any] = {
    "model.config/model_type": "deepseek_v3",
    "model.config/architectures": ["DeepseekV3ForCausalLM"],
    "model.config/kv_lora_rank": 512,
}
SALTED = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}
KEPT, APART, OPEN = (REUSE, 0), (NAMESPACE, 0), (NAMESPACE, 10)

# what changes: old, new, and the answer in front of each
ROLLOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[tuple[str, int], ...]]] = {
    "rebuild with the same packages": ({}, {"engine.image": "sha256:" + "9" * 64}, (KEPT, KEPT, KEPT, KEPT)),
    "scale-out": ({}, {"parallelism.data": 4}, (KEPT, KEPT, KEPT, KEPT)),
    "template fix": ({}, OTHER["chat_template"], (APART, APART, APART, APART)),
    "tokenizer fix": ({}, OTHER["tokenizer"], (APART, APART, APART, APART)),
    "new system prompt and tools": (
        {},
        {"inputs.system_prompts": {"default": digest("9")}, "inputs.tool_schemas": {}},
        (KEPT, KEPT, KEPT, KEPT),
    ),
    # LMCache MP files a namespace as the salt of every request, and a tenant may have that very name.
    "first cache_salt": ({}, SALTED, (OPEN, APART, APART, APART)),
    "first cache_salt, no namespace before": (
        {"cache.namespace": None},
        {**SALTED, "cache.namespace": None},
        (APART, APART, APART, APART),
    ),
    "tensor size 4 to 8": ({"parallelism.tensor": 4}, {"parallelism.tensor": 8}, (APART, APART, OPEN, APART)),
    "tensor size 4 to 8, the older model runner of vLLM": (
        {"parallelism.tensor": 4, "engine.args/VLLM_USE_V2_MODEL_RUNNER": "0"},
        {"parallelism.tensor": 8, "engine.args/VLLM_USE_V2_MODEL_RUNNER": "0"},
        (APART, OPEN, OPEN, APART),
    ),
    "tensor size 4 to 8, MLA": (
        {**MLA, "parallelism.tensor": 4},
        {**MLA, "parallelism.tensor": 8},
        (KEPT, KEPT, OPEN, KEPT),
    ),
    "KV dtype": ({}, OTHER["precision.kv_cache"], (OPEN, APART, OPEN, OPEN)),
    "EAGLE switched on": ({}, {"engine.speculative": {"method": "eagle", "model": "a"}}, (OPEN, OPEN, OPEN, OPEN)),
    "new weights": ({}, OTHER["weights"], (OPEN, OPEN, OPEN, OPEN)),
    "labels": ({}, {"release.version": "2026.12.1", "cache.ttl": "7d"}, (KEPT, KEPT, KEPT, KEPT)),
}
CASES = [(name, connector, at) for name in ROLLOUTS for at, connector in enumerate(FRONT)]


@pytest.mark.parametrize(("name", "connector", "at"), CASES, ids=[f"{c}: {n}" for n, c, _ in CASES])
def test_a_rollout(name: str, connector: str, at: int) -> None:
    old, new, answers = ROLLOUTS[name]
    decision = decided({**base(connector), **old}, {**base(connector), **new})
    assert (decision.verdict, decision.exit_code) == answers[at]


@pytest.mark.parametrize("connector", [one for one in FRONT if not one.startswith("sglang-")])
def test_memory_and_batch_limits(connector: str) -> None:
    new = {**base(connector), "engine.args": {"gpu-memory-utilization": 0.5, "max-num-seqs": 64}}
    assert decided(base(connector), new).verdict == REUSE


def test_a_patch_upgrade_is_covered_where_a_row_says_so() -> None:
    assert decided({"cache.version": "0.5.5"}, {}).verdict == REUSE
    # What no flag sets is the engine's to choose, and LMCache hashes with an algorithm of its own.
    unset = {**base("lmcache"), "engine.prefix_hash.algorithm": None}
    assert decided({**unset, "cache.version": "0.5.5"}, unset).verdict == REUSE
    engine = {"engine.version": "0.32.0"}
    for connector in FRONT:
        assert decided({**base(connector), **engine}, base(connector)).verdict == NAMESPACE


def named(changes: dict[str, Any]) -> dict[str, Any]:
    """Put the derived id where any connector looks for it."""
    identifier = derive(clean(changes)).id
    return {**changes, "cache.namespace": identifier, "cache.location": f"/kv/{identifier}"}


@pytest.mark.parametrize("connector", FRONT)
def test_out_to_a_canary_and_back_to_the_old_image(connector: str) -> None:
    old, canary = base(connector), {**base(connector), **OTHER["engine.build"]}
    assert decided(named(old), named(canary)).exit_code == 0
    assert decided([named(old), named(canary)], named(old)).exit_code == 0
    # In one and the same store, what the canary wrote is hit by the one that comes back.
    assert decided([old, canary], old).exit_code == 10


@pytest.mark.parametrize("connector", FRONT)
def test_blue_and_green(connector: str) -> None:
    blue = base(connector)
    green = {**blue, **OTHER["weights"], "cache.location": "/kv/green", "cache.namespace": "green"}
    empty = [about("inventory", "proved", blue, green, figures={"entries": 0})]
    assert decided(blue, green, evidence=empty).exit_code == 0
    assert decided(blue, green).exit_code == 10


# ---- the first salt ----


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        # Some requests carried a salt before: an entry of theirs may be anybody's.
        ({"request_features": ["cache_salt"]}, {}, OPEN),
        ({"request_features": FORGET}, {}, OPEN),
        # The salt is carried, and another difference stands beside it.
        ({}, OTHER["weights"], OPEN),
        # The old manifest contradicts itself: either half of it may be what was.
        (
            {"cache.tenancy": {"boundary": "organization", "carried_by": "cache_salt"}, "request_features": []},
            {},
            OPEN,
        ),
        ({"cache.tenancy": {"boundary": "shared", "carried_by": None}, "request_features": []}, {}, APART),
        ({"cache.connector": "lmcache-mp"}, {}, OPEN),
    ],
)
def test_a_first_salt_is_apart_only_where_no_old_request_had_one(
    old: dict[str, Any], new: dict[str, Any], answer: tuple[str, int]
) -> None:
    front = base("vllm-offload-fs")
    decision = decided({**front, **old}, {**front, **SALTED, **new})
    assert (decision.verdict, decision.exit_code) == answer


@pytest.mark.parametrize("namespace", ["prod-a", FORGET])
def test_a_first_salt_where_the_namespace_stood_in_its_place(namespace: Any) -> None:
    front = base("lmcache-mp")
    decision = decided({**front, "cache.namespace": namespace}, {**front, **SALTED, "cache.namespace": None})
    assert not decision.accepted
    assert "cache.tenancy" in {finding.change.dimension for finding in decision.findings if finding.open}


def test_a_salt_that_the_key_does_not_hold_is_no_boundary() -> None:
    decision = decided(base("lmcache"), {**base("lmcache"), **SALTED})
    assert (decision.verdict, decision.exit_code) == (CLEAR, 30)
