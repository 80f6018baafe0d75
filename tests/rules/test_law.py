"""The law (design, section 3): knowing less never yields reuse, nor acceptance.

Random manifests are almost never one step from reuse, so the cases are enumerated: every change of one
dimension and of two around a clean pair, in front of several connectors; then every forgetting of a field
that plays a part, evidence bound anew, verdict and acceptance compared under every way of accepting. Three
planted violations must be caught by the very same enumeration.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from kvgate.rules import change as change_module
from kvgate.rules import diff as diff_module
from kvgate.rules import settling as settling_module
from kvgate.rules.case import Case, Options
from kvgate.rules.catalogue import dimensions
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Evidence, Kind, State, subject_of
from kvgate.rules.find import find
from kvgate.rules.manifest import Manifest, manifest_from, schema_leaves
from kvgate.rules.namespace import derive
from kvgate.rules.pack import shipped_pack
from kvgate.rules.profile import shipped_profiles
from kvgate.rules.schema import ManifestModel
from kvgate.rules.settling import settle
from kvgate.rules.waivers import Waiver
from tests.rules.clean import CLEAN, FORGET, clean, data, digest
from tests.rules.connectors import base
from tests.rules.served import served
from tests.rules.walking import walk

PACK = shipped_pack("default")
NO_KNOB = shipped_profiles()["lmcache-mp"].model_copy(update={"id": "no-knob", "knobs": []})
PROFILES = {**shipped_profiles(), "no-knob": NO_KNOB}

PUBLISHED = {"model.safetensors": f"sha256:{'1' * 64}", "config.json": f"git-blob:{'2' * 40}"}
TENANT = {"boundary": "tenant", "carried_by": "cache_salt"}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 500000.0, "factor": 2.0}

# For every dimension, the changes to try: each a set of paths that move together.
CHANGES: dict[str, list[dict[str, Any]]] = {
    "weights": [
        {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")},
        {"weights.checkpoint.digest": digest("9")},
        {"weights.checkpoint.layout": digest("9")},
        {"weights.checkpoint": None},
        {"weights.checkpoint": None, "weights.hub": {"repo": "acme/support-8b", "commit": "a" * 40}},
        {
            "weights.checkpoint": None,
            "weights.hub": {"repo": "acme/support-8b", "commit": "a" * 40, "files": PUBLISHED},
        },
        {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_rule": "opaque"},
    ],
    "weights.served": [
        {"weights.served": [{"rank": 0, "digest": digest("9")}]},
        {"weights.served": served("9", "a")},
        # The checkpoint and buffers beside it, or the same with buffers of which nothing is known.
        {"weights.served": served("9", "a", "1")},
        {"weights.served": [{name: value for name, value in served("9", "a")[0].items() if name != "own"}]},
    ],
    "weights.mutable": [{"weights.mutable": True}],
    "model.id": [{"model.id": "/models/other"}],
    "model.served_name": [{"model.served_name": "other"}],
    "model.revision": [{"model.revision": "main"}],
    "model.config": [
        {"model.config/rms_norm_eps": 1e-6},
        {"model.config/eos_token_id": 7},
        {"model.config/something_new": 1},
        {"model.config/rope_parameters": DYNAMIC_ROPE},
    ],
    "model.quantization": [{"model.quantization": "awq"}],
    "model.code": [{"model.code": digest("9")}],
    "model.processor": [{"model.processor": digest("9")}],
    "tokenizer": [
        {"tokenizer.effective": digest("9")},
        {"tokenizer.files": {"tokenizer.json": digest("9")}},
        {"tokenizer.special_tokens/pad_token": "<other>"},
        {"tokenizer.special_tokens/bos_token": "<other>"},
        {"tokenizer.vocabulary": {"size": 5, "digest": digest("9")}},
    ],
    "tokenizer.renderer": [{"tokenizer.renderer.transformers": "4.57.6"}, {"tokenizer.renderer.transformers": None}],
    "tokenizer.options": [{"tokenizer.options": {"content_format": "openai"}}],
    "chat_template": [
        {"chat_template.digest": digest("9"), "chat_template.tree": digest("9")},
        {"chat_template.digest": digest("9")},
        {"chat_template": None},
        {"chat_template.reads_clock": True},
    ],
    "precision.compute": [{"precision.compute": "float16"}],
    "precision.kv_cache": [{"precision.kv_cache": "fp8_e4m3"}],
    "precision.kv_scales": [{"precision.kv_scales": digest("9")}, {"precision.kv_scales": "dynamic"}],
    "adapters": [
        {"adapters": [{"name": "billing", "digest": digest("9")}]},
        {"adapters": [{"name": "billing", "digest": digest("8")}]},
        {"adapters": [{"name": "billing"}]},
        {"adapters": [{"name": "billing", "digest": digest("9"), "removed": True}]},
    ],
    "parallelism.tensor": [{"parallelism.tensor": 4}],
    "parallelism.pipeline": [{"parallelism.pipeline": 2}],
    "parallelism.expert": [{"parallelism.expert": 2}],
    "parallelism.context": [{"parallelism.decode_context": 2}],
    "parallelism.data": [
        {"parallelism.data": 4},
        {"parallelism.data": 4, "engine.name": "sglang", "engine.args/enable-dp-attention": True},
    ],
    "engine.name": [{"engine.name": "sglang"}],
    "engine.version": [{"engine.version": "0.32.0"}, {"engine.version": "0.1.0"}],
    "engine.build": [
        {"engine.image": "sha256:" + "9" * 64},
        {"engine.packages": digest("9")},
        {"engine.image": None, "engine.packages": None},
    ],
    "engine.accelerator": [{"engine.accelerator": None}],
    "engine.attention_backend": [{"engine.attention_backend": None}],
    "engine.block_size": [{"engine.block_size": 32}],
    "engine.kv_layout": [{"engine.kv_layout": "HND"}],
    "engine.max_model_len": [{"engine.max_model_len": 4096}],
    "engine.prefix_hash": [{"engine.prefix_hash.seed": "1"}, {"engine.prefix_hash.seed": None}],
    "engine.speculative": [{"engine.speculative": {"method": "eagle"}}],
    "engine.args": [
        {"engine.args/enable-something": True},
        {"engine.args/gpu-memory-utilization": 0.5},
        {"engine.args/load-format": "pt"},
    ],
    "request_features": [
        {"request_features": ["lora"]},
        {"request_features": ["lora_hot_load"]},
        {"request_features": ["cache_salt"]},
        {"request_features": ["prompt_embeds"]},
        {"request_features": ["multimodal"]},
    ],
    "roles": [
        {"roles": [{"name": "p", "set": {"parallelism.tensor": 8}}, {"name": "d", "set": {}}]},
        # A pool that is what the other side is in all that the key holds; one that is filed where nobody looks.
        {
            "parallelism.tensor": 2,
            "roles": [{"name": "p", "set": {"parallelism.tensor": 4}}, {"name": "d", "set": {}}],
        },
        {"roles": [{"name": "p", "set": {"cache.namespace": "z"}}, {"name": "d", "set": {}}]},
        {
            "cache.tenancy": {"boundary": "shared", "carried_by": None},
            "roles": [{"name": "p", "set": {"cache.tenancy.boundary": "tenant"}}, {"name": "d", "set": {}}],
        },
    ],
    "cache.connector": [{"cache.connector": "lmcache"}, {"cache.connector": "nobody-knows"}, {"cache.connector": None}],
    "cache.version": [{"cache.version": "0.5.1"}, {"cache.version": "0.1"}],
    "cache.location": [{"cache.location": "redis://cache-2:6379/0"}],
    "cache.chunk_size": [{"cache.chunk_size": 128}],
    "cache.serde": [{"cache.serde": "cachegen"}],
    "cache.namespace": [{"cache.namespace": "prod-b"}, {"cache.namespace": "DERIVED"}],
    "cache.tenancy": [{"cache.tenancy": TENANT}, {"cache.tenancy": {"boundary": "tenant", "carried_by": None}}],
    "cache.key_fields": [{"cache.key_fields": ["token_ids"]}],
    "cache.epoch": [{"cache.epoch": 15}],
    "inputs.tool_schemas": [{"inputs.tool_schemas": {}}],
    "inputs.document_sets": [{"inputs.document_sets": {}}],
    "inputs.system_prompts": [{"inputs.system_prompts": {}}],
}

OWN = {"cache.connector": "own-store", "cache.version": None}
CONTEXTS: dict[str, dict[str, Any]] = {
    "lmcache-mp": {},
    "lmcache": {"cache.connector": "lmcache"},
    "vllm-offload-fs": {"cache.connector": "vllm-offload-fs", "cache.version": None},
    "own-store, token keyed": {**OWN, "cache.key_fields": ["token_ids", "namespace"]},
    "own-store, template version": {**OWN, "cache.key_fields": ["template_version"]},
    "no profile": {"cache.connector": "nobody-knows"},
    "no knob": {"cache.connector": "no-knob"},
    "no store": {"cache.connector": None},
    "tenants": {"cache.tenancy": TENANT, "request_features": ["cache_salt"]},
    "adapters": {
        "cache.connector": "vllm-offload-fs",
        "cache.version": None,
        "request_features": ["lora", "lora_hot_load"],
        "adapters": [{"name": "billing", "digest": digest("9")}],
    },
    "pinned": {"weights.checkpoint": None, "weights.hub": {"repo": "acme/support-8b", "commit": "b" * 40}},
    "published": {
        "weights.checkpoint": None,
        "weights.hub": {"repo": "acme/support-8b", "commit": "b" * 40, "files": PUBLISHED},
    },
    "asked": {"weights.served": served("9", "a", "1")},
    "bare": {"engine.image": None, "engine.packages": None},
    "tokenizer built elsewhere": {"tokenizer.built_by": {"transformers": "5.24.0", "tokenizers": "0.23.3"}},
    "old media": {"cache.version": "0.5.1", "request_features": ["multimodal"]},
    "cells on a condition": {**base("sglang-hicache-file"), "cache.namespace": None},
    "entries of the worker": base("vllm-apc"),
    "two things at one place": {
        **base("llm-d-fs"),
        "request_features": ["lora", "cache_salt"],
        "cache.tenancy": TENANT,
    },
}
FULL = ("lmcache-mp", "vllm-offload-fs")
"""The connectors in front of which every pair of dimensions is changed."""


# Every leaf, and every section and collection that can be lost at once.
def _required(model: type[BaseModel] = ManifestModel, prefix: str = "") -> set[str]:
    """Return the leaves without which their section is refused: leaving one out gives no verdict at all."""
    found = set()
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        if info.is_required():
            found.add(path)
        for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= _required(part, f"{path}.")
    return found


FORGETTABLE = sorted(({*schema_leaves()} | {leaf.rpartition(".")[0] for leaf in schema_leaves()}) - _required() - {""})

ASKED = [
    Options(),
    Options(accept=frozenset({"new-namespace"})),
    Options(accept=frozenset({"new-namespace", "clear"})),
    Options(declare_clear=True),
    Options(declare_clear=True, strategy="recreate"),
    Options(declare_clear=True, accept=frozenset({"new-namespace"})),
]

Changes = Mapping[str, Any]
Cases = Iterator[tuple[Changes, Changes, tuple[str, ...]]]


@dataclass(frozen=True)
class Broken:
    """A forgetting that turned another verdict into reuse, or a refusal into an acceptance."""

    old: Changes
    new: Changes
    forgotten: str
    before: str
    after: str


@pytest.fixture(autouse=True)
def plain_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find changed leaves by a plain walk here: half of the time of these cases is DeepDiff's.

    ``test_both_walks_agree`` shows that it makes no difference.
    """
    monkeypatch.setattr(diff_module, "changed_leaves", walk)


