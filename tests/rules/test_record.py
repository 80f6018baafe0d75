"""The decision record: valid against its schema, the same to the byte in every process, told apart path by path."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvgate.rules.action import action_for
from kvgate.rules.canonical import canonical_json
from kvgate.rules.decide import Decision
from kvgate.rules.record import Sources, differences, record_bytes, record_of
from kvgate.rules.record_schema import Record
from kvgate.rules.waivers import Waiver
from tests.rules.clean import FORGET, clean, data, digest
from tests.rules.deciding import about, decided
from tests.rules.test_rules_on_pairs import ALL, Pair

SCHEMA = Record.model_json_schema(by_alias=True)
VALIDATOR = Draft202012Validator(SCHEMA)
WEIGHTS = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}


def record(decision: Decision, sources: Sources | None = None) -> dict[str, Any]:
    made = record_of(decision, "0.1.0", sources)
    assert list(VALIDATOR.iter_errors(made)) == []
    return made


def full() -> Decision:
    """A decision with something in every part of its record."""
    new = {**WEIGHTS, "cache.serde": "cachegen", "tokenizer.effective": digest("9"), "cache.namespace": "prod-b"}
    return decided(
        [{}, {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}],
        new,
        evidence=[
            about("token-identity", "refuted", {}, new, reason="diverge", figures={"conversations": 9, "divergent": 3}),
            about("inventory", "inconclusive", {}, new),
        ],
        waivers=[
            Waiver(rule="format-changed", dimension="cache.serde", old="naive", new="cachegen", reason="r", owner="o",
                   expires="2027-01-01"),
            Waiver(rule="x", dimension="y", old=1, new=2, reason="r", owner="o", expires="2020-01-01"),
        ],
        declare_clear=True,
        as_of="2026-11-29",
    )  # fmt: skip


@pytest.mark.parametrize("one", ALL[::4], ids=lambda one: one.id)
def test_every_decision_has_a_valid_record(one: Pair) -> None:
    decision = decided(one.old, one.new)
    made = record(decision)
    assert made["predicate"]["exitCode"] == one.exit_code
    assert made["predicate"]["verdict"] == one.verdict
    assert len(made["predicate"]["findings"]) == len(decision.findings)
    assert json.loads(record_bytes(made)) == json.loads(canonical_json(made))


def test_what_the_record_says() -> None:
    decision = full()
    made = record(decision, Sources(evidence=[("e.json", "sha256:1")], waivers=("w.yaml", "sha256:2")))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["subject"] == [
        {"name": "manifest.yaml", "digest": {"sha256": decision.case.new.sha256.removeprefix("sha256:")}}
    ]
    predicate = made["predicate"]
    assert (predicate["verdict"], predicate["accepted"], predicate["enforced"]) == ("clear", False, True)
    assert predicate["acceptedBecause"] == decision.why
    assert predicate["action"] == action_for(decision).as_data()
    assert [one["sha256"] for one in predicate["baseline"]] == [old.sha256 for old in decision.case.old]
    assert predicate["options"] == {
        "first": False,
        "strategy": "rolling",
        "declareClear": [old.sha256 for old in decision.case.old],
        "accept": [],
        "advisory": False,
        "asOf": "2026-11-29",
    }
    assert {change["path"] for change in predicate["changes"] if change["baseline"] == 0} == {
        "weights.checkpoint.digest",
        "weights.checkpoint.kv_digest",
        "cache.serde",
        "cache.namespace",
        "tokenizer.effective",
    }
    assert predicate["tokens"] == [{"conversations": 9, "divergent": 3}]
    assert [one["kind"] for one in predicate["evidence"]] == ["token-identity", "inventory"]
    assert len(predicate["boundary"]) == 2
    assert predicate["boundary"][0]["old"]["owner"] == "team-serving"
    assert len(predicate["waivers"]["used"]) == 2  # for each old deployment
    assert [one["because"] for one in predicate["waivers"]["unused"]] == ["expired 2020-01-01"]
    assert predicate["namespace"]["derived"] == decision.derived.id
    assert predicate["policies"]["pack"]["id"] == "default"
    assert predicate["policies"]["profiles"].keys() == {"lmcache-mp"}
    assert predicate["sources"]["evidence"] == [{"path": "e.json", "sha256": "sha256:1"}]


def test_unknown_and_null_are_told_apart() -> None:
    made = record(decided({"engine.image": None}, {"engine.image": FORGET}))
    (change,) = made["predicate"]["changes"]
    assert change["old"] == {"value": None, "basis": "declared"}
    assert change["new"] == {"unknown": True}


def test_keys_with_dots_are_found() -> None:
    new = {"tokenizer.files/tokenizer.json": digest("9"), "inputs.tool_schemas": {"a.b": digest("1"), "a": digest("2")}}
    changes = {change["path"]: change for change in record(decided({}, new))["predicate"]["changes"]}
    assert changes["tokenizer.files.tokenizer.json"]["new"]["value"] == digest("9")
    assert changes["tokenizer.files.tokenizer.json"]["old"]["value"] == digest("d")
    assert changes["inputs.tool_schemas.a.b"]["new"]["value"] == digest("1")
    assert changes["inputs.tool_schemas.billing"]["new"] == {"unknown": True}


def test_a_first_deployment_and_an_advisory_one_say_so() -> None:
    first = record(decided([], {}))["predicate"]
    assert (first["options"]["first"], first["baseline"], first["boundary"], first["changes"]) == (True, [], [], [])
    advisory = record(decided({}, WEIGHTS, advisory=True))["predicate"]
    assert (advisory["enforced"], advisory["accepted"], advisory["exitCode"]) == (False, False, 0)


# ---- to the byte ----


def test_the_same_decision_gives_the_same_bytes() -> None:
    assert record_bytes(record(full())) == record_bytes(record(full()))
    assert record_bytes(record(full())).endswith(b"}\n")
    assert record_bytes(record(full())).count(b"\n") == 1


SCRIPT = """
import json, sys
from kvgate.rules.case import Case, Options
from kvgate.rules.decide import decide
from kvgate.rules.evidence import Evidence, subject_of
from kvgate.rules.manifest import manifest_from
from kvgate.rules.pack import shipped_pack
from kvgate.rules.record import record_bytes, record_of
old, new = (manifest_from(one, "m") for one in json.load(sys.stdin))
evidence = tuple(
    Evidence(schema="kvgate/evidence/v1", kind=kind, state="refuted", old=subject_of(old, kind),
             new=subject_of(new, kind)) for kind in ("isolation", "token-identity"))
