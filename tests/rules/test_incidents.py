"""Public incidents as decisions: the right verdict, and the right cause.

Manifests stand here for what capture makes of real checkpoints; the numbers are those of the incident table.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.decide import Decision
from kvgate.rules.finding import Finding
from tests.rules.clean import FORGET, digest
from tests.rules.deciding import NAMESPACE, REUSE, about, decided, rules

OFFLOAD: dict[str, Any] = {"cache.connector": "vllm-offload-fs", "cache.version": None}
REVISION_A, REVISION_B = {"model.revision": "a" * 40}, {"model.revision": "b" * 40}
WEIGHTS: dict[str, Any] = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}


def cause(decision: Decision) -> Finding:
    """Return the one finding that demands something."""
    (finding,) = (finding for finding in decision.findings if finding.obligations)
    return finding


def test_i06_the_cause_is_the_tokenizer_and_not_the_weights() -> None:
    """embeddings-benchmark/mteb#5377: revision bumped, equal weights, RobertaTokenizer to XLMRobertaTokenizer."""
    new = {
        **REVISION_B,
        "tokenizer.effective": digest("9"),
        "tokenizer.files/tokenizer_config.json": digest("9"),
    }
    refuted = about("token-identity", "refuted", REVISION_A, new, reason="conversations diverge")
    for evidence in ([], [refuted]):
        decision = decided(REVISION_A, new, evidence=evidence)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 0)
        assert sorted(rules(decision)) == ["model-name-inert", "tokenizer-changed", "tokenizer-inert"]
        assert cause(decision).change.dimension == "tokenizer"
        assert cause(decision).kv_valid == "yes"
        assert cause(decision).keys_separate == "through token ids"
    assert cause(decided(REVISION_A, new, evidence=[refuted])).tokens_equal == "no"


def test_i14_stops_padding_and_cleanup_are_no_difference() -> None:
    """unslothai/unsloth#416, turboderp-org/exllamav2#449."""
    old = {"model.config/eos_token_id": 128001}
    new = {
        "model.config/eos_token_id": [128001, 128009],
        "model.config/pad_token_id": 128004,
        "tokenizer.special_tokens/eos_token": "<|eot_id|>",
        "tokenizer.special_tokens/pad_token": "<|finetune_right_pad_id|>",
        "tokenizer.files/tokenizer_config.json": digest("9"),
    }
    decision = decided(old, new)
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert set(rules(decision)) == {"config-harmless", "tokenizer-inert"}


def test_i14_a_template_that_writes_its_end_token_makes_it_one() -> None:
    reads = {"chat_template.reads": ["bos_token", "eos_token", "messages"]}
    decision = decided(reads, {**reads, "tokenizer.special_tokens/eos_token": "<|eot_id|>"})
    assert decision.verdict == NAMESPACE
    assert cause(decision).change.kind == "special-tokens"
    unknown = {"chat_template.reads": FORGET}
    assert decided(unknown, {**unknown, "tokenizer.special_tokens/eos_token": "<|eot_id|>"}).verdict == NAMESPACE


def test_i19_a_revision_is_no_part_of_the_directory() -> None:
    """vllm-project/vllm#49261: the same repository at another revision, the same file tier."""
    decision = decided({**OFFLOAD, **REVISION_A}, {**OFFLOAD, **REVISION_B, **WEIGHTS})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert rules(decision) == ["weights-changed", "model-name-inert"]
    assert (cause(decision).kv_valid, cause(decision).keys_separate) == ("no", "no")


def test_i19_pinned_commits_decide_where_no_digest_was_taken() -> None:
    def pinned(commit: str) -> dict[str, Any]:
        hub = {"repo": "org/m", "commit": commit * 40}
        return {**OFFLOAD, "model.revision": commit * 40, "weights.checkpoint": None, "weights.hub": hub}

    decision = decided(pinned("a"), pinned("b"))
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11), "other commits may hold the same weights"
    assert cause(decision).keys_separate == "no"
    assert decided(pinned("a"), pinned("a")).verdict == REUSE


def test_i20_a_floating_name_on_both_sides_is_no_evidence() -> None:
    """noonghunna/club-3090#319, antirez/ds4#805: the repository was made anew under the same name and branch."""
    floating = {"model.revision": "main", "weights": {"mutable": False, "served": None}}
    decision = decided(floating, floating)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
    assert cause(decision).unverified
    assert "'main' on both sides is a name that can move" in cause(decision).change.detail
    assert cause(decision).settle
    resolved = {"model.revision": "main"}
    decision = decided(resolved, {**resolved, **WEIGHTS})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert (cause(decision).rule, cause(decision).keys_separate) == ("weights-changed", "no")