@dataclass(frozen=True)
class Written:
    """Changes, told apart by how they are written."""

    text: str
    changes: Changes = field(compare=False)


def manifest(changes: Changes) -> Manifest:
    """Build a side; not validated again, and one object for equal changes, so that forgetting is cheap."""
    return _manifest(Written(repr(changes), changes))


@lru_cache(maxsize=128)
def _manifest(written: Written) -> Manifest:
    content = data(dict(written.changes))
    if content["cache"].get("namespace") == "DERIVED":
        content["cache"]["namespace"] = derive(Manifest(content, "m", "sha256:0")).id or "none"
    # What is as in the clean pair is the very same object on every side, so that comparing it costs nothing.
    same = {name for name, section in content.items() if repr(section) == _AS_WRITTEN.get(name)}
    built = Manifest({name: CLEAN[name] if name in same else content[name] for name in content}, "m", "sha256:0")
    other = Manifest({name: section for name, section in content.items() if name not in same}, "m", "sha256:0")
    vars(built)["canonical"] = {
        name: (_CANONICAL if name in same else other.canonical)[name] for name in sorted(content)
    }
    return built


_AS_WRITTEN = {name: repr(section) for name, section in CLEAN.items()}
_CANONICAL = Manifest(CLEAN, "m", "sha256:0").canonical


