"""Everyday rollouts in front of several connectors: none cries wolf, and none is let through that is not safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.connectors import OTHER, base
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, decided, rules

FRONT = ("lmcache-mp", "vllm-offload-fs", "vllm-mooncake", "sglang-hicache-file")
MLA: dict[str, Any] = {
    "model.config/model_type": "deepseek_v3",
    "model.config/architectures": ["DeepseekV3ForCausalLM"],
    "model.config/kv_lora_rank": 512,
}
SALTED = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}
OLDER_RUNNER = {"engine.args/VLLM_USE_V2_MODEL_RUNNER": "0"}
KEPT, APART, OPEN = (REUSE, 0), (NAMESPACE, 0), (NAMESPACE, 10)


@dataclass(frozen=True)
class Rollout:
    """What changes, the rules that speak and no others, and the answer in front of each connector."""

    found: str
    answers: tuple[tuple[str, int], ...]
    new: dict[str, Any]
    old: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def everywhere(cls, found: str, answer: tuple[str, int], new: dict[str, Any]) -> Rollout:
        return cls(found, (answer,) * len(FRONT), new)


ROLLOUTS = {
    "rebuild with the same packages": Rollout.everywhere(
        "engine-rebuilt", KEPT, {"engine.image": "sha256:" + "9" * 64}
    ),
    "scale-out": Rollout.everywhere("replicas-changed", KEPT, {"parallelism.data": 4}),
    "template fix": Rollout.everywhere("template-changed", APART, OTHER["chat_template"]),
    "comments in the template": Rollout.everywhere("template-text-only", KEPT, {"chat_template.digest": digest("9")}),
    "tokenizer fix": Rollout.everywhere("tokenizer-changed", APART, OTHER["tokenizer"]),
    "new system prompt": Rollout.everywhere(
        "inputs-changed", KEPT, {"inputs.system_prompts": {"default": digest("9")}}
    ),
    "new tools": Rollout.everywhere("inputs-changed", KEPT, {"inputs.tool_schemas": {}}),
    # LMCache MP files a namespace as the salt of every request, and a tenant may have that very name.
    "first cache_salt": Rollout("requests-changed tenancy-narrowed", (OPEN, APART, APART, APART), SALTED),
    "first cache_salt, no namespace before": Rollout(
        "requests-changed tenancy-narrowed",
        (APART, APART, APART, APART),
        {**SALTED, "cache.namespace": None},
        {"cache.namespace": None},
    ),
    "tensor size 4 to 8": Rollout(
        "rank-layout-changed", (APART, APART, OPEN, APART), {"parallelism.tensor": 8}, {"parallelism.tensor": 4}
    ),
    "tensor size 4 to 8, the older model runner of vLLM": Rollout(
        "rank-layout-changed",
        (APART, OPEN, OPEN, APART),
        {**OLDER_RUNNER, "parallelism.tensor": 8},
        {**OLDER_RUNNER, "parallelism.tensor": 4},
    ),
    "tensor size 4 to 8, MLA": Rollout(
        "rank-layout-changed",
        (KEPT, KEPT, OPEN, KEPT),
        {**MLA, "parallelism.tensor": 8},
        {**MLA, "parallelism.tensor": 4},
    ),
    "KV dtype": Rollout("kv-dtype-changed", (OPEN, APART, OPEN, OPEN), OTHER["precision.kv_cache"]),
    "EAGLE switched on": Rollout.everywhere(
        "speculation-changed", OPEN, {"engine.speculative": {"method": "eagle", "model": "a"}}
    ),
    "new weights": Rollout.everywhere("weights-changed", OPEN, OTHER["weights"]),
    "labels": Rollout.everywhere("", KEPT, {"release.version": "2026.12.1", "cache.ttl": "7d"}),
}
CASES = [(name, connector, at) for name in ROLLOUTS for at, connector in enumerate(FRONT)]


@pytest.mark.parametrize(("name", "connector", "at"), CASES, ids=[f"{c}: {n}" for n, c, _ in CASES])
def test_a_rollout(name: str, connector: str, at: int) -> None:
    one = ROLLOUTS[name]
    decision = decided({**base(connector), **one.old}, {**base(connector), **one.new})
    assert (decision.verdict, decision.exit_code) == one.answers[at]
    assert rules(decision) == one.found.split()
    for finding in decision.findings:
        assert bool(finding.open) is (decision.exit_code == 10 and bool(finding.obligations))


LIMITS = {
    "vllm": {"gpu-memory-utilization": 0.5, "max-num-seqs": 64, "max-num-batched-tokens": 4096},
    "sglang": {"mem-fraction-static": 0.5, "max-running-requests": 64, "chunked-prefill-size": 4096},
}


@pytest.mark.parametrize("connector", FRONT)
def test_memory_and_batch_limits(connector: str) -> None:
    limits = LIMITS["sglang" if connector.startswith("sglang-") else "vllm"]
    old = {**base(connector), "engine.args": dict.fromkeys(limits, 1)}
    decision = decided(old, {**old, "engine.args": limits})
    assert (decision.verdict, decision.exit_code) == KEPT
    assert rules(decision) == ["flag-harmless"] * 3


def test_a_patch_upgrade_is_covered_where_a_row_says_so() -> None:
    decision = decided({"cache.version": "0.5.5"}, {})
    assert (decision.verdict, decision.exit_code) == KEPT
    (found,) = decision.findings
    assert (found.rule, "0.5.6" in str(found.discharged)) == ("connector-version-changed", True)
    # What no flag sets is the engine's to choose, and LMCache hashes with an algorithm of its own.
    unset = {**base("lmcache"), "engine.prefix_hash.algorithm": None}
    assert decided({**unset, "cache.version": "0.5.5"}, unset).verdict == REUSE
    # Tokens must be proved as well, and a row of one connector is none of another's.
    fixed = decided({"cache.version": "0.5.5"}, OTHER["chat_template"])
    assert (fixed.verdict, rules(fixed)) == (NAMESPACE, ["template-changed", "connector-version-changed"])
    engine = {"engine.version": "0.32.0"}
    for connector in FRONT:
        upgraded = decided({**base(connector), **engine}, base(connector))
        assert upgraded.verdict == NAMESPACE
        assert "engine-changed" in rules(upgraded)


def named(changes: dict[str, Any]) -> dict[str, Any]:
    """Put the derived id where any connector looks for it."""
    identifier = derive(clean(changes)).id
    return {**changes, "cache.namespace": identifier, "cache.location": f"/kv/{identifier}"}


# HiCache's file store reads no namespace.
MOVED = {**dict.fromkeys(FRONT, "key-space-moved"), "sglang-hicache-file": "key-space-inert"}


@pytest.mark.parametrize("connector", FRONT)
def test_out_to_a_canary_and_back_to_the_old_image(connector: str) -> None:
    old, canary = base(connector), {**base(connector), **OTHER["engine.build"]}
    moved = ["engine-changed", "key-space-moved", MOVED[connector]]
    for decision in (decided(named(old), named(canary)), decided([named(old), named(canary)], named(old))):
        assert (decision.verdict, decision.exit_code, rules(decision)) == (*APART, moved)
    # In one and the same store, what the canary wrote is hit by the one that comes back.
    back = decided([old, canary], old)
    assert (back.verdict, back.exit_code, rules(back)) == (*OPEN, ["engine-changed"])


@pytest.mark.parametrize("connector", FRONT)
def test_blue_and_green(connector: str) -> None:
    blue = base(connector)
    green = {**blue, **OTHER["weights"], "cache.location": "/kv/green", "cache.namespace": "green"}
    empty = [about("inventory", "proved", blue, green, figures={"entries": 0})]
    moved = ["weights-changed", "key-space-moved", MOVED[connector]]
    for evidence, answer in ((empty, APART), ([], OPEN)):
        decision = decided(blue, green, evidence=evidence)
        assert (decision.verdict, decision.exit_code, rules(decision)) == (*answer, moved)


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
