"""A handful of decisions that every format is shown on."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import JsonValue

from kvgate.corpora.divergence.figures import evidence_figures
from kvgate.rules.case import Case, Options
from kvgate.rules.decide import decide
from kvgate.rules.evidence import Coverage, Evidence, subject_of
from kvgate.rules.manifest import Manifest, manifest_from
from kvgate.rules.pack import shipped_pack
from kvgate.rules.record import record_of
from kvgate.rules.waivers import Waiver
from tests.cli.divergent import compared
from tests.rules.clean import FORGET, clean, digest

AS_OF = "2026-11-29"
# Entries whose key a profile speaks for, and an upgrade that it does not speak for.
_KEYED = {
    "cache.connector": "vllm-offload-fs",
    "request_features": ["lora", "cache_salt"],
    "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"},
}
_PATCHED = {"engine.version": "0.33.1", "tokenizer.renderer.engine_version": "0.33.1"}
_MINIMAL = {"schema": "kvgate/manifest/v1", "model": {"id": "acme/support-8b"}}
_SWEEP: dict[str, Any] = {
    "strings": 412_345,
    "divergent": 2,
    "otherMeanings": 1,
    "unicode": "15.0.0",
    "libraries": {"transformers": "5.24.0"},
    "parts": [{"part": "merges", "what": "swapped", "count": 2, "examples": ["a b"]}],
    "groups": [],
    "first": [
        {"group": "merges", "text": " a\u202eb\n", "specialTokens": False, "at": 1, "old": [1, 2], "new": [1, 3, 4]}
    ],
    "firstMeanings": [],
    "unswept": [{"what": "code points", "why": "not in this build"}],
}


def _old(changes: dict[str, Any] | None = None) -> Manifest:
    return clean(changes, "old.yaml")


def _new(changes: dict[str, Any] | None = None) -> Manifest:
    return clean(changes, "new.yaml")


def _tokens(old: Manifest, new: Manifest) -> Evidence:
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="token-identity",
        state="inconclusive",
        old=subject_of(old, "token-identity"),
        new=subject_of(new, "token-identity"),
        coverage=Coverage(examined={"conversations": 142}, missing={"7 conversations": "a side could not render them"}),
        figures={**evidence_figures([compared("failing")], redact=None), "sweep": _SWEEP},
        reason="no divergence on the corpus; sampling proves no tokenizer or template equal",
    )


def _divergence(old: Manifest, new: Manifest) -> Evidence:
    figures = evidence_figures([compared("think"), compared("added", public=False)], redact=None)
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="token-identity",
        state="refuted",
        old=subject_of(old, "token-identity"),
        new=subject_of(new, "token-identity"),
        coverage=Coverage(examined={"conversations": 3}),
        figures=figures,
        reason="3 of 3 conversations diverge; first: first at token 10",
    )


def _rehearsal(old: Manifest, new: Manifest) -> Evidence:
    layers: list[JsonValue] = [{"layer": layer, "error": 1.4273972511291504, "noise": 0.0} for layer in range(3)]
    control: dict[str, JsonValue] = {
        "state": "held",
        "why": "with the boundary taken away the stale entry is hit, and the output is wrong",
        "hits": 6,
        "cached_tokens": 0,
        "answers": {"right": 0, "wrong": 3},
        "ties": {"near": 0},
    }
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="isolation",
        state="proved",
        old=subject_of(old, "isolation"),
        new=subject_of(new, "isolation"),
        coverage=Coverage(examined={"prompts": 6}, missing={"procedure": "no launch file was started"}),
        figures={"model": "stand-in", "control": control, "layers": layers, "tolerance": 0.016000001},
        reason="with the boundary in force no old entry is read",
        command="kvgate rehearse old.yaml new.yaml --evaluate 4",
    )


def _leak(new: Manifest) -> Evidence:
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="lifecycle-audit",
        state="refuted",
        new=subject_of(new, "lifecycle-audit"),
        reason="3 hits after invalidation",
    )


def _cases() -> dict[str, Case]:
    pack = shipped_pack("default")
    options = Options(as_of=AS_OF)
    template = _new({"chat_template.tree": digest("9"), "chat_template.digest": digest("8")})
    leaking = _new({"precision.kv_cache": "fp8_e4m3"})
    waiver = Waiver(
        rule="compute-dtype-changed",
        dimension="precision.compute",
        old="bfloat16",
        new="float16",
        reason="measured equal",
        owner="team-serving",
        expires="2026-12-24",
    )
    stale = waiver.model_copy(update={"new": "float32", "expires": "2026-01-01"})
    return {
        "reuse": Case((_old(),), _new(), pack, options=options),
        "settings": Case(
            (_old(),), _new({"precision.kv_cache": "fp8_e4m3", "parallelism.data": 4}), pack, options=options
        ),
        "unverified": Case(
            (manifest_from(_MINIMAL, "old.yaml"),), manifest_from(_MINIMAL, "new.yaml"), pack, options=options
        ),
        "clear": Case((_old(),), leaking, pack, evidence=(_leak(leaking),), options=options),
        "self-fault": Case(
            (_old({"cache.connector": "lmcache"}),),
            _new({"cache.connector": "lmcache", "request_features": ["lora"]}),
            pack,
            options=options,
        ),
        "met": Case((_old(),), template, pack, evidence=(_tokens(_old(), template),), options=options),
        "tokens": Case((_old(),), template, pack, evidence=(_divergence(_old(), template),), options=options),
        "rehearsed": Case((_old(),), template, pack, evidence=(_rehearsal(_old(), template),), options=options),
        "waived": Case(
            (_old(),), _new({"precision.compute": "float16"}), pack, waivers=(waiver, stale), options=options
        ),
        "several": Case(
            (_old({"engine.version": "0.32.0"}), clean({"weights.checkpoint": FORGET}, "canary.yaml")),
            _new(),
            pack,
            options=options,
        ),
        "first": Case((), _new(), pack, options=options),
        "no-profile": Case((_old(_KEYED),), _new({**_KEYED, **_PATCHED}), pack, options=options),
    }


NAMES = (
    "reuse",
    "settings",
    "unverified",
    "clear",
    "self-fault",
    "met",
    "tokens",
    "rehearsed",
    "waived",
    "several",
    "first",
    "no-profile",
)


@functools.cache
def record(name: str) -> dict[str, Any]:
    """Return the decision record of one case."""
    return record_of(decide(_cases()[name]), "0.1.0")