@lru_cache(maxsize=512)
def forget(side: Manifest, path: str) -> Manifest | None:
    """Return a side without what lies at a path; ``None`` where nothing is known there to begin with, or none is left.

    It shares the canonical form of everything else with the side that it is made from, as
    ``test_forgetting_is_leaving_out`` shows.
    """
    parts = path.split(".")
    content = without(side.data, parts)
    if content is None or (parts[0] == "cache" and content.get("roles") and _refused(content)):
        return None
    less = Manifest(content, "m", "sha256:0")
    vars(less)["canonical"] = without(side.canonical, parts)
    if parts[0] != "provenance":  # on which the basis of every field depends
        kept = {one: found for one, found in side._found.items() if not _touches(one, path)}
        vars(less)["_found"] = kept
    return less


def _refused(content: Mapping[str, Any]) -> bool:
    """Whether a deployment is none any more: one of its pools sets half of what was forgotten."""
    try:
        manifest_from(content)
    except InputError:
        return True
    return False


def _touches(one: str, other: str) -> bool:
    """Whether one path lies at, above or below another."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def without(content: Mapping[str, Any], parts: list[str]) -> dict[str, Any] | None:
    """Return a copy without what lies at a path that shares everything else; ``None`` where nothing lies there."""
    first, *rest = parts
    if first not in content:
        return None
    if not rest:
        return {key: value for key, value in content.items() if key != first}
    inner = content[first]
    less = without(inner, rest) if isinstance(inner, dict) else None
    return None if less is None else {**content, first: less}


EvidenceOf = list[tuple[Kind, State]]


def evidence_for(
    kinds: EvidenceOf | None, old: Manifest, new: Manifest, first: tuple[Manifest, Manifest]
) -> list[Evidence]:
    """Bind supporting evidence to the sides at hand, and refutations to the sides they were made of."""
    made = []
    for kind, state in kinds or ():
        a, b = (old, new) if state == "proved" else first
        figures: dict[str, Any] = {"entries": 0} if kind == "inventory" else {}
        made.append(
            Evidence(
                schema="kvgate/evidence/v1",
                kind=kind,
                state=state,
                figures=figures,
                old=subject_of(a, kind),
                new=subject_of(b, kind),
            )
        )
    return made


def answers(
    old: Manifest, new: Manifest, evidence: list[Evidence], waivers: tuple[Waiver, ...] = (), profiles: Any = None
) -> list[tuple[str, bool]] | None:
    """Return verdict and acceptance under every way of asking; ``None`` where the manifests contradict each other."""
    case = Case((old,), new, PACK, tuple(evidence), waivers, profiles=PROFILES if profiles is None else profiles)
    try:
        found = find(case)
    except InputError:
        return None
    return [(one.verdict, one.accepted) for one in (settle(found.findings, options) for options in ASKED)]


HARMLESS = [("verified-compatible-reuse", True)] * len(ASKED)


def worse(before: list[tuple[str, bool]] | None, after: list[tuple[str, bool]] | None) -> bool:
    """Whether knowing less brought reuse, or acceptance under some way of asking."""
    if before is None or after is None:
        return False
    reuse = "verified-compatible-reuse"
    return any((v != reuse and w == reuse) or (not a and b) for (v, a), (w, b) in zip(before, after, strict=True))


# What plays a part in other dimensions' answers: forgotten in every case, the first few in front of every connector.
PIVOTS = (
    "cache.connector",
    "cache.version",
    "cache.key_fields",
    "engine.version",
    "request_features",
    "cache.tenancy",
    "provenance",
    "cache",
    "cache.namespace",
    "engine.name",
    "engine.image",
    "engine.speculative",
    "model.config",
    "model.quantization",
    "weights.checkpoint.kv_rule",
    "weights.checkpoint.kv_digest",
    "chat_template.reads",
    "adapters",
    "roles",
    "release.owner",
)


def broken(cases: Cases, kinds: EvidenceOf | None = None, *, waived: bool = False) -> Iterator[Broken]:
    """Yield every broken case: each side forgets each path in turn."""
    for old_changes, new_changes, paths in cases:
        old, new = manifest(old_changes), manifest(new_changes)
        evidence = evidence_for(kinds, old, new, (old, new))
        waivers = stray_waivers() if waived else ()
        before = answers(old, new, evidence, waivers)
        if before is None or before == HARMLESS:
            continue  # knowing less cannot bring what is there already
        for path in paths:
            for side in ("old", "new"):
                less = forget(old if side == "old" else new, path)
                if less is None:
                    continue
                a, b = (less, new) if side == "old" else (old, less)
                after = answers(a, b, evidence_for(kinds, a, b, (old, new)), waivers)
                if worse(before, after):
                    yield Broken(old_changes, new_changes, f"{side} {path}", str(before), str(after))


def paths_of(*changes: Changes) -> set[str]:
    """Return what to forget of some changes: their own paths, and the collections that hold them."""
    return {path.partition("/")[0] for change in changes for path in change}


def stray_waivers() -> tuple[Waiver, ...]:
    """Write a waiver with wrong values for every rule and dimension: a sound gate uses none of them."""
    return tuple(
        Waiver(rule=rule.id, dimension=dimension, old="x", new="y", reason="r", owner="o", expires="2999-01-01")
        for rule in PACK.rules
        for dimension in rule.watches
    )


def one_dimension(context: str, pivots: tuple[str, ...] = PIVOTS[:8]) -> Cases:
    """Yield every change of one dimension, on either side and on both; its own paths and ``pivots`` are forgotten."""
    base = CONTEXTS[context]
    yield base, base, tuple(FORGETTABLE)
    for alternatives in CHANGES.values():
        for change in alternatives:
            paths = tuple(sorted(paths_of(change) | set(pivots)))
            yield base, {**base, **change}, paths
            yield {**base, **change}, base, paths
        for first, second in itertools.permutations(alternatives, 2):
            yield {**base, **first}, {**base, **second}, tuple(sorted(paths_of(first, second)))


def both_sides(context: str) -> Cases:
    """Yield every change made on both sides: what is equal, and not what the clean pair holds."""
    base = CONTEXTS[context]
    for alternatives in CHANGES.values():
        for change in alternatives:
            yield {**base, **change}, {**base, **change}, tuple(sorted(paths_of(change) | set(PIVOTS[:5])))


def two_dimensions(context: str) -> Cases:
    """Yield every pair of dimensions changed, together on one side or one on each."""
    base = CONTEXTS[context]
    for (_, left), (_, right) in itertools.combinations(CHANGES.items(), 2):
        first, second = left[0], right[0]
        paths = tuple(sorted(paths_of(first, second)))
        yield base, {**base, **first, **second}, paths
        yield {**base, **first}, {**base, **second}, paths


# ---- the law ----


@pytest.mark.parametrize("context", CONTEXTS)
def test_forgetting_after_one_change(context: str) -> None:
    pivots = PIVOTS[:8] if context in FULL else PIVOTS[:5]
    assert list(itertools.islice(broken(one_dimension(context, pivots)), 5)) == []


@pytest.mark.parametrize("context", FULL)
def test_forgetting_what_others_lean_on(context: str) -> None:
    assert list(itertools.islice(broken(one_dimension(context, PIVOTS[8:])), 5)) == []


def test_forgetting_anything_after_one_change() -> None:
    cases = (
        (base, new, tuple(FORGETTABLE)) for base, new, _ in itertools.islice(one_dimension("lmcache-mp"), 0, None, 3)
    )
    assert list(itertools.islice(broken(cases), 5)) == []


@pytest.mark.parametrize("context", ["lmcache-mp", "adapters", "pinned"])
def test_forgetting_where_both_sides_changed(context: str) -> None:
    assert list(itertools.islice(broken(both_sides(context)), 5)) == []


@pytest.mark.parametrize("context", FULL)
def test_forgetting_after_two_changes(context: str) -> None:
    assert list(itertools.islice(broken(two_dimensions(context)), 5)) == []


def old_pools(context: str) -> Cases:
    """Yield old pools of every kind before a new deployment that differs in one dimension, with pools and without."""
    base = CONTEXTS[context]
    for pools, (name, alternatives) in itertools.product(CHANGES["roles"], CHANGES.items()):
        for change in alternatives[:1] if name != "roles" else ():
            yield {**base, **pools}, {**base, **change}, ("roles",)
            yield {**base, **pools}, {**base, **pools, **change}, ("roles",)


@pytest.mark.parametrize("context", ["lmcache", "own-store, token keyed"])
def test_forgetting_pools(context: str) -> None:
    assert list(itertools.islice(broken(old_pools(context)), 5)) == []


EVIDENCE_KINDS: list[Kind] = list(get_args(Kind))


@pytest.mark.parametrize("state", ["proved", "refuted"])
@pytest.mark.parametrize("kind", EVIDENCE_KINDS)
def test_forgetting_with_evidence(kind: Kind, state: State) -> None:
    cases = itertools.islice(one_dimension("lmcache-mp", ("provenance", "release.owner")), 0, None, 2)
    assert list(itertools.islice(broken(cases, [(kind, state)]), 5)) == []


def test_forgetting_with_waivers() -> None:
    cases = one_dimension("lmcache-mp", ("provenance",))
    assert list(itertools.islice(broken(cases, waived=True), 5)) == []


@pytest.mark.parametrize("context", CONTEXTS)
def test_dropping_the_profile_never_helps(context: str) -> None:
    """Neither does dropping proved evidence, or a waiver."""
    everything: EvidenceOf = [(kind, "proved") for kind in EVIDENCE_KINDS]
    for old_changes, new_changes, _ in itertools.islice(one_dimension(context), 0, None, 2):
        old, new = manifest(old_changes), manifest(new_changes)
        evidence = evidence_for(everything, old, new, (old, new))
        before = answers(old, new, evidence)
        assert not worse(before, answers(old, new, evidence, profiles={})), (old_changes, new_changes)
        assert not worse(before, answers(old, new, [])), (old_changes, new_changes)


def test_adverse_evidence_only_raises() -> None:
    order = ["verified-compatible-reuse", "new-namespace", "clear"]
    for old_changes, new_changes, _ in one_dimension("lmcache-mp"):
        old, new = manifest(old_changes), manifest(new_changes)
        before = answers(old, new, [])
        for kind in EVIDENCE_KINDS:
            after = answers(old, new, evidence_for([(kind, "refuted")], old, new, (old, new)))
            if before is None or after is None:
                continue
            for (verdict, accepted), (raised, still) in zip(before, after, strict=True):
                assert order.index(raised) >= order.index(verdict)
                assert accepted or not still


# ---- planted violations: the same enumeration must catch them ----


def test_catches_unknown_equal_to_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvgate.rules.compare import adapters, address, sides
    from kvgate.rules.values import Known, Unknown

    def lenient(old: Any, new: Any) -> bool | None:
        if isinstance(old, Unknown) and isinstance(new, Unknown):
            return True
        return None if not (isinstance(old, Known) and isinstance(new, Known)) else bool(old.value == new.value)

    for module in (change_module, sides, address, adapters):
        monkeypatch.setattr(module, "same", lenient)
    assert next(broken(unknown_on_one_side("lmcache-mp")), None) is not None


def unknown_on_one_side(context: str) -> Cases:
    """Yield every dimension known on one side only: what is left to forget is the other side's."""
    base = CONTEXTS[context]
    for alternatives in CHANGES.values():
        for path in sorted(paths_of(*alternatives)):
            yield base, {**base, path: FORGET}, (path,)


