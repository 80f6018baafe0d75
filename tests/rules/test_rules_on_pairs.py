"""Every rule of the default pack on a pair that is made for it, with the whole answer written down.

The snapshot holds every finding of every pair, so a rule that fires where it should not breaks it as well as
one that is silent. What a pair is meant to reach, verdict and exit code stand here, where they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest
from syrupy.assertion import SnapshotAssertion

from kvgate.rules import diff as diff_module
from kvgate.rules.case import VERDICTS
from kvgate.rules.catalogue import dimensions
from kvgate.rules.change import UNVERIFIED
from kvgate.rules.evidence import Kind
from kvgate.rules.pack import KINDS, shipped_pack
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, answer, decided, kinds, rules
from tests.rules.served import served

PACK = shipped_pack("default")
IMAGE = "sha256:" + "9" * 64
DYNAMIC = {"model.config/rope_parameters": {"rope_type": "dynamic", "rope_theta": 500000.0, "factor": 2.0}}
OFFLOAD = {"cache.connector": "vllm-offload-fs", "cache.version": None}
SHARDED = {
    "cache.connector": "sglang-hicache-mooncake",
    "cache.version": None,
    "engine.name": "sglang",
    "engine.version": "0.5.23",
    "engine.args/enable-dp-attention": True,
}
BILLING = {"name": "billing", "path": "/adapters/billing", "digest": digest("9")}
OTHER = {**BILLING, "digest": digest("8")}
TENANT = {"boundary": "tenant", "carried_by": "cache_salt"}
USER = {"boundary": "user", "carried_by": "cache_salt"}
SALTED = {"request_features": ["cache_salt"]}
POOLS = [{"name": "prefill", "set": {"engine.block_size": 32}}, {"name": "decode", "set": {}}]
AGREEING = [{"name": "prefill", "set": {"parallelism.data": 4}}, {"name": "decode", "set": {}}]
HOT = {"request_features": ["lora", "lora_hot_load"]}


@dataclass(frozen=True)
class Pair:
    """One pair, and what it is there to show: ``(dimension, kind)``, verdict, exit code.

    ``shared`` stands on both sides; what a side says of its own wins.
    """

    dimension: str
    kind: str
    old: dict[str, Any]
    new: dict[str, Any]
    verdict: str
    exit_code: int
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.dimension}: {self.kind}" + (f" ({self.name})" if self.name else "")


def pair(
    reaches: str,
    new: dict[str, Any],
    verdict: str,
    exit_code: int,
    *,
    old: dict[str, Any] | None = None,
    shared: dict[str, Any] | None = None,
    name: str = "",
) -> Pair:
    dimension, _, kind = reaches.partition(": ")
    both = shared or {}
    return Pair(dimension, kind, {**both, **(old or {})}, {**both, **new}, verdict, exit_code, name)


def differs(path: str, value: Any, exit_code: int = 10, **more: Any) -> Pair:
    """One leaf of the dimension that bears its name differs, and nothing keeps the entries apart."""
    return pair(f"{more.pop('dimension', path)}: differs", {path: value}, NAMESPACE, exit_code, **more)


PAIRS = [
    # ---- weights ----
    pair(
        "weights: kv-tensors",
        {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")},
        NAMESPACE,
        10,
    ),
    pair(
        "weights: kv-tensors",
        {"weights.checkpoint.digest": digest("9")},
        NAMESPACE,
        10,
        shared={"engine.speculative": {"method": "eagle"}},
        name="tail only, with a draft model",
    ),
    pair(
        "weights: kv-tensors",
        {"weights.checkpoint.digest": digest("9")},
        NAMESPACE,
        10,
        shared={"model.quantization": "fp8"},
        name="tail only, quantized",
    ),
    pair(
        "weights: kv-tensors",
        {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_rule": "2/llama"},
        NAMESPACE,
        10,
        name="tail only, under another list",
    ),
    pair(
        "weights: kv-tensors",
        {"weights.checkpoint.digest": digest("9")},
        NAMESPACE,
        10,
        shared={"engine.args": {"model-class-overrides": {"LlamaForCausalLM": "my.mod:X"}}},
        name="tail only, with a flag that nobody listed",
    ),
    pair(
        "weights: unverified",
        {"weights.hub": {"repo": "acme/support-8b", "commit": "b" * 40}},
        NAMESPACE,
        11,
        shared={"weights.checkpoint": None},
        old={"weights.hub": {"repo": "acme/support-8b", "commit": "a" * 40}},
        name="another pinned commit",
    ),
    pair("weights: tail-only", {"weights.checkpoint.digest": digest("9")}, REUSE, 0),
    pair("weights: layout", {"weights.checkpoint.layout": digest("9")}, REUSE, 0),
    pair("weights: unverified", {"weights.checkpoint": FORGET}, NAMESPACE, 11),
    pair(
        "weights: unverified",
        {},
        NAMESPACE,
        11,
        shared={"weights.checkpoint": FORGET, "model.revision": "main"},
        name="main and main",
    ),
    pair("weights: unverified", {}, NAMESPACE, 11, shared={"provenance/weights": "declared"}, name="only declared"),
    differs("weights.served", served("9"), old={"weights.served": served("8")}),
    differs("weights.served", served("98"), old={"weights.served": served("88")}, name="one of two ranks"),
    differs(
        "weights.served",
        served("9", checkpoint="a", own="9"),
        old={"weights.served": served("8", checkpoint="a", own="8")},
        name="one checkpoint, other buffers of the engine's own",
    ),
    pair(
        "weights.served: unverified",
        {"weights.served": served("9")},
        NAMESPACE,
        11,
        name="one engine was asked, and what it holds is not shown to be the checkpoint",
    ),
    pair(
        "weights.served: unverified",
        {"weights.served": served("9", checkpoint="9")},
        NAMESPACE,
        11,
        name="one engine was asked, and it holds another checkpoint",
    ),
    pair(
        "weights.served: unverified",
        {"weights.served": served("9", checkpoint="a", own="7")},
        NAMESPACE,
        11,
        name="one engine was asked, and it holds buffers of its own",
    ),
    pair(
        "weights.served: unverified",
        {"weights.served": served("98")},
        NAMESPACE,
        11,
        old={"weights.served": served("9")},
        name="two forms",
    ),
    pair(
        "weights.served: unverified",
        {"weights.served": [{"rank": 0, "digest": digest("9")}]},
        NAMESPACE,
        11,
        old={"weights.served": [{"rank": 0, "digest": digest("8")}]},
        name="forms that nobody knows",
    ),
    pair(
        "weights.served: unverified",
        {},
        NAMESPACE,
        11,
        shared={"weights.served": served("9"), "provenance/weights.served": "declared"},
        name="only declared",
    ),
    pair("weights.mutable: was-mutable", {}, NAMESPACE, 10, old={"weights.mutable": True}),
    pair("weights.mutable: now-mutable", {"weights.mutable": True}, NAMESPACE, 30),
    pair("weights.mutable: fault", {}, NAMESPACE, 30, shared={"weights.mutable": True}),
    # ---- model ----
    pair("model.id: moved", {"model.id": "acme/support-8b-v2"}, NAMESPACE, 10),
    pair(
        "model.id: inert",
        {"model.id": "acme/support-8b-v2"},
        REUSE,
        0,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids"]},
    ),
    pair("model.served_name: inert", {"model.served_name": "other"}, REUSE, 0),
    pair(
        "model.served_name: moved",
        {"model.served_name": "other"},
        NAMESPACE,
        10,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "model.served_name"]},
    ),
    pair(
        "model.served_name: unverified",
        {"model.served_name": FORGET},
        NAMESPACE,
        11,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "model.served_name"]},
    ),
    pair("model.revision: inert", {"model.revision": "main"}, REUSE, 0),
    pair(
        "model.revision: moved",
        {"model.revision": "main"},
        NAMESPACE,
        10,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "model.revision"]},
    ),
    pair(
        "model.revision: unverified",
        {"model.revision": FORGET},
        NAMESPACE,
        11,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "model.revision"]},
    ),
    pair("model.config: counts", {"model.config/rms_norm_eps": 1e-06}, NAMESPACE, 10),
    pair("model.config: unclassified", {"model.config/something_new": 1}, NAMESPACE, 10),
    pair("model.config: harmless", {"model.config/eos_token_id": [128001, 128009]}, REUSE, 0),
    pair("model.config: unverified", {"model.config": FORGET}, NAMESPACE, 11),
    differs("model.quantization", "awq"),
    differs("model.code", digest("9")),
    differs("model.processor", digest("9")),
    # ---- tokens: other ids are other keys, so the change is accepted in front of keys made of them ----
    pair("tokenizer: effective", {"tokenizer.effective": digest("9")}, NAMESPACE, 0),
    pair("tokenizer: vocabulary", {"tokenizer.vocabulary": {"size": 9, "digest": digest("9")}}, NAMESPACE, 0),
    pair("tokenizer: special-tokens", {"tokenizer.special_tokens/bos_token": "<bos>"}, NAMESPACE, 0),
    pair("tokenizer: inert", {"tokenizer.special_tokens/pad_token": "<unk>"}, REUSE, 0, name="unread special token"),
    pair("tokenizer: inert", {"tokenizer.files/tokenizer.json": digest("9")}, REUSE, 0, name="files"),
    pair("tokenizer: unverified", {"tokenizer.effective": FORGET}, NAMESPACE, 0),
    pair("tokenizer: unverified", {}, NAMESPACE, 0, shared={"provenance/tokenizer": "declared"}, name="only declared"),
    differs("tokenizer.renderer.transformers", "4.57.6", 0, dimension="tokenizer.renderer"),
    differs("tokenizer.options/content_format", "openai", 0, dimension="tokenizer.options"),
    pair(
        "chat_template: tree",
        {"chat_template.digest": digest("9"), "chat_template.tree": digest("9")},
        NAMESPACE,
        0,
    ),
    pair("chat_template: text", {"chat_template.digest": digest("9")}, REUSE, 0),
    pair("chat_template: clock", {}, REUSE, 0, shared={"chat_template.reads_clock": True}),
    pair("chat_template: unverified", {"chat_template": FORGET}, NAMESPACE, 0),
    # ---- precision ----
    differs("precision.compute", "float16"),
    differs("precision.kv_cache", "fp8_e4m3"),
    differs("precision.kv_scales", digest("9")),
    pair("precision.kv_scales: dynamic", {}, NAMESPACE, 10, old={"precision.kv_scales": "dynamic"}),
    pair("precision.kv_scales: fault", {"precision.kv_scales": "dynamic"}, NAMESPACE, 30),
    # ---- adapters ----
    pair("adapters: replaced", {"adapters": [OTHER]}, NAMESPACE, 10, shared=OFFLOAD, old={"adapters": [BILLING]}),
    pair(
        "adapters: replaced",
        {"adapters": [OTHER]},
        NAMESPACE,
        10,
        shared=OFFLOAD,
        old={"adapters": [{**BILLING, "removed": True}]},
        name="a name comes back",
    ),
    pair(
        "adapters: replaced-in-place",
        {"adapters": [OTHER]},
        CLEAR,
        20,
        shared={**OFFLOAD, **HOT},
        old={"adapters": [BILLING]},
    ),
    pair("adapters: added", {"adapters": [BILLING]}, NAMESPACE, 30),
    pair("adapters: added", {"adapters": [BILLING]}, REUSE, 0, shared=OFFLOAD, name="the key holds the adapter"),
    pair("adapters: removed", {}, NAMESPACE, 10, old={"adapters": [BILLING]}),
    pair(
        "adapters: removed",
        {"adapters": [{**BILLING, "removed": True}]},
        REUSE,
        0,
        shared=OFFLOAD,
        old={"adapters": [BILLING]},
        name="the key holds the adapter, tombstone",
    ),
    pair(
        "adapters: replaced",
        {"adapters": [{**OTHER, "removed": True}]},
        NAMESPACE,
        10,
        shared=OFFLOAD,
        old={"adapters": [BILLING]},
        name="a tombstone of other bytes",
    ),
    pair("adapters: forgotten", {}, REUSE, 0, old={"adapters": [{**BILLING, "removed": True}]}),
    pair(
        "adapters: moved",
        {"adapters": [{**BILLING, "path": "/elsewhere"}]},
        REUSE,
        0,
        shared=OFFLOAD,
        old={"adapters": [BILLING]},
    ),
    pair("adapters: unverified", {"adapters": FORGET}, NAMESPACE, 11),
    pair(
        "adapters: unverified",
        {"adapters": [OTHER]},
        NAMESPACE,
        11,
        shared=OFFLOAD,
        old={"adapters": [BILLING], "request_features": FORGET},
        name="other bytes, in place or not",
    ),
    pair(
        "adapters: unverified",
        {"adapters": [{**BILLING, "alpha": 64}, {**OTHER, "name": "added"}]},
        NAMESPACE,
        11,
        shared=OFFLOAD,
        old={"adapters": [{**BILLING, "alpha": 32}]},
        name="equal digest, another alpha, beside a harmless change",
    ),
    # ---- rank layout and format ----
    differs("parallelism.tensor", 4, 0),
    differs("parallelism.pipeline", 2, 0),
    differs("parallelism.expert", 2),
    differs("parallelism.decode_context", 2, dimension="parallelism.context"),
    pair("parallelism.data: differs", {"parallelism.data": 4}, REUSE, 0),
    pair("parallelism.data: sharded", {"parallelism.data": 4}, NAMESPACE, 10, shared=SHARDED),
    pair("parallelism.data: unverified", {"parallelism.data": FORGET}, NAMESPACE, 11, shared=SHARDED),
    differs("engine.block_size", 32),
    differs("engine.kv_layout", "HND"),
    differs("cache.chunk_size", 128, 0),
    differs("cache.serde", "cachegen"),
    differs("engine.speculative", {"method": "eagle"}),
    # ---- engine ----
    differs("engine.name", "sglang"),
    differs("engine.version", "0.32.0"),
    pair("engine.build: differs", {"engine.packages": digest("9")}, NAMESPACE, 10),
    pair(
        "engine.build: differs", {"engine.image": IMAGE}, NAMESPACE, 10, shared={"engine.packages": None}, name="image"
    ),
    pair("engine.build: rebuilt", {"engine.image": IMAGE}, REUSE, 0),
    differs("engine.accelerator", "B200"),
    differs("engine.attention_backend", "FLASHINFER"),
    differs("cache.version", "0.6.0"),
    pair("cache.version: differs", {"cache.version": "0.5.5"}, REUSE, 0, name="a sourced row covers the step"),
    pair("cache.version: differs", {}, REUSE, 0, old={"cache.version": "0.4.9"}, name="a row covers the step up only"),
    pair("engine.max_model_len: inert", {"engine.max_model_len": 4096}, REUSE, 0),
    pair("engine.max_model_len: rope-dependent", {"engine.max_model_len": 4096}, NAMESPACE, 10, shared=DYNAMIC),
    pair("engine.args: harmless", {"engine.args/gpu-memory-utilization": 0.8}, REUSE, 0),
    pair("engine.args: unclassified", {"engine.args/enable-dbo": True}, NAMESPACE, 10),
    # ---- the key space ----
    pair(
        "engine.prefix_hash: moved",
        {"engine.prefix_hash.seed": "1"},
        NAMESPACE,
        10,
        shared={"cache.connector": "lmcache"},
    ),
    pair(
        "engine.prefix_hash: unverified",
        {"engine.prefix_hash.seed": FORGET},
        NAMESPACE,
        11,
        shared={"cache.connector": "lmcache"},
    ),
    pair("engine.prefix_hash: inert", {"engine.prefix_hash.seed": "1"}, REUSE, 0),
    pair("cache.connector: moved", {"cache.connector": "lmcache"}, NAMESPACE, 10),
    pair("cache.connector: moved", {}, NAMESPACE, 10, old={"cache.connector": None}, name="there was none"),
    pair("cache.connector: detached", {"cache.connector": None}, REUSE, 0),
    pair("cache.connector: unverified", {"cache.connector": FORGET}, NAMESPACE, 11),
    pair(
        "cache.connector: producer",
        {},
        CLEAR,
        20,
        old={"cache.version": "0.5.1"},
        shared={"request_features": ["multimodal"]},
    ),
    pair(
        "cache.connector: fault",
        {},
        CLEAR,
        30,
        shared={"cache.version": "0.5.1", "request_features": ["multimodal"]},
    ),
    pair(
        "cache.connector: producer-unverified",
        {},
        NAMESPACE,
        11,
        shared={"cache.version": "0.5.1"},
        old={"request_features": FORGET},
    ),
    pair("cache.location: moved", {"cache.location": "redis://cache-2:6379/0"}, NAMESPACE, 10),
    pair("cache.namespace: moved", {"cache.namespace": "prod-b"}, NAMESPACE, 10),
    pair(
        "cache.key_fields: moved",
        {"cache.key_fields": ["token_ids", "cache.epoch"]},
        NAMESPACE,
        10,
        shared={"cache.connector": "own-store"},
        old={"cache.key_fields": ["token_ids"]},
    ),
    pair(
        "cache.key_fields: unverified",
        {"cache.key_fields": FORGET},
        NAMESPACE,
        11,
        shared={"cache.connector": "own-store"},
        old={"cache.key_fields": ["token_ids"]},
    ),
    pair("cache.key_fields: inert", {"cache.key_fields": ["token_ids"]}, REUSE, 0),
    pair(
        "cache.epoch: moved",
        {"cache.epoch": 15},
        NAMESPACE,
        10,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "epoch"]},
    ),
    pair(
        "cache.epoch: unverified",
        {"cache.epoch": FORGET},
        NAMESPACE,
        11,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids", "epoch"]},
    ),
    pair("cache.epoch: inert", {"cache.epoch": 15}, REUSE, 0),
    pair(
        "cache.namespace: inert",
        {"cache.namespace": "prod-b"},
        REUSE,
        0,
        shared={"cache.connector": "own-store", "cache.key_fields": ["token_ids"]},
    ),
    pair("cache.location: inert", {"cache.location": "redis://cache-2:6379/0", "cache.connector": None}, REUSE, 0),
    # ---- requests and tenants ----
    pair("request_features: unverified", {"request_features": FORGET}, NAMESPACE, 11),
    pair("request_features: unverified", {}, NAMESPACE, 11, old={"request_features": FORGET}, name="of the old side"),
    pair("request_features: introduced", {"request_features": ["lora"]}, REUSE, 0, shared=OFFLOAD),
    pair("request_features: dropped", {}, REUSE, 0, shared=OFFLOAD, old={"request_features": ["lora"]}),
    pair("request_features: dropped-unseparated", {}, NAMESPACE, 10, old={"request_features": ["lora"]}),
    pair("request_features: fault", {}, NAMESPACE, 30, shared={"request_features": ["lora"]}),
    pair("cache.tenancy: narrowed", {"cache.tenancy": TENANT}, NAMESPACE, 10, shared=SALTED),
    pair("cache.tenancy: widened", {}, CLEAR, 20, shared=SALTED, old={"cache.tenancy": TENANT}),
    pair(
        "cache.tenancy: widened",
        {"cache.tenancy": TENANT},
        CLEAR,
        20,
        shared=SALTED,
        old={"cache.tenancy": USER},
        name="user to tenant",
    ),
    pair(
        "cache.tenancy: carrier",
        {"cache.tenancy": {"boundary": "tenant", "carried_by": "customer"}},
        NAMESPACE,
        10,
        shared={
            "cache.connector": "own-store",
            "cache.version": None,
            "cache.key_fields": ["token_ids", "account", "customer"],
        },
        old={"cache.tenancy": {"boundary": "tenant", "carried_by": "account"}},
    ),
    pair("cache.tenancy: fault", {}, CLEAR, 30, shared={"cache.tenancy": {"boundary": "tenant", "carried_by": None}}),
    pair("cache.tenancy: unverified", {"cache.tenancy": FORGET}, NAMESPACE, 11),
    pair("roles: differs", {"roles": AGREEING}, REUSE, 0),
    pair("roles: fault", {}, NAMESPACE, 30, shared={"roles": POOLS}),
    pair("roles: unverified", {"roles": FORGET}, NAMESPACE, 11),
    # ---- what is put in front of requests ----
    pair("inputs.tool_schemas: differs", {"inputs.tool_schemas": {}}, REUSE, 0),
    pair("inputs.document_sets: differs", {"inputs.document_sets": {}}, REUSE, 0),
    pair("inputs.system_prompts: differs", {"inputs.system_prompts": {}}, REUSE, 0),
    pair(
        "inputs.system_prompts: differs",
        {"inputs.system_prompts": {}},
        NAMESPACE,
        10,
        shared={"cache.connector": "own-store", "cache.key_fields": ["namespace"]},
        name="not in the store's key",
    ),
]


def unknown() -> list[Pair]:
    """Every dimension that no pair above leaves unknown, forgotten on the new side."""
    told = {(one.dimension, one.kind) for one in PAIRS}
    through_the_tokens = {"tokenizer.renderer", "tokenizer.options", "cache.chunk_size"}
    in_the_tokens = {"inputs.tool_schemas", "inputs.document_sets", "inputs.system_prompts"}
    return [
        pair(
            f"{one.id}: {UNVERIFIED}",
            {one.paths[0]: FORGET},
            REUSE if one.id in in_the_tokens else NAMESPACE,
            0 if one.id in in_the_tokens | through_the_tokens else 11,
        )
        for one in dimensions()
        if UNVERIFIED in KINDS[one.compare] and (one.id, UNVERIFIED) not in told and one.id != "model.id"
    ]


ALL = [*PAIRS, *unknown()]
UNREACHABLE = {
    ("model.id", UNVERIFIED): "the schema requires model.id",
    ("unclassified", "unclassified"): "a net: see test_what_no_comparison_claims_is_counted",
}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_the_whole_answer(one: Pair, snapshot: SnapshotAssertion) -> None:
    decision = decided(one.old, one.new)
    assert (one.dimension, one.kind) in kinds(decision)
    assert (decision.verdict, decision.exit_code) == (one.verdict, one.exit_code)
    assert answer(decision) == snapshot


def test_every_pair_has_a_name_of_its_own() -> None:
    names = [one.id for one in ALL]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_nothing_in_the_pack_is_dead() -> None:
    watched = {(dimension, kind) for rule in PACK.rules for dimension, of in rule.watches.items() for kind in of}
    reached = {(one.dimension, one.kind) for one in ALL} | set(kinds(decided([], {})))
    assert watched - reached == UNREACHABLE.keys()


def test_every_rule_id_is_reached() -> None:
    reached = {rule for one in ALL for rule in rules(decided(one.old, one.new))} | set(rules(decided([], {})))
    assert {rule.id for rule in PACK.rules} - reached == {"unclassified"}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_a_deployment_against_itself_has_nothing_but_its_own_faults(one: Pair) -> None:
    """What is unknown, mutable, calibrated while running, mixed or defective is a difference to itself too."""
    unlike_itself = {"unverified", "was-mutable", "dynamic", "clock", "producer", "producer-unverified"}
    for side in (one.old, one.new):
        found = decided(side, side).findings
        assert [
            finding.rule for finding in found if not finding.self_fault and finding.change.kind not in unlike_itself
        ] == []


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_swapped_only_a_rule_that_says_so_becomes_milder(one: Pair) -> None:
    there, back = decided(one.old, one.new), decided(one.new, one.old)
    if there.verdict == back.verdict:
        return
    stricter = max((there, back), key=lambda decision: VERDICTS.index(decision.verdict))
    demanding = [
        PACK.rule_for(*kind)
        for kind, finding in zip(kinds(stricter), stricter.findings, strict=True)
        if finding.obligations
    ]
    assert [rule.id for rule in demanding if rule.asymmetric is None] == []


# ---- refutations ----

REFUTED = {
    "token-identity": (NAMESPACE, 0),
    "weights-identity": (NAMESPACE, 10),
    "config-equivalence": (NAMESPACE, 10),
    "kv-equivalence": (NAMESPACE, 10),
    "inventory": (NAMESPACE, 10),
    "bypass-diff": (NAMESPACE, 10),
    "isolation": (CLEAR, 30),
    "lifecycle-audit": (CLEAR, 20),
    "tenant-canary": (CLEAR, 20),
}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_whole_answer_to_a_refutation(kind: Kind, snapshot: SnapshotAssertion) -> None:
    refuted = about(kind, "refuted", {}, {}, reason="found on purpose")
    decision = decided({}, {}, evidence=[refuted])
    assert (decision.verdict, decision.exit_code) == REFUTED[kind]
    assert answer(decision) == snapshot
    rule = PACK.adverse_rule(refuted)
    assert rule is not None
    assert rules(decision) == [rule.id]


# ---- a first deployment ----


def test_the_whole_answer_to_a_first_deployment(snapshot: SnapshotAssertion) -> None:
    assert answer(decided([], {})) == snapshot


# ---- the net under the comparisons ----


def test_what_no_comparison_claims_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a comparison to overlook a leaf, the walk over both manifests would still find it."""
    silent = {**diff_module._COMPARISONS, "exact": lambda _dimension, _sides: []}
    monkeypatch.setattr(diff_module, "_COMPARISONS", silent)
    decision = decided({}, {"precision.compute": "float16"})
    assert answer(decision) == [
        "new-namespace, exit 10",
        "unclassified | unclassified: unclassified | precision.compute | keys separate: unknown | open: separate",
    ]


def test_a_complete_pair_is_reuse_without_findings() -> None:
    assert answer(decided(clean(), clean())) == ["verified-compatible-reuse, exit 0"]
