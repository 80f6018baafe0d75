"""Evidence: what supports binds to what it was made of; what speaks against goes only where it is about another."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from kvgate.rules.decide import Decision
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import SECTIONS, Evidence, Kind, refutations, subject_of
from kvgate.rules.namespace import derive
from kvgate.rules.packaged import data_from, parse_data
from kvgate.rules.shown import Shown
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import CLEAR, NAMESPACE, REUSE, STALE, about, decided

KINDS: tuple[Kind, ...] = get_args(Kind)
# One change in each section that counts.
IN_SECTION: dict[str, dict[str, Any]] = {
    "model": {"model.config/rms_norm_eps": 1e-6},
    "weights": {"weights.checkpoint.digest": digest("9")},
    "tokenizer": {"tokenizer.effective": digest("9")},
    "chat_template": {"chat_template.tree": digest("9")},
    "precision": {"precision.compute": "float16"},
    "adapters": {"adapters": [{"name": "a", "digest": digest("9")}]},
    "parallelism": {"parallelism.tensor": 4},
    "engine": {"engine.version": "0.32.0"},
    "request_features": {"request_features": ["multimodal"]},
    "roles": {"roles": [{"name": "p", "set": {}}]},
    "cache": {"cache.serde": "cachegen"},
    "inputs": {"inputs.system_prompts": {}},
}
LABELS: dict[str, Any] = {
    "release.name": "other",
    "release.version": "9",
    "cache.ttl": "1d",
    "cache.cleanup_owner": "somebody",
    "tokenizer.path": "/elsewhere",
    "tokenizer.snapshot": {"file": "t", "sha256": "sha256:" + "1" * 64, "corpus": "c"},
    "model.config_class": None,
    "provenance": dict.fromkeys(("weights", "tokenizer", "chat_template", "adapters"), "observed"),
}


# ---- supporting evidence ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("section", IN_SECTION)
def test_a_change_of_a_section_that_the_kind_names_unbinds_it(kind: Kind, section: str) -> None:
    proof = about(kind, "proved", {}, {})
    bound = section not in SECTIONS[kind]
    assert proof.supports(clean(), clean(IN_SECTION[section])) is bound
    assert proof.supports(clean(IN_SECTION[section]), clean()) is bound
    assert proof.supports(clean(), clean())


def test_sections_cover_what_the_kind_speaks_of() -> None:
    assert SECTIONS.keys() == set(KINDS)
    # The image stands for library versions that the renderer leaves open.
    assert {"tokenizer", "chat_template", "engine"} <= set(SECTIONS["token-identity"])
    assert "weights" in SECTIONS["weights-identity"]
    assert "cache" in SECTIONS["inventory"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", LABELS)
def test_labels_are_outside_the_binding(kind: Kind, path: str) -> None:
    assert about(kind, "proved", {}, {}).supports(clean(), clean({path: LABELS[path]}))


@pytest.mark.parametrize("section", IN_SECTION)
def test_forgetting_a_section_unbinds_too(section: str) -> None:
    if section == "model":
        return  # required
    for kind in KINDS:
        bound = section not in SECTIONS[kind]
        assert about(kind, "proved", {}, {}).supports(clean(), clean({section: FORGET})) is bound


def test_only_proof_supports_and_only_a_refutation_speaks_against() -> None:
    for state in ("proved", "refuted", "inconclusive", "not-run"):
        item = about("token-identity", state, {}, {})
        assert item.supports(clean(), clean()) is (state == "proved")
        assert item.speaks_against(clean(), clean()) is (state == "refuted")


def test_proof_of_a_pair_is_none_of_a_first_deployment() -> None:
    pair, alone = about("isolation", "proved", {}, {}), about("isolation", "proved", None, {})
    assert pair.supports(clean(), clean())
    assert not pair.supports(None, clean())
    assert alone.supports(None, clean())
    assert not alone.supports(clean(), clean())
    # What lies at the target does not depend on who asks.
    assert about("inventory", "proved", {}, {}).supports(None, clean())
    assert about("inventory", "proved", None, {}).supports(clean(), clean())


def test_a_binding_without_sections_binds_nothing() -> None:
    proof = about("token-identity", "proved", {}, {})
    for side in ("old", "new"):
        bare = proof.model_copy(update={side: subject_of(clean(), "lifecycle-audit")})
        assert not bare.supports(clean(), clean())


@pytest.mark.parametrize("change", [{"model.id": "acme/other"}, {"parallelism.tensor": 4}, {"engine.block_size": 32}])
def test_an_inventory_of_another_model_or_other_ranks_shows_nothing_of_these(change: dict[str, Any]) -> None:
    """Entries of the deployment were looked for by their names; the cache section alone is shared by neighbours."""
    other = about("inventory", "proved", None, change, figures={"entries": 0})
    assert not other.supports(None, clean())
    assert decided([], {}, evidence=[other]).exit_code == 11
    assert decided([], {}, evidence=[about("inventory", "proved", None, {}, figures={"entries": 0})]).exit_code == 0


SUPPORTED: dict[str, tuple[Kind, dict[str, Any]]] = {
    "tokens": ("token-identity", {"tokenizer.renderer.transformers": "4.57.6"}),
    "template": ("token-identity", {"chat_template.digest": digest("9"), "chat_template.tree": digest("9")}),
    "options": ("token-identity", {"tokenizer.options": {}}),
    "weights": ("weights-identity", {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_rule": "2"}),
    "config": ("config-equivalence", {"model.config/rms_norm_eps": 1e-6}),
    "new field": ("kv-equivalence", {"model.config/what": 1}),
    "code": ("kv-equivalence", {"model.code": digest("9")}),
    "engine": ("kv-equivalence", {"engine.version": "0.32.0"}),
    "flag": ("kv-equivalence", {"engine.args/what": 1}),
    "draft": ("kv-equivalence", {"engine.speculative": {"method": "eagle"}}),
}
OWN = {"cache.connector": "own-store", "cache.version": None, "cache.key_fields": ["namespace"]}


@pytest.mark.parametrize("name", SUPPORTED)
def test_proof_discharges_the_finding_it_is_about_and_nothing_else_does(name: str) -> None:
    kind, change = SUPPORTED[name]
    old, new = OWN, {**OWN, **change}
    assert decided(old, new).exit_code == 10
    proof = about(kind, "proved", old, new)
    decision = decided(old, new, evidence=[proof])
    assert (decision.verdict, decision.exit_code) == (REUSE, 0)
    assert decision.findings[0].evidence == (proof.digest,)
    for state in ("inconclusive", "not-run"):
        assert decided(old, new, evidence=[about(kind, state, old, new)]).verdict == NAMESPACE
    for stale in (about(kind, "proved", new, old), about(kind, "proved", old, old), about(kind, "proved", new, new)):
        assert decided(old, new, evidence=[stale]).verdict == NAMESPACE
    for other in KINDS:
        if other != kind and not (name in ("config", "new field") and other.endswith("equivalence")):
            assert decided(old, new, evidence=[about(other, "proved", old, new)]).verdict == NAMESPACE
    refuted = about(kind, "refuted", old, new)
    assert decided(old, new, evidence=[proof, refuted]).verdict == NAMESPACE


def test_equal_digests_cannot_be_proved_away() -> None:
    """What no rule lets evidence discharge stays: a dtype, a rank layout, a tenant boundary."""
    everything = [about(kind, "proved", {}, {"precision.compute": "float16"}) for kind in KINDS]
    assert decided({}, {"precision.compute": "float16"}, evidence=everything).verdict == NAMESPACE


# ---- adverse evidence ----

ADVERSE = ("isolation", "lifecycle-audit", "tenant-canary", "kv-equivalence", "bypass-diff", "weights-identity")
SAME_DEPLOYMENT: dict[str, dict[str, Any]] = {
    **{path: {path: value} for path, value in LABELS.items()},
    "namespace": {"cache.namespace": "other"},
    "location": {"cache.location": "redis://cache-2:6379/0"},
    "epoch": {"cache.epoch": 15},
    "hash seed": {"engine.prefix_hash.seed": "1"},
    "served name": {"model.served_name": "other"},
    "revision": {"model.revision": "main"},
    "model name": {"model.id": "/models/other"},
    "harmless config field": {"model.config/eos_token_id": 1},
    "spelling": {"model.config/torch_dtype": "bfloat16", "model.config/dtype": FORGET},
    "harmless flag": {"engine.args/max-num-seqs": 1},
    "inert length": {"engine.max_model_len": 4096},
    "replicas": {"parallelism.data": 9},
    "rebuilt": {"engine.image": "sha256:" + "9" * 64},
    "packages not listed": {"engine.packages": None},
    "unread special token": {"tokenizer.special_tokens/pad_token": "<x>"},
    "template text": {"chat_template.digest": digest("9")},
    "files": {"tokenizer.files": {}},
    "layout": {"weights.checkpoint.layout": digest("9")},
    "no digest taken": {"weights.checkpoint": None, "weights.hub": {"repo": "a/b", "commit": "a" * 40}},
    "shared, spelled out": {"cache.tenancy": {"boundary": "shared", "carried_by": None}},
    "no flags, spelled out": {"engine.args": {}},
}
FORGETTABLE = (
    "model.config", "engine.name", "engine.packages", "engine.image", "engine.args", "tokenizer.renderer",
    "tokenizer.renderer.transformers", "tokenizer.renderer.engine", "chat_template", "chat_template.reads",
    "chat_template.tree", "tokenizer.special_tokens", "weights", "weights.checkpoint", "adapters", "cache",
    "cache.connector", "cache.tenancy", "request_features", "roles", "engine.max_model_len", "provenance", "precision",
)  # fmt: skip


def against(decision: Decision) -> bool:
    return any(finding.adverse for finding in decision.findings)


@pytest.mark.parametrize("name", SAME_DEPLOYMENT)
def test_a_refutation_survives_what_is_no_identity(name: str) -> None:
    for kind in ADVERSE:
        item = about(kind, "refuted", {}, {})  # type: ignore[arg-type]
        assert item.speaks_against(clean(), clean(SAME_DEPLOYMENT[name]))
        assert item.speaks_against(clean(SAME_DEPLOYMENT[name]), clean())


@pytest.mark.parametrize("path", FORGETTABLE)
def test_a_refutation_survives_forgetting(path: str) -> None:
    rich: dict[str, Any] = {"adapters": [{"name": "a", "digest": digest("1")}], "engine.args": {"x": 1, "port": 2},
                            "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}  # fmt: skip
    item = about("isolation", "refuted", rich, rich)
    assert item.speaks_against(clean({**rich, path: FORGET}), clean(rich))
    assert item.speaks_against(clean(rich), clean({**rich, path: FORGET}))


def test_a_refutation_survives_an_adapter_without_its_digest() -> None:
    known = {"adapters": [{"name": "a", "digest": digest("1")}]}
    assert about("isolation", "refuted", known, known).speaks_against(
        clean(known), clean({"adapters": [{"name": "a"}]})
    )


@pytest.mark.parametrize("path", ["model.config", "engine.name", "tokenizer.renderer.transformers", "weights"])
def test_forgetting_does_not_make_a_refused_rollout_an_accepted_one(path: str) -> None:
    """An inventory settles what is unknown; a refutation that were shed with it would leave nothing open."""
    new = {"precision.kv_cache": "fp8_e4m3", "cache.namespace": "other"}
    for changes in (new, {**new, path: FORGET}):
        evidence = [
            about("isolation", "refuted", {}, new, shown=STALE),
            about("inventory", "proved", {}, changes, figures={"entries": 0}),
        ]
        decision = decided({}, changes, evidence=evidence)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"weights.checkpoint.digest": digest("9")},
        {"tokenizer.effective": digest("9")},
        {"precision.kv_cache": "fp8_e4m3"},
        {"engine.version": "0.32.0"},
        {"model.config/rms_norm_eps": 1e-6},
        {"tokenizer.special_tokens/bos_token": "<x>"},
        {"tokenizer.renderer.transformers": "4.57.6"},
        {"engine.args/what": 1},
    ],
)
def test_a_refutation_is_not_about_another_identity(change: dict[str, Any]) -> None:
    for kind in ADVERSE:
        item = about(kind, "refuted", {}, {})  # type: ignore[arg-type]
        assert not item.speaks_against(clean(), clean(change))
        assert not item.speaks_against(clean(change), clean())


ADAPTER = {"adapters": [{"name": "a", "digest": digest("1")}]}


@pytest.mark.parametrize(
    "change",
    [
        {"roles": [{"name": "all", "set": {}}]},
        {"roles": [{"name": "all", "set": {"cache.location": "redis://elsewhere:6379/0"}}]},
        {"inputs.system_prompts": {"support": digest("1")}},
        {"request_features": ["multimodal"]},
        {"parallelism.tensor": 4},
        ADAPTER,
    ],
)
def test_a_change_that_may_do_no_harm_sheds_no_refutation(change: dict[str, Any]) -> None:
    for kind in ADVERSE:
        item = about(kind, "refuted", {}, {})  # type: ignore[arg-type]
        assert item.speaks_against(clean(), clean(change))
    assert decided({}, change, evidence=[about("kv-equivalence", "refuted", {}, {})]).verdict != REUSE


def test_a_refutation_of_an_adapter_is_not_about_another_of_its_name() -> None:
    other = {"adapters": [{"name": "a", "digest": digest("2")}]}
    more = {"adapters": [*ADAPTER["adapters"], {"name": "b", "digest": digest("2")}]}
    for kind in ADVERSE:
        item = about(kind, "refuted", ADAPTER, ADAPTER)  # type: ignore[arg-type]
        assert not item.speaks_against(clean(ADAPTER), clean(other))
        assert item.speaks_against(clean(ADAPTER), clean(more))


def test_what_a_pool_sets_is_not_what_a_refuted_deployment_is() -> None:
    """The weights that all pools have in common are those of none where each has its own."""
    other: dict[str, Any] = {
        "weights.checkpoint.digest": digest("9"),
        "roles": [{"name": "all", "set": {"weights.checkpoint.digest": clean().value("weights.checkpoint.digest")}}],
    }
    assert about("kv-equivalence", "refuted", {}, {}).speaks_against(clean(), clean(other))


@pytest.mark.parametrize("kind", ["tenant-canary", "lifecycle-audit", "bypass-diff"])
def test_deleting_old_entries_undoes_nothing_of_what_the_new_one_did_in_its_own_place(kind: Kind) -> None:
    new = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
    moved = {**new, "cache.namespace": derive(clean(new)).id, "cache.location": "redis://cache-2:6379/0"}
    given: dict[str, Any] = {"declare_clear": True, "strategy": "recreate"}
    assert decided({}, moved, **given).exit_code == 0
    assert decided({}, moved, evidence=[about(kind, "refuted", None, moved)], **given).exit_code in (10, 20)
    assert decided({}, {}, evidence=[about(kind, "refuted", None, {})], **given).exit_code == 0  # the same place


# Changes that `check` calls harmless, or that a sourced row covers: the new deployment reads old entries.
READS_ON: dict[str, dict[str, Any]] = {
    "tail tensors": {"weights.checkpoint.digest": digest("9")},
    "an upgrade": {"cache.version": "0.5.5"},
}
OF_ONE: tuple[tuple[Kind, int], ...] = (
    ("bypass-diff", 10),
    ("lifecycle-audit", 20),
    ("tenant-canary", 20),
    ("inventory", 10),
)


@pytest.mark.parametrize(("kind", "code"), OF_ONE)
@pytest.mark.parametrize("name", READS_ON)
def test_what_was_found_of_the_old_one_alone_is_about_the_entries_that_the_new_one_reads(
    name: str, kind: Kind, code: int
) -> None:
    new = READS_ON[name]
    refuted = about(kind, "refuted", None, {}, reason="seen as it ran")
    assert decided({}, new).verdict == REUSE
    decision = decided({}, new, evidence=[refuted])
    assert (decision.verdict, decision.exit_code) == (NAMESPACE if code == 10 else CLEAR, code)
    (finding,) = (one for one in decision.findings if one.adverse)
    assert (finding.baseline, finding.change.detail) == (0, "found of the old deployment: seen as it ran")
    proof = about(kind, "proved", None, {}, supersedes=[refuted.digest])
    assert decided({}, new, evidence=[refuted, proof]).verdict == REUSE


@pytest.mark.parametrize("kind", ["bypass-diff", "tenant-canary"])
@pytest.mark.parametrize("name", READS_ON)
def test_what_the_new_one_shows_is_no_answer_of_the_old_one(name: str, kind: Kind) -> None:
    refuted = about(kind, "refuted", None, {})
    proof = about(kind, "proved", None, READS_ON[name], supersedes=[refuted.digest])
    assert decided({}, READS_ON[name], evidence=[refuted, proof]).exit_code in (10, 20)


@pytest.mark.parametrize(("kind", "code"), OF_ONE)
def test_old_entries_that_are_kept_apart_or_deleted_are_read_by_nobody(kind: Kind, code: int) -> None:
    tail = READS_ON["tail tensors"]
    refuted = [about(kind, "refuted", None, {})]
    moved = {**tail, "cache.namespace": derive(clean(tail)).id}
    assert decided({}, moved, evidence=refuted).exit_code == (0 if code == 10 else 20)
    assert decided({}, moved, evidence=refuted, declare_clear=True).exit_code == 0
    drained: dict[str, Any] = {"declare_clear": True, "strategy": "recreate"}
    assert decided({}, tail, evidence=refuted, **drained).exit_code == (0 if kind != "inventory" else 10)
    detached = {**tail, "cache.connector": None}
    assert decided({}, detached, evidence=refuted).exit_code == 0


@pytest.mark.parametrize(("kind", "code"), OF_ONE)
def test_what_ended_with_the_old_worker_is_read_by_nobody(kind: Kind, code: int) -> None:
    own: dict[str, Any] = {"cache.connector": "vllm-apc", "cache.version": None, "cache.location": None}
    tail = {**own, **READS_ON["tail tensors"]}
    assert decided(own, tail, evidence=[about(kind, "refuted", None, own)]).exit_code == 0
    assert decided(own, own, evidence=[about(kind, "refuted", None, own)]).exit_code == code


def test_no_fault_of_the_old_one_makes_the_new_one_unsafe_by_itself() -> None:
    refuted = [about("isolation", "refuted", None, {})]
    assert decided({}, {}, evidence=refuted).exit_code == 30
    assert decided({}, READS_ON["tail tensors"], evidence=refuted).exit_code == 20


@pytest.mark.parametrize(("kind", "shown"), [("kv-equivalence", STALE), ("isolation", STALE), ("bypass-diff", None)])
def test_what_one_release_found_of_the_entries_of_another_is_true_in_front_of_the_next(
    kind: Kind, shown: Shown | None
) -> None:
    """Blocks that the release before last left were read wrongly by the last one; this one reads them as it did."""
    last = READS_ON["an upgrade"]
    new = {**last, **READS_ON["tail tensors"]}
    refuted = about(kind, "refuted", {}, last, shown=shown)
    assert decided([{}, last], new).verdict == REUSE
    assert decided([{}, last], new, evidence=[refuted]).exit_code == 10
    assert decided([last, {}], new, evidence=[refuted]).exit_code == 10
    assert decided([last], new, evidence=[refuted]).verdict == REUSE  # nothing of those entries is in question
    answer = about(kind, "proved", {}, last, shown=shown, supersedes=[refuted.digest])
    assert decided([{}, last], new, evidence=[refuted, answer]).verdict == REUSE
    apart = {**new, "cache.namespace": derive(clean(new)).id}
    assert decided([{}, last], apart, evidence=[refuted]).exit_code == 0


@pytest.mark.parametrize("kind", [kind for kind, _ in OF_ONE])
def test_what_was_found_of_another_deployment_is_about_no_entries_of_these(kind: Kind) -> None:
    refuted = about(kind, "refuted", None, {"precision.kv_cache": "fp8_e4m3"})
    assert decided({}, READS_ON["tail tensors"], evidence=[refuted]).verdict == REUSE
    # Of several old ones it is about that one alone.
    other = {"weights.checkpoint.digest": digest("8")}
    decision = decided([other, {}], READS_ON["tail tensors"], evidence=[about(kind, "refuted", None, {})])
    assert [one.baseline for one in decision.findings if one.adverse] == [1]


@pytest.mark.parametrize("kind", ["tenant-canary", "lifecycle-audit"])
def test_where_a_deployment_with_pools_files_is_where_its_pools_do(kind: Kind) -> None:
    def filed(place: str, **more: Any) -> dict[str, Any]:
        return {**more, "roles": [{"name": "all", "set": {"cache.location": f"redis://{place}:6379/0"}}]}

    new = filed("two", **{"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")})
    new["cache.namespace"] = derive(clean(new)).id
    leaked = [about(kind, "refuted", None, new)]
    assert decided(filed("one"), new, evidence=leaked, declare_clear=True, strategy="recreate").exit_code == 20


def test_deleting_what_a_wider_boundary_left_undoes_no_leak_of_the_new_one() -> None:
    def keeping(boundary: str) -> dict[str, Any]:
        tenancy = {"boundary": boundary, "carried_by": "cache_salt"}
        return {"cache.tenancy": tenancy, "request_features": ["cache_salt"]}

    new = {**keeping("tenant"), "cache.location": "redis://two:6379/0"}
    leaked = [about("tenant-canary", "refuted", None, new)]
    assert decided(keeping("user"), new, evidence=leaked, declare_clear=True).exit_code == 20


def test_a_refutation_only_raises() -> None:
    reuse = decided({}, {})
    for kind in KINDS:
        decision = decided({}, {}, evidence=[about(kind, "refuted", {}, {})])
        assert against(decision)
        assert decision.verdict != reuse.verdict
        assert not decided({}, {}, evidence=[about(kind, "inconclusive", {}, {})]).findings


def test_a_refutation_joins_the_finding_it_explains() -> None:
    new = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
    item = about("weights-identity", "refuted", {}, new, reason="2 changed, first: k_proj")
    decision = decided({}, new, evidence=[item])
    (finding,) = decision.findings
    assert (finding.rule, finding.adverse, finding.evidence) == ("weights-changed", True, (item.digest,))
    assert "2 changed, first: k_proj" in finding.change.detail


def test_a_refutation_is_superseded_by_name_and_by_bound_proof_of_its_kind_only() -> None:
    refuted = about("isolation", "refuted", {}, {}, reason="a stale entry was hit", shown=STALE)
    named: dict[str, Any] = {"supersedes": [refuted.digest], "shown": STALE}
    answer = about("isolation", "proved", {}, {}, **named)
    assert refutations([refuted, answer], clean(), clean()) == []
    assert refutations([refuted], clean(), clean()) == [refuted]
    assert decided({}, {}, evidence=[refuted, answer]).verdict == REUSE
    for no_answer, why in (
        (about("isolation", "proved", {}, {}, shown=STALE), None),
        (about("isolation", "inconclusive", {}, {}, **named), "it is inconclusive"),
        (about("isolation", "refuted", {}, {}, **named), "it is refuted"),
        (about("lifecycle-audit", "proved", {}, {}, **named), "it is evidence of lifecycle-audit"),
        (about("isolation", "proved", {}, {"engine.version": "0.32.0"}, **named), "about other deployments"),
        (about("isolation", "proved", {}, {"cache.namespace": "b"}, **named), "or they were edited after it"),
        (about("isolation", "proved", None, {}, **named), "about other deployments"),
        (about("isolation", "proved", {}, {}, supersedes=[refuted.digest]), "where it was seen"),
    ):
        decision = decided({}, {}, evidence=[refuted, no_answer])
        assert decision.verdict == NAMESPACE
        said = " ".join(one.change.detail for one in decision.findings if one.rule == "refuted-rehearsal")
        assert (why or "a stale entry was hit") in said
    another = about("isolation", "refuted", {}, {}, reason="and again", shown=STALE)
    assert decided({}, {}, evidence=[refuted, answer, another]).verdict == NAMESPACE


def test_an_answered_inventory_counts_for_a_first_deployment() -> None:
    refuted = about("inventory", "refuted", None, {}, reason="12 entries of another identity")
    empty = about("inventory", "proved", None, {}, figures={"entries": 0})
    answer = about("inventory", "proved", None, {}, figures={"entries": 0}, supersedes=[refuted.digest])
    assert decided([], {}).exit_code == 11
    assert decided([], {}, evidence=[empty]).exit_code == 0
    assert decided([], {}, evidence=[refuted, empty]).exit_code == 10
    assert decided([], {}, evidence=[refuted, answer]).exit_code == 0


def test_a_refuted_inventory_takes_the_boundary_away() -> None:
    new = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")}
    from kvgate.rules.namespace import derive

    named = {**new, "cache.namespace": derive(clean(new)).id}
    assert decided({}, named).exit_code == 0
    refuted = about("inventory", "refuted", {}, named, reason="entries of another identity")
    decision = decided({}, named, evidence=[refuted])
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 10)


# ---- the file ----


def test_evidence_is_read_as_it_was_written() -> None:
    item = about("kv-equivalence", "refuted", {}, {}, reason="x", figures={"max": 0.5}, tools={"kvgate": "0.1"})
    again = data_from(item.as_data(), "e.json", Evidence)
    assert again == item
    assert again.digest == item.digest
    assert item.digest != about("kv-equivalence", "refuted", {}, {}, reason="y").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: kvgate/evidence/v1\nkind: hearsay\nstate: proved\nnew: {sections: {}}\n", "kind: "),
        ("schema: kvgate/evidence/v1\nkind: inventory\nstate: true\nnew: {sections: {}}\n", "state: "),
        ("schema: kvgate/evidence/v1\nkind: inventory\nstate: proved\n", "new: "),
        ("schema: kvgate/evidence/v1\nkind: inventory\nstate: proved\nnew: {sections: {}}\nsure: yes!\n", "sure: "),
        ("schema: kvgate/evidence/v2\nkind: inventory\nstate: proved\nnew: {sections: {}}\n", "schema: "),
    ],
)
def test_what_is_no_evidence(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_data(text.encode(), "e.yaml", Evidence)
    assert caught.value.message.startswith(message)
    assert (caught.value.where or "").startswith("e.yaml")


@pytest.mark.parametrize("entries", [1, "0", None, [], -1, 0.5, False])
def test_an_inventory_that_does_not_say_none_shows_nothing(entries: Any) -> None:
    new = {"cache.namespace": "other"}
    assert (
        decided({}, new, evidence=[about("inventory", "proved", {}, new, figures={"entries": entries})]).exit_code == 10
    )
