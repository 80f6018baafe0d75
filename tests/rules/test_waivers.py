"""Waivers: one rule, one dimension, these values, until a date; never what is unknown, adverse, unsafe or to clear."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.decide import Decision
from kvgate.rules.errors import InputError
from kvgate.rules.packaged import parse_data
from kvgate.rules.waivers import Waiver, Waivers
from tests.rules.clean import FORGET, digest
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, about, decided


def waiver(rule: str, dimension: str, old: Any, new: Any, expires: str = "2026-12-31", **fields: Any) -> Waiver:
    given = {"reason": "measured on 2026-11-20", "owner": "team-serving", **fields}
    return Waiver(rule=rule, dimension=dimension, old=old, new=new, expires=expires, **given)


SERDE = {"cache.serde": "cachegen"}
FITS = waiver("format-changed", "cache.serde", "naive", "cachegen")


def waived(*waivers: Waiver, as_of: str = "2026-11-29", **more: Any) -> Decision:
    return decided({}, SERDE, waivers=waivers, as_of=as_of, **more)


def test_a_waiver_that_fits_settles_its_finding_and_is_shown() -> None:
    assert decided({}, SERDE).exit_code == 10
    decision = waived(FITS)
    assert (decision.verdict, decision.exit_code, decision.unused_waivers) == (REUSE, 0, ())
    (finding,) = decision.findings
    assert finding.waived == "team-serving until 2026-12-31: measured on 2026-11-20"
    assert finding.obligations == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"rule": "kv-dtype-changed"},
        {"dimension": "cache.chunk_size"},
        {"old": "cachegen", "new": "naive"},
        {"old": None},
        {"new": None},
        {"new": ["cachegen"]},
        {"new": "*"},
    ],
)
def test_any_other_rule_dimension_or_value_is_not_covered(changed: dict[str, Any]) -> None:
    decision = waived(FITS.model_copy(update=changed))
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)
    assert [why for _, why in decision.unused_waivers] == ["no finding has its rule, dimension and values"]


def test_values_are_compared_as_the_manifest_is() -> None:
    theta = {"model.config/rope_parameters": {"rope_type": "default", "rope_theta": 10000}}
    fits = waiver("config-changed", "model.config", 500000, 1e4)
    assert decided({}, theta, waivers=[fits]).verdict == REUSE
    flag = {"engine.args/what": True}
    assert decided({}, flag, waivers=[waiver("flag-unclassified", "engine.args", "<not set>", True)]).verdict == REUSE
    assert decided({}, flag, waivers=[waiver("flag-unclassified", "engine.args", "<not set>", 1)]).exit_code == 10


@pytest.mark.parametrize(
    ("expires", "as_of", "verdict"),
    [
        ("2026-11-29", "2026-11-29", REUSE),
        ("2026-11-28", "2026-11-29", NAMESPACE),
        ("2026-12-01", "2026-11-29", REUSE),
        ("2025-12-31", "2026-11-29", NAMESPACE),
        ("2026-09-30", "2026-10-01", NAMESPACE),
    ],
)
def test_a_waiver_holds_through_its_last_day(expires: str, as_of: str, verdict: str) -> None:
    decision = waived(waiver("format-changed", "cache.serde", "naive", "cachegen", expires), as_of=as_of)
    assert decision.verdict == verdict
    assert [why for _, why in decision.unused_waivers] == ([] if verdict == REUSE else [f"expired {expires}"])


@pytest.mark.parametrize(
    "expires", ["20270101", "2027-W01-1", "2027-1-1", "2027-02-30", "never", "", "2027-01-01T00:00", " 2027-01-01"]
)
def test_one_spelling_of_a_date(expires: str) -> None:
    """Dates are compared as text: 20260101 would come after 2026-11-29."""
    with pytest.raises(ValueError, match="is not a date"):
        waiver("format-changed", "cache.serde", "naive", "cachegen", expires)


def test_one_finding_of_two_is_not_the_other() -> None:
    decision = decided({}, {**SERDE, "precision.compute": "float16"}, waivers=[FITS])
    assert [bool(finding.waived) for finding in decision.findings] == [False, True]
    assert decision.exit_code == 10


def test_a_second_waiver_for_the_same_finding_is_unused() -> None:
    decision = waived(FITS, FITS.model_copy(update={"reason": "again"}))
    assert decision.verdict == REUSE
    assert [one.reason for one, _ in decision.unused_waivers] == ["again"]


def test_a_waiver_covers_every_old_deployment_with_these_values() -> None:
    decision = decided([{}, {"cache.serde": "kivi"}, {}], SERDE, waivers=[FITS])
    assert [(finding.baseline, bool(finding.waived)) for finding in decision.findings] == [
        (0, True),
        (1, False),
        (2, True),
    ]


BILLING = [{"name": "billing", "digest": digest("1")}]
OTHER = [{"name": "billing", "digest": digest("2")}]
HOT = {"cache.connector": "vllm-offload-fs", "cache.version": None, "request_features": ["lora", "lora_hot_load"]}
TENANT = {"boundary": "tenant", "carried_by": "cache_salt"}
NEVER: dict[str, tuple[dict[str, Any], dict[str, Any], str, str, Any, Any]] = {
    "unverified": ({}, {"cache.serde": FORGET}, "format-changed", "cache.serde", "naive", None),
    "unverified on both sides": ({"cache.serde": FORGET},) * 2 + ("format-changed", "cache.serde", None, None),
    "unset on both, default unknown": (
        {"cache.serde": None},
        {"cache.serde": None, "engine.version": "0.32.0"},
        "format-changed",
        "cache.serde",
        None,
        None,
    ),
    "self-fault": (
        {"request_features": ["lora"]},
        {"request_features": ["lora"]},
        "fault-unseparated-requests",
        "request_features",
        None,
        ["lora"],
    ),
    "clear": (
        {**HOT, "adapters": BILLING},
        {**HOT, "adapters": OTHER},
        "adapter-replaced-in-place",
        "adapters",
        digest("1"),
        digest("2"),
    ),
    "leak": (
        {"request_features": ["cache_salt"], "cache.tenancy": TENANT},
        {"request_features": ["cache_salt"]},
        "tenancy-widened",
        "cache.tenancy",
        TENANT,
        None,
    ),
    "may be clear": (
        {"cache.connector": "nobody-knows"},
        {"cache.connector": "nobody-knows", "cache.serde": "cachegen"},
        "format-changed",
        "cache.serde",
        "naive",
        "cachegen",
    ),
    "only declared": (
        {"provenance/weights": "declared"},
        {"provenance/weights": "declared"},
        "weights-changed",
        "weights",
        digest("a"),
        digest("a"),
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_never(name: str) -> None:
    old, new, rule, dimension, before, after = NEVER[name]
    without = decided(old, new)
    decision = decided(old, new, waivers=[waiver(rule, dimension, before, after)])
    # The waiver is written for this very finding: only its nature keeps it from being covered.
    (finding,) = (one for one in without.findings if (one.rule, one.change.dimension) == (rule, dimension))
    values = [getattr(side, "value", None) for side in (finding.change.old, finding.change.new)]
    assert values == [before, after]
    assert (decision.verdict, decision.exit_code) == (without.verdict, without.exit_code)
    assert decision.exit_code != 0
    assert all(one.waived is None for one in decision.findings)
    assert len(decision.unused_waivers) == 1


def test_never_what_a_refutation_has_joined() -> None:
    new = {"model.config/rms_norm_eps": 1e-6}
    fits = waiver("config-changed", "model.config", 1e-5, 1e-6)
    assert decided({}, new, waivers=[fits]).verdict == REUSE
    refuted = about("config-equivalence", "refuted", {}, new, reason="outputs differ")
    assert decided({}, new, waivers=[fits], evidence=[refuted]).exit_code == 10


def test_never_the_target_of_a_first_deployment() -> None:
    fits = waiver("first-deployment", "cache.connector", None, "lmcache-mp")
    assert decided([], {}, waivers=[fits]).exit_code == 11


def test_a_waiver_is_no_declaration() -> None:
    """What is left open beside it stays open."""
    new = {**SERDE, "request_features": ["cache_salt"]}
    old = {"request_features": ["cache_salt"], "cache.tenancy": TENANT}
    decision = decided(old, new, waivers=[FITS])
    assert (decision.verdict, decision.exit_code) == (CLEAR, 20)


FILE = """\
schema: kvgate/waivers/v1
waivers:
  - rule: format-changed
    dimension: cache.serde
    old: naive
    new: cachegen
    reason: measured
    owner: team-serving
    expires: "2026-12-31"
