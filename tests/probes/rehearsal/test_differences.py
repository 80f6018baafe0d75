"""Every kind of change: the control goes wrong, isolation holds, and each mistake of the procedure is named."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.probes.rehearsal import staging
from tests.probes.rehearsal.conftest import LEAST, Rehearse
from tests.probes.rehearsal.pairs import (
    EIGHT_BITS,
    HALF,
    MOVED,
    NARROWER,
    OFFLOAD,
    ROLLED,
    ROPE,
    SALT_DROPPED,
    TEMPLATE,
    TENANTS,
    WEIGHTS,
    WINDOWED,
    adapter,
    deployment,
    own_key,
)
from tests.rules.clean import digest

Changes = dict[str, Any]
_REVISION = {"model.revision": "1" * 40}
_DOCUMENTS = {"inputs.document_sets": {"policies": digest("9")}}

_ISOLATED: list[tuple[str, Changes, Changes]] = [
    ("weights", {}, {**WEIGHTS, **ROLLED}),
    ("model.config", {}, {**ROPE, **ROLLED}),
    ("model.config", WINDOWED, {**NARROWER, **ROLLED}),
    ("precision.compute", {}, {**HALF, **ROLLED}),
    ("precision.kv_cache", {}, {**EIGHT_BITS, **ROLLED}),
    ("precision.kv_cache", EIGHT_BITS, {"precision.kv_cache": "fp8_e5m2", **ROLLED}),
    ("adapters", {**OFFLOAD, **adapter("a")}, {**OFFLOAD, **adapter("b"), **MOVED}),
    ("chat_template", {}, TEMPLATE),
    ("cache.tenancy", {}, TENANTS),
    (
        "cache.tenancy",
        {},
        {**WEIGHTS, **TENANTS, **ROLLED},
    ),
    (
        "weights",
        own_key("model.id", "model.revision"),
        {**own_key("model.id", "model.revision"), **WEIGHTS, **_REVISION},
    ),
]


@pytest.mark.parametrize(("dimension", "before", "after"), _ISOLATED, ids=lambda value: value if value is str else None)
def test_the_control_goes_wrong_and_isolation_holds(
    dimension: str, before: Changes, after: Changes, rehearsed: Rehearse
) -> None:
    seen = rehearsed(deployment(before), deployment(before, after))
    assert (seen.claim, seen.state, seen.mistakes) == ("separate", "proved", ()), seen.reason
    assert dimension in seen.staged
    assert seen.control.state == "held"
    assert seen.control.cached > 0
    stale = {(hit.prompt, hit.adapter) for hit in seen.control.hits if hit.wrong}
    assert not [hit for hit in seen.isolation.hits if hit.cached and (hit.prompt, hit.adapter) in stale]
    assert seen.equivalence.cached > 0


_MISTAKEN: list[tuple[str, Changes, Changes, str]] = [
    ("namespace-not-rolled", {}, WEIGHTS, "cache.namespace is the same on both sides"),
    ("namespace-not-rolled", {}, {**WEIGHTS, **TENANTS}, "cache.namespace is the same on both sides"),
    ("namespace-not-rolled", {"cache.connector": "vllm-example"}, WEIGHTS, "cache.location is the same on both sides"),
    ("left-out-of-key", own_key("model.id", "token_ids"), {**WEIGHTS, **_REVISION}, "model.revision, weights"),
    ("left-out-of-key", own_key("model.id"), _DOCUMENTS, "inputs.document_sets"),
    ("salt-dropped", TENANTS, SALT_DROPPED, "carried_by is not set"),
    ("salt-dropped", TENANTS, {"request_features": []}, "no request carries it"),
    ("adapter-swapped", {**OFFLOAD, **adapter("a")}, adapter("b"), "'billing' holds other bytes under the same name"),
    ("adapter-left-out", {}, {**adapter("a"), **ROLLED}, "the key of lmcache-mp does not hold 'billing'"),
]


@pytest.mark.parametrize(("mistake", "before", "after", "words"), _MISTAKEN)
def test_a_mistake_in_the_procedure_is_caught_and_named(
    mistake: str, before: Changes, after: Changes, words: str, rehearsed: Rehearse
) -> None:
    seen = rehearsed(deployment(before), deployment(before, after))
    assert seen.state == "refuted", seen.reason
    assert mistake in [one.id for one in seen.mistakes]
    assert words in seen.reason


def test_a_wrong_document_is_caught_by_what_the_answer_says(rehearsed: Rehearse) -> None:
    before = own_key("model.id")
    seen = rehearsed(deployment(before), deployment(before, _DOCUMENTS))
    assert [hit.right for hit in seen.isolation.hits if hit.right is not None] == [False]
    corpus = [hit for hit in seen.isolation.hits if hit.right is None]
    assert all(hit.agreement.same for hit in corpus)  # their text holds no document: fluent, equal, and no proof


def test_what_cannot_be_staged_proves_nothing(rehearsed: Rehearse) -> None:
    seen = rehearsed(deployment(), deployment({"engine.version": "0.32.0"}, ROLLED))
    assert (seen.state, seen.control.state, seen.isolation.state) == ("inconclusive", "open", "held")
    assert "nothing of what differs is staged" in seen.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cache.connector": "vllm-apc", "cache.version": None}, "entries end with their worker"),
        ({"cache.chunk_size": 8192}, "no more than 2,730 are staged"),
    ],
)
def test_where_there_is_nothing_to_stage_nothing_runs(change: Changes, words: str, rehearsed: Rehearse) -> None:
    seen = rehearsed(deployment(change), deployment(change, WEIGHTS))
    assert seen.state == "not-run"
    assert words in seen.reason


def test_names_that_cannot_be_foretold_are_not_made_up(rehearsed: Rehearse) -> None:
    seen = rehearsed(deployment(), deployment(WEIGHTS, {"cache.version": "9.9"}))
    assert seen.state == "not-run"
    assert "not for 9.9" in seen.reason


def test_snapshots_stand_for_the_tokens_where_there_are_some(rehearsed: Rehearse) -> None:
    ids = {f"c{number}": tuple(range(number, 150 + number)) for number in range(4)}
    others = {name: (7, *tokens) for name, tokens in ids.items()}
    seen = rehearsed(deployment(), deployment(TEMPLATE), rendered=(ids, others))
    assert seen.state == "proved", seen.reason
    assert "4 of the 4 conversations asked from differ" in seen.staged["chat_template"]
    assert "tokenizer" not in seen.staged  # which is the same: the ids differ for another reason
    equal = rehearsed(deployment(), deployment(TEMPLATE), rendered=(ids, ids))
    assert equal.state == "inconclusive"
    assert "the same ids" in equal.missing["chat_template"]


@pytest.mark.parametrize("tokens", [TEMPLATE, {"tokenizer.effective": digest("9")}])
def test_other_tokens_hide_no_other_weights(tokens: Changes, rehearsed: Rehearse) -> None:
    left = rehearsed(deployment(), deployment(WEIGHTS, tokens))
    assert left.state == "refuted", left.reason
    assert {hit.prompt for hit in left.isolation.hits if hit.wrong} == {"alike", "second-turn", "decidable-0"}


def test_other_tokens_and_weights_are_kept_apart_by_a_namespace(rehearsed: Rehearse) -> None:
    rolled = rehearsed(deployment(), deployment(WEIGHTS, TEMPLATE, ROLLED), size=LEAST)
    assert rolled.state == "proved", rolled.reason


def test_snapshots_of_other_tokens_hide_no_other_weights(rehearsed: Rehearse) -> None:
    ids = {f"c{number}": tuple(range(number, 150 + number)) for number in range(4)}
    others = {name: (7, *tokens) for name, tokens in ids.items()}
    seen = rehearsed(deployment(), deployment(WEIGHTS, TEMPLATE), rendered=(ids, others))
    assert seen.state == "refuted", seen.reason


def test_documents_that_nobody_asks_about_are_not_staged(rehearsed: Rehearse) -> None:
    key = own_key("model.id", "weights.checkpoint.digest")
    seen = rehearsed(deployment(key), deployment(key, WEIGHTS, _DOCUMENTS), size=LEAST)
    assert "inputs.document_sets" not in seen.staged
    assert seen.missing["inputs.document_sets"] == "no prompt is asked in which it stands"


def _adapters(*letters: str) -> Changes:
    one = adapter("a")["adapters"][0]
    entries = [{**one, "name": f"a{number:02}", "digest": digest(letter)} for number, letter in enumerate(letters)]
    return {"adapters": entries, "request_features": ["lora"]}


def test_every_adapter_that_changed_is_asked_however_many_there_are(
    rehearsed: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_MOST_ADAPTERS", 1)
    old = deployment(OFFLOAD, _adapters(*"aaaa"))
    seen = rehearsed(old, deployment(OFFLOAD, _adapters(*"abab")), size=LEAST)
    assert seen.state == "refuted", seen.reason
    assert {hit.adapter for hit in seen.isolation.hits if hit.wrong} == {"a01", "a03"}
    assert "2 of 4 were not asked: they are what they were" in seen.missing["adapters"]
