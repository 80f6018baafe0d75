"""What a report says there is to do: what helps, and nothing that would be a false declaration."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.cli.formats.markdown import render_markdown
from kvgate.cli.formats.report import Report, read_report
from kvgate.cli.formats.text import render_text
from kvgate.cli.formats.todo import steps, unknowns
from kvgate.rules.case import Case, Options
from kvgate.rules.decide import decide
from kvgate.rules.evidence import Coverage, Evidence, subject_of
from kvgate.rules.pack import shipped_pack
from kvgate.rules.record import record_of
from tests.cli.decisions import AS_OF, record
from tests.rules.clean import FORGET, clean, digest

SENTENCE = (
    "The profile vllm-offload-fs speaks for engine.version >=0.31,<=0.33.0, not for 0.33.1: nothing is known of what "
    "its key covers; no setting changes that"
)
OFFLOAD = {"cache.connector": "vllm-offload-fs"}
LORA = {**OFFLOAD, "request_features": ["lora"]}


def _record(old: dict[str, Any] | None, new: dict[str, Any], *evidence: Evidence, **asked: Any) -> dict[str, Any]:
    olds = () if old is None else (clean(old, "old.yaml"),)
    options = Options(as_of=AS_OF, **asked)
    case = Case(olds, clean(new, "new.yaml"), shipped_pack("default"), evidence, options=options)
    return record_of(decide(case), "0.1.0")


def _report(old: dict[str, Any] | None, new: dict[str, Any], **asked: Any) -> Report:
    return read_report(_record(old, new, **asked))


def test_a_version_without_a_profile_is_said_first_with_what_helps() -> None:
    report = read_report(record("no-profile"))
    (first,) = steps(report)
    assert first.what == SENTENCE
    assert first.notes == (
        "What does: a version in that range, or a kvgate release with a profile for it. Until then, --advisory "
        "reports and refuses nothing.",
    )
    assert (first.commands, first.exact) == ((), ())


def test_a_leak_says_what_becomes_of_entries_and_another_fault_says_nothing_of_them() -> None:
    leak = {"cache.tenancy": {"boundary": "tenant", "carried_by": None}}
    (step,) = steps(_report({}, leak))
    assert "delete those" in step.notes[0]
    (step,) = steps(_report({}, {"weights.mutable": True}))
    assert step.notes == ()


def test_no_declaration_is_asked_for_of_what_is_known() -> None:
    texts = [render_text(record("no-profile"), width=120, color=False), render_markdown(record("no-profile"))]
    for text in texts:
        assert "set request" not in text
        assert "set cache.tenancy" not in text
    (group,) = unknowns(read_report(record("no-profile"))).groups
    assert group.settle.startswith("no setting settles it")
    assert {path for member in group.members for path in member.paths} == {"request_features", "cache.tenancy"}


def test_what_is_not_known_besides_is_still_asked_for() -> None:
    report = _report(LORA, {**LORA, "engine.version": "0.33.1", "adapters": FORGET})
    asked = [step.what for step in steps(report)]
    assert asked[0] == SENTENCE
    assert "Make known what is not" in asked[-1]
    assert any("adapters=[]" in group.settle for group in unknowns(report).groups)


def test_evidence_is_offered_where_it_would_do() -> None:
    (first, *_) = steps(_report(OFFLOAD, {**OFFLOAD, "engine.version": "0.33.1"}))
    assert first.what == SENTENCE
    assert "or evidence for what differs" in first.notes[0]


def test_a_connector_without_a_profile_has_no_range_to_stay_in() -> None:
    (first, *_) = steps(_report({"cache.connector": "own"}, {"cache.connector": "own", "engine.version": "0.33.1"}))
    assert first.what.startswith("There is no profile for the connector 'own': nothing is known")
    assert "range" not in first.notes[0]


def test_a_first_deployment_is_told_too() -> None:
    assert steps(_report(None, {**LORA, "engine.version": "0.33.1"}))[0].what == SENTENCE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({**OFFLOAD, "engine.version": "0.30.0"}, OFFLOAD),  # the new one's settings still work
        (OFFLOAD, {**OFFLOAD, "engine.version": FORGET}),  # to be settled by saying the version
        (OFFLOAD, {**OFFLOAD, "cache.connector": FORGET}),
        (OFFLOAD, {**OFFLOAD, "precision.kv_cache": "fp8_e4m3"}),
    ],
)
def test_it_is_said_only_where_it_is_so(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert not [step.what for step in steps(_report(old, new)) if "no setting changes that" in step.what]


def test_what_is_not_known_because_of_one_thing_is_said_with_it_once() -> None:
    """An image tag that names no release leaves the version open, and much that follows from it."""
    unset = dict.fromkeys(("cache.chunk_size", "cache.serde", "engine.kv_layout"))
    side = {**LORA, **unset, "engine.version": FORGET}
    report = _report(side, side)
    (group,) = [one for one in unknowns(report).groups if "engine.version" in one.settle]
    told, *followers = group.members
    assert told.paths == ("engine.version",)
    assert all(member.notes[0] == "known once engine.version is" for member in followers)
    paths = [path for member in followers for path in member.paths]
    assert sorted(paths) == sorted({*unset, "request_features"})
    assert any(
        "self-fault" in note for member in followers if "request_features" in member.paths for note in member.notes
    )
    assert not [one for one in unknowns(report).groups if "no setting settles it" in one.settle]


def test_figures_that_say_nothing_are_left_out() -> None:
    old, new = clean(None, "old.yaml"), clean({"tokenizer.effective": "blake3:" + "9" * 64}, "new.yaml")
    figures: dict[str, Any] = {"conversations": 0, "divergent": 0, "first": [], "blocks": {}, "note": ""}

    def shown(state: Any) -> str:
        item = Evidence(
            schema="kvgate/evidence/v1",
            kind="token-identity",
            state=state,
            old=subject_of(old, "token-identity"),
            new=subject_of(new, "token-identity"),
            coverage=Coverage(missing={"diagnostic corpus": "no tokenizer files at hand"}),
            figures=figures,
        )
        case = Case((old,), new, shipped_pack("default"), (item,), options=Options(as_of=AS_OF))
        return render_text(record_of(decide(case), "0.1.0"), width=120, color=False)

    for name in figures:
        assert f"\n    {name}:" not in shown("not-run")
    assert "\n    divergent: 0\n" in shown("inconclusive")  # nothing parted: that is a result
    assert "\n    first:" not in shown("inconclusive")


# ---- what is declared is still to be done ----

TENANT = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}


def test_a_deletion_that_is_declared_stands_in_the_report_with_its_order() -> None:
    rolling = _report({**OFFLOAD, **TENANT}, OFFLOAD, declare_clear=True)
    assert (rolling.accepted, rolling.verdict) == (True, "clear")
    (step,) = steps(rolling)
    assert step.what == "Delete the old entries, as is declared"
    assert step.commands[0].startswith("rm -r ")
    assert "when the last of those has stopped" in step.notes[0]
    (asked,) = steps(_report({**OFFLOAD, **TENANT}, OFFLOAD))
    assert asked.what == "Delete the old entries, and declare it with --declare clear"
    assert asked.commands == step.commands


def test_entries_that_only_a_declared_deletion_keeps_apart_are_to_be_deleted() -> None:
    """Drained first and deleted: nothing else tells old weights' entries from new ones'."""
    weights = {"weights.checkpoint.digest": "blake3:" + "9" * 64, "weights.checkpoint.kv_digest": "blake3:" + "9" * 64}
    report = _report(OFFLOAD, {**OFFLOAD, **weights}, declare_clear=True, strategy="recreate")
    assert (report.accepted, report.verdict) == (True, "new-namespace")
    (step,) = steps(report)
    assert step.notes == ("In this order: stop the old workers, delete, start the new ones.",)
    assert steps(_report(OFFLOAD, OFFLOAD, declare_clear=True, strategy="recreate")) == []


def test_what_was_found_of_the_old_one_alone_is_said_of_it_and_answered_by_a_setting() -> None:
    found = Evidence(
        schema="kvgate/evidence/v1",
        kind="bypass-diff",
        state="refuted",
        new=subject_of(clean(), "bypass-diff"),
        reason="2 of 9 answers differ",
    )
    tail = _record({}, {"weights.checkpoint.digest": digest("9")}, found)
    (step,) = steps(read_report(tail))
    assert step.what == "Put the new deployment in a namespace of its own: this setting"
    assert "found of the old deployment: 2 of 9 answers differ" in render_text(tail, width=120, color=False)
    # Old, then new: nothing was seen of the new one.
    assert "| `refuted-bypass-diff` | `evidence.bypass-diff` | `2 of 9 answers differ` |  |" in render_markdown(tail)
    (step,) = steps(read_report(_record({}, {}, found)))
    assert step.what == "Answers differ with reuse on and off: no setting answers that"


def test_what_ends_with_the_worker_is_not_to_be_deleted() -> None:
    memory = {"cache.connector": "vllm-apc", "cache.version": None}
    assert steps(_report({**memory, **TENANT}, memory, declare_clear=True)) == []


# ---- where the entries are, and what was compared by name ----


def test_a_namespace_that_is_not_set_is_told_from_one_that_is_not_known() -> None:
    report = _report({"cache.namespace": None}, {"cache.namespace": FORGET})
    assert (report.baselines[0].namespace, report.namespace) == ("(not set)", "(not known)")


def test_builds_that_nobody_took_a_digest_of_are_said() -> None:
    bare = {"engine.image": None, "engine.packages": None}
    for old, new, said in ((bare, bare, True), (bare, {}, False), ({}, {}, False)):
        for text in (render_text(_record(old, new), width=200, color=False), render_markdown(_record(old, new))):
            assert ("compared by version alone" in text) is said


def test_each_pair_of_pools_has_its_own_boundary() -> None:
    def pools(**prefill: Any) -> dict[str, Any]:
        sets = {name.replace("__", "."): value for name, value in prefill.items()}
        return {"roles": [{"name": "decode", "set": {"parallelism.tensor": 4}}, {"name": "prefill", "set": sets}]}

    report = _report(pools(), pools(precision__kv_cache="fp8_e4m3"))
    own, crossing = report.baselines[0].notes
    assert crossing == "pool decode -> prefill, pool prefill -> decode: every key differs in parallelism.tensor"
    assert own.startswith("pool decode -> decode, pool prefill -> prefill: nothing in the connector's own key")


def test_where_pools_file_is_said_of_each_and_never_of_what_none_of_them_is() -> None:
    def pools(**common: Any) -> dict[str, Any]:
        own = {"eu": {"cache.location": "redis://eu:1/0", "cache.namespace": "a"}, "us": {"cache.location": "/kv"}}
        return {**common, "roles": [{"name": name, "set": one} for name, one in own.items()]}

    report = _report(pools(), pools(**{"precision.compute": "float16"}))
    (old,) = report.baselines
    assert (old.connector, old.location, old.namespace) == ("lmcache-mp", "redis://eu:1/0, /kv", "a, prod-a")
    assert report.namespace == "eu: a; us: prod-a"
    assert _report({}, {}).namespace == "prod-a"


def test_what_a_finding_is_about_is_not_shown_as_a_change_where_it_is_none() -> None:
    media = {"request_features": ["multimodal"]}
    (found,) = _report({**media, "cache.version": "0.5.4"}, media).group("delete")
    assert found.change.startswith("lmcache-mp  (cache.version <0.5.5: ")