def test_unknown_on_one_side_keeps_the_law() -> None:
    for context in CONTEXTS:
        assert list(itertools.islice(broken(unknown_on_one_side(context)), 5)) == []


def test_catches_a_refutation_that_an_edited_label_sheds(monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(self: Evidence, old: Manifest | None, new: Manifest) -> bool:
        bound = self.new == subject_of(new, self.kind) and (old is None or self.old == subject_of(old, self.kind))
        return self.state == "refuted" and bound

    monkeypatch.setattr(Evidence, "speaks_against", exact)
    assert (
        next(broken(one_dimension("lmcache-mp", ("release.owner",)), [("kv-equivalence", "refuted")]), None) is not None
    )


def test_catches_a_waiver_that_covers_what_is_unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    careful, covers = settling_module._may_be_waived, settling_module._covers
    monkeypatch.setattr(settling_module, "_may_be_waived", lambda finding: finding.unverified or careful(finding))
    monkeypatch.setattr(
        settling_module,
        "_covers",
        lambda waiver, finding: (
            covers(waiver, finding)
            or (finding.unverified and (waiver.rule, waiver.dimension) == (finding.rule, finding.change.dimension))
        ),
    )
    assert next(broken(one_dimension("lmcache-mp"), waived=True), None) is not None


# ---- the enumeration itself ----


def test_every_dimension_is_changed() -> None:
    labels = {dimension.id for dimension in dimensions() if dimension.compare == "label"}
    assert CHANGES.keys() == {dimension.id for dimension in dimensions()} - labels


def test_every_change_is_a_valid_manifest() -> None:
    for alternatives in CHANGES.values():
        for change in alternatives:
            clean(dict(change))


def test_the_clean_pair_is_reuse_without_findings() -> None:
    case = Case((clean(),), clean(), PACK)
    assert find(case).findings == ()


def test_both_walks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    base = clean().canonical
    for alternatives in CHANGES.values():
        for change in alternatives:
            other = clean(dict(change)).canonical
            assert diff_module.changed_leaves(base, other) == sorted(walk(base, other))


# ---- drawn at random, far from the clean pair ----

_ALL = [(name, change) for name, alternatives in CHANGES.items() for change in alternatives]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(CONTEXTS)),
    st.lists(st.sampled_from(range(len(_ALL))), max_size=4),
    st.lists(st.sampled_from(range(len(_ALL))), max_size=4),
    st.lists(st.tuples(st.sampled_from(["old", "new"]), st.sampled_from(FORGETTABLE)), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(EVIDENCE_KINDS), st.sampled_from(["proved", "refuted"])), max_size=2),
)
def test_forgetting_several_fields_never_helps(
    context: str, left: list[int], right: list[int], forgotten: list[tuple[str, str]], kinds: EvidenceOf
) -> None:
    base = CONTEXTS[context]
    old = manifest({**base, **{path: value for i in left for path, value in _ALL[i][1].items()}})
    new = manifest({**base, **{path: value for i in right for path, value in _ALL[i][1].items()}})
    first = (old, new)
    before = answers(old, new, evidence_for(kinds, old, new, first))
    for side, path in forgotten:
        if side == "old":
            old = forget(old, path) or old
        else:
            new = forget(new, path) or new
    after = answers(old, new, evidence_for(kinds, old, new, first))
    assert not worse(before, after)


@pytest.mark.parametrize("context", CONTEXTS)
def test_forgetting_is_leaving_out(context: str) -> None:
    side = manifest(CONTEXTS[context])
    for path in FORGETTABLE:
        less = forget(side, path)
        assert (less is None) == (path not in set(_paths(side.data)))
        if less is not None:
            assert path not in set(_paths(less.data))
            again = Manifest(less.data, "m", "sha256:0")
            assert less.canonical == again.canonical
            assert {one: less.get(one) for one in FORGETTABLE} == {one: again.get(one) for one in FORGETTABLE}


def _paths(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_manifest_builder_builds_what_the_parser_builds(context: str) -> None:
    built, parsed = manifest(CONTEXTS[context]), manifest_from(data(dict(CONTEXTS[context])))
    assert json.dumps(built.data) == json.dumps(parsed.data)
    assert json.dumps(built.canonical) == json.dumps(parsed.canonical)