"""


def test_the_file() -> None:
    assert parse_data(FILE.encode(), "w.yaml", Waivers).waivers == [
        waiver("format-changed", "cache.serde", "naive", "cachegen", reason="measured")
    ]


@pytest.mark.parametrize(
    ("find", "put", "where", "message"),
    [
        ('"2026-12-31"', "2026-12-31", "w.yaml:9", "waivers.0.expires: 2026-12-31 is read differently"),
        ('"2026-12-31"', "soon", "w.yaml:9", "waivers.0.expires: 'soon' is not a date (YYYY-MM-DD)"),
        ("    reason: measured\n", "", "w.yaml:2", "waivers.0.reason: Field required"),
        ("reason: measured", "reason: ''", "w.yaml:7", "waivers.0.reason: "),
        ("    owner: team-serving\n", "", "w.yaml:2", "waivers.0.owner: Field required"),
        ("    old: naive\n", "", "w.yaml:2", "waivers.0.old: Field required"),
        ("rule:", "rules:", "w.yaml:", "waivers.0.rule"),
        ("waivers/v1", "waivers/v2", "w.yaml:1", "schema: "),
    ],
)
def test_what_is_no_waivers_file(find: str, put: str, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_data(FILE.replace(find, put).encode(), "w.yaml", Waivers)
    assert caught.value.message.startswith(message)
    assert (caught.value.where or "").startswith(where)


def test_equal_values_do_not_waive_another_field() -> None:
    """A waiver that fits two fields and names none covers neither; with the path it covers its own."""
    old = {"model.config/mlp_bias": False, "model.config/attention_bias": False}
    new = {"model.config/mlp_bias": True, "model.config/attention_bias": True}
    signed: dict[str, Any] = {
        "rule": "config-changed", "dimension": "model.config", "old": False, "new": True,
        "reason": "measured", "owner": "team-serving", "expires": "2999-01-01",
    }  # fmt: skip
    decision = decided(old, new, waivers=[Waiver(**signed)])
    assert decision.exit_code == 10
    assert decision.unused_waivers[0][1] == "it fits several findings: name the path"
    named = decided(old, new, waivers=[Waiver(**signed, path="model.config.mlp_bias")])
    assert [finding.change.path for finding in named.findings if finding.open] == ["model.config.attention_bias"]


OTHER_OPAQUE = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_rule": "opaque"}
HUB = {"repo": "org/m", "files": {"model.safetensors": f"sha256:{'1' * 64}"}}
PINNED = {"weights.checkpoint": None, "weights.hub": {**HUB, "commit": "a" * 40}}
OTHER_PINNED = {
    "weights.checkpoint": None,
    "weights.hub": {"repo": "org/m", "commit": "b" * 40, "files": {"model.safetensors": f"sha256:{'2' * 64}"}},
}
FORGOTTEN: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "opaque": ({}, OTHER_OPAQUE, ("weights.checkpoint.kv_rule", "weights.checkpoint.kv_digest", "weights.checkpoint")),
    "other files": (PINNED, OTHER_PINNED, ("weights.hub.files", "weights.hub", "engine.args", "model.revision")),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_forgetting_makes_nothing_waivable(name: str) -> None:
    """Whatever is signed: what was unverified does not become a plain difference when less is known."""
    old, new, paths = FORGOTTEN[name]
    assert decided(old, new).exit_code == 11
    for path in paths:
        for side in range(2):
            pair = [old, new]
            pair[side] = {**pair[side], path: FORGET}
            unsigned = decided(*pair)
            signed = [
                waiver(
                    one.rule,
                    one.change.dimension,
                    getattr(one.change.old, "value", None),
                    getattr(one.change.new, "value", None),
                    path=one.change.path,
                )
                for one in unsigned.findings
            ]
            decision = decided(*pair, waivers=signed)
            assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11), (path, side)