@pytest.mark.parametrize(
    ("new", "rule"),
    [
        ({"weights.checkpoint.layout": digest("9"), "weights.checkpoint.tensors": 291}, "weights-layout-only"),
        (
            {
                "weights.checkpoint.layout": digest("9"),
                "weights.checkpoint.digest": digest("9"),
                "weights.checkpoint.tensors": 290,
                "weights.checkpoint.bytes": 15009849344,
            },
            "weights-tail-only",
        ),
    ],
    ids=["shards", "tied head dropped"],
)
def test_i21_only_the_layout_or_the_head_differs(new: dict[str, Any], rule: str) -> None:
    """T0mSIlver/localvoxtral#140, EvolvingLMMs-Lab/lmms-engine#157."""
    decision = decided({}, new)
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert rules(decision) == [rule]
    assert "file" in decision.findings[0].change.detail or "no persisted state" in decision.findings[0].change.detail


@pytest.mark.parametrize(
    "unproved",
    [
        {"engine.speculative": {"method": "eagle"}},
        {"engine.speculative": FORGET},
        {"weights.checkpoint.kv_digest": FORGET},
        {"weights.checkpoint.kv_digest": None},
        {"weights.checkpoint.kv_rule": FORGET},
        {"weights.checkpoint.kv_rule": None},
        {"model.quantization": "fp8"},
        {"model.quantization": FORGET},
        {"engine.name": FORGET},
        {"provenance/weights.checkpoint.kv_digest": "declared"},
    ],
)
def test_i21_without_its_proof_a_head_counts_like_any_tensor(unproved: dict[str, Any]) -> None:
    decision = decided(unproved, {**unproved, "weights.checkpoint.digest": digest("9")})
    assert decision.verdict == NAMESPACE
    assert "weights-changed" in rules(decision)
    assert not decision.accepted


def test_i24_renamed_config_keys_are_the_same_config() -> None:
    """vllm-project/vllm#28542, sgl-project/sglang#14745."""
    llama3 = {"rope_type": "llama3", "factor": 8.0}
    old = {
        "model.config/dtype": FORGET,
        "model.config/torch_dtype": "bfloat16",
        "model.config/rope_parameters": FORGET,
        "model.config/rope_theta": 500000.0,
        "model.config/rope_scaling": llama3,
    }
    new = {"model.config/rope_parameters": {"rope_theta": 500000.0, **llama3}}
    for before, after in ((old, new), (new, old)):
        decision = decided(before, after)
        assert (decision.verdict, decision.exit_code) == (REUSE, 0)
        assert set(rules(decision)) == {"config-harmless"}


@pytest.mark.parametrize("connector", ["lmcache-mp", "vllm-offload-fs"])
def test_i27_auto_is_resolved_and_pages_of_equal_size_differ(connector: str) -> None:
    """vllm-project/vllm#49438, #45767, sgl-project/sglang#33268, InternLM/lmdeploy#4930."""
    base = {"cache.connector": connector}
    half = {**base, "precision.compute": "float16", "precision.kv_cache": "float16", "model.config/dtype": "float16"}
    decision = decided(half, base)
    assert decision.verdict == NAMESPACE
    assert {"compute-dtype-changed", "kv-dtype-changed"} <= set(rules(decision))
    assert all(finding.kv_valid == "no" for finding in decision.findings if finding.obligations)
    assert decision.exit_code == (0 if connector == "vllm-offload-fs" else 10)
    fp8 = decided(base, {**base, "precision.kv_cache": "fp8_e4m3"})
    assert (fp8.verdict, fp8.exit_code) == (NAMESPACE, 0 if connector == "vllm-offload-fs" else 10)


def test_i33_a_served_name_is_no_identity() -> None:
    """sgl-project/sglang#24758: the key holds the served name, and the weights behind it are others."""
    store = {"cache.connector": "own-store", "cache.key_fields": ["model.served_name", "token_ids"]}
    decision = decided({**store, "model.id": "/models/a"}, {**store, "model.id": "/models/b", **WEIGHTS})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert (cause(decision).rule, cause(decision).kv_valid, cause(decision).keys_separate) == (
        "weights-changed",
        "no",
        "no",
    )
    unknown = {**store, "weights": {"mutable": False, "served": None}}
    decision = decided({**unknown, "model.id": "/models/a"}, {**unknown, "model.id": "/models/b"})
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