case = Case((old,), new, shipped_pack("default"), evidence,
            options=Options(accept=frozenset({"clear", "new-namespace", "verified-compatible-reuse"})))
sys.stdout.buffer.write(record_bytes(record_of(decide(case), "0.1.0")))
"""


def test_every_process_gives_the_same_bytes() -> None:
    """Also where sets hash otherwise, and keys were written in another order."""
    adapters = [{"name": name, "digest": digest("1")} for name in "cab"]
    features = ["multimodal", "lora", "cache_salt"]
    old, new = data(), data({**WEIGHTS, "adapters": adapters, "request_features": features, "cache.serde": "x",
                             "model.config/z": 1, "model.config/a": 2})  # fmt: skip
    made = set()
    for seed in ("0", "1", "4711"):
        given = json.dumps([old, new])
        made.add(
            subprocess.run(
                [sys.executable, "-c", SCRIPT], input=given.encode(), capture_output=True, check=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            ).stdout
        )  # fmt: skip
    assert len(made) == 1
    assert json.loads(made.pop())["predicate"]["verdict"] == "clear"


def test_the_order_of_keys_in_a_manifest_changes_only_its_digest() -> None:
    def reverse(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reverse(value[key]) for key in reversed(value)}
        return value

    from kvgate.rules.manifest import manifest_from

    one = record(decided(clean(), clean(WEIGHTS)))
    two = record(decided(manifest_from(reverse(data()), "manifest.yaml"), manifest_from(reverse(data(WEIGHTS)),
                                                                                      "manifest.yaml")))  # fmt: skip
    assert record_bytes(one) == record_bytes(two)


# ---- differences ----


def test_a_record_does_not_differ_from_itself() -> None:
    made = record(full())
    assert differences(made, copy.deepcopy(made)) == []
    assert differences(made, json.loads(record_bytes(made))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("predicate.verdict", "verified-compatible-reuse"),
        ("predicate.accepted", True),
        ("predicate.accepted", 0),
        ("predicate.exitCode", False),
        ("predicate.options.accept", ["clear"]),
        ("predicate.findings[1].obligations", []),
        ("predicate.findings[0].new.value", None),
        ("predicate.namespace.derived", None),
        ("predicate.evidence[0].state", "proved"),
        ("subject[0].digest.sha256", "0" * 64),
        ("_type", "x"),
    ],
)
def test_what_differs_is_named(path: str, value: Any) -> None:
    made = record(full())
    other = copy.deepcopy(made)
    target: Any = other
    parts = path.replace("[", ".[").split(".")
    for part in parts[:-1]:
        target = target[int(part[1:-1])] if part.startswith("[") else target[part]
    target[parts[-1]] = value
    assert differences(made, other) == differences(other, made) == [path]


def test_a_missing_and_an_added_key_are_named() -> None:
    made = record(full())
    less = copy.deepcopy(made)
    del less["predicate"]["tool"]
    assert differences(made, less) == differences(less, made) == ["predicate.tool"]
    shorter = copy.deepcopy(made)
    shorter["predicate"]["findings"].pop()
    assert differences(made, shorter) == ["predicate.findings"]
    assert differences({"a": None}, {}) == ["a"]
    assert differences([1], {"a": 1}) == ["record"]
    assert differences(1, True) == ["record"]


def test_the_schema_refuses_what_is_no_record() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    made = record(full())
    for change in (
        {"_type": "x"},
        {"predicateType": "x"},
        {"extra": 1},
        {"predicate": {**made["predicate"], "verdict": "fine"}},
        {"predicate": {**made["predicate"], "extra": 1}},
        {"predicate": {key: value for key, value in made["predicate"].items() if key != "findings"}},
    ):
        assert list(VALIDATOR.iter_errors({**made, **change})) != []
