"""The derived id: a function of identity alone; none while anything that counts is unknown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from kvgate.rules.catalogue import dimensions
from kvgate.rules.identity import identity
from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, data, digest
from tests.rules.deciding import REUSE, decided
from tests.rules.served import served
from tests.rules.test_evidence import LABELS, SAME_DEPLOYMENT

SHARDED: dict[str, Any] = {"engine.name": "sglang", "engine.args/enable-dp-attention": True}
IDENTITY: dict[str, list[dict[str, Any]]] = {
    "weights": [
        {"weights.checkpoint.digest": digest("9")},
        {"weights.checkpoint": None, "weights.hub": {"repo": "a/b", "commit": "a" * 40}},
    ],
    "weights.served": [{"weights.served": served("9")}],
    "weights.mutable": [{"weights.mutable": True}],
    "model.config": [{"model.config/rms_norm_eps": 1e-6}, {"model.config/what": None}],
    "model.quantization": [{"model.quantization": "awq"}],
    "model.code": [{"model.code": digest("9")}],
    "model.processor": [{"model.processor": digest("9")}],
    "tokenizer": [
        {"tokenizer.effective": digest("9")},
        {"tokenizer.vocabulary.digest": digest("9")},
        {"tokenizer.special_tokens/bos_token": "<x>"},
    ],
    "tokenizer.renderer": [
        {f"tokenizer.renderer.{name}": value}
        for name in ("engine", "engine_version", "transformers", "tokenizers")
        for value in ("9", None)
    ],
    "tokenizer.options": [{"tokenizer.options": {}}],
    "chat_template": [{"chat_template.tree": digest("9")}, {"chat_template": None}],
    "precision.compute": [{"precision.compute": "float16"}],
    "precision.kv_cache": [{"precision.kv_cache": "fp8_e4m3"}],
    "precision.kv_scales": [{"precision.kv_scales": digest("9")}],
    "adapters": [{"adapters": [{"name": "a", "digest": digest("9")}]}],
    "parallelism.tensor": [{"parallelism.tensor": 4}],
    "parallelism.pipeline": [{"parallelism.pipeline": 4}],
    "parallelism.expert": [{"parallelism.expert": 4}],
    "parallelism.context": [{"parallelism.decode_context": 4}, {"parallelism.prefill_context": 4}],
    "engine.name": [{"engine.name": "sglang"}],
    "engine.version": [{"engine.version": "0.32.0"}],
    "engine.build": [{"engine.packages": digest("9")}],
    "engine.accelerator": [{"engine.accelerator": "B200"}],
    "engine.attention_backend": [{"engine.attention_backend": None}],
    "engine.block_size": [{"engine.block_size": 32}],
    "engine.kv_layout": [{"engine.kv_layout": "HND"}],
    "engine.max_model_len": [],  # see test_config: it counts where RoPE reads it
    "engine.speculative": [{"engine.speculative": {"method": "eagle"}}],
    "engine.args": [{"engine.args/what": True}],
    "request_features": [{"request_features": ["multimodal"]}],
    "roles": [{"roles": [{"name": "p", "set": {}}, {"name": "q", "set": {"precision.compute": "float32"}}]}],
    "cache.version": [{"cache.version": "0.5.5"}],
    "cache.chunk_size": [{"cache.chunk_size": 128}],
    "cache.serde": [{"cache.serde": None}],
    "cache.tenancy": [{"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}],
    "parallelism.data": [{**SHARDED, "parallelism.data": 2}, {**SHARDED, "parallelism.data": 4}],
    "inputs.tool_schemas": [{"inputs.tool_schemas": {}}],
    "inputs.document_sets": [{"inputs.document_sets": {}}],
    "inputs.system_prompts": [{"inputs.system_prompts": {}}],
}


def test_every_identity_dimension_is_here() -> None:
    assert IDENTITY.keys() == {one.id for one in dimensions() if one.identity}


def test_every_identity_gives_an_id_of_its_own() -> None:
    everything = [change for changes in IDENTITY.values() for change in changes]
    ids = [derive(clean(change)).id for change in ({}, *everything)]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"kvg1-[a-z2-7]{32}", one or "") for one in ids)


@pytest.mark.parametrize("name", sorted(SAME_DEPLOYMENT.keys() - {"packages not listed", "no digest taken", "spelling",
                                                                 "no flags, spelled out"}))  # fmt: skip
def test_address_labels_and_harmless_parts_do_not_move_it(name: str) -> None:
    assert derive(clean(SAME_DEPLOYMENT[name])).id == derive(clean()).id


@pytest.mark.parametrize("path", sorted(LABELS.keys() - {"provenance"}))
def test_labels_may_be_unknown(path: str) -> None:
    assert derive(clean({path: FORGET})).id == derive(clean()).id


def _pools(*sets: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**more, "roles": [{"name": name, "set": each} for name, each in zip("abc", sets, strict=False)]}


SERDE: list[dict[str, Any]] = [{"cache.serde": None}, {"cache.serde": "naive"}]
HALF, FULL = {"precision.compute": "float16"}, {"precision.compute": "float32"}


def test_pools_are_what_each_of_them_is_and_not_what_it_is_called_or_where_it_files() -> None:
    same: list[dict[str, Any]] = [
        _pools({}),
        _pools({}, {}),
        _pools({"cache.location": "redis://elsewhere:6379/0"}, {"cache.namespace": "b"}),
    ]
    assert {derive(clean(one)).id for one in same} == {derive(clean()).id}
    assert derive(clean(_pools(HALF))).id == derive(clean({"precision.compute": "float16"})).id
    assert derive(clean(_pools(HALF, FULL))).id == derive(clean(_pools(FULL, HALF))).id
    assert derive(clean(_pools(HALF, FULL))).id != derive(clean(_pools(HALF, {}))).id


def test_pools_that_change_places_are_another_deployment_and_an_id_in_a_place_moves_nothing() -> None:
    one, two = {"cache.location": "redis://one:6379/0"}, {"cache.location": "redis://two:6379/0"}
    straight, crossed = _pools({**HALF, **one}, {**FULL, **two}), _pools({**HALF, **two}, {**FULL, **one})
    first = derive(clean(straight)).id
    assert first is not None
    assert derive(clean(crossed)).id != first
    inside = [{"cache.location": f"{each['cache.location']}/{first}"} for each in (one, two)]
    assert derive(clean(_pools({**HALF, **inside[0]}, {**FULL, **inside[1]}))).id == first
    names = [{"cache.namespace": f"{first}-{letter}"} for letter in "pd"]
    assert (
        derive(clean(_pools({**HALF, **names[0]}, {**FULL, **names[1]}))).id
        != derive(clean(_pools({**HALF, **names[1]}, {**FULL, **names[0]}))).id
    )


@pytest.mark.parametrize(
    ("pool", "unlike"),
    [
        ({"cache.connector": "lmcache-mp"}, [{"cache.connector": None, **one} for one in SERDE]),
        (
            {"engine.args": {"enable-dp-attention": True}},
            [{"engine.name": "sglang", "parallelism.data": number} for number in (2, 4)],
        ),
        (
            {"model.config": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}},
            [{"engine.max_model_len": number} for number in (1024, 2048)],
        ),
        (
            {"chat_template.reads": ["bos_token", "eos_token"]},
            [{"tokenizer.special_tokens/eos_token": token} for token in ("<x>", "<y>")],
        ),
        ({"engine.packages": None}, [{"engine.image": f"sha256:{letter * 64}"} for letter in "89"]),
    ],
)
def test_what_counts_is_asked_of_the_pool_that_has_it(pool: dict[str, Any], unlike: list[dict[str, Any]]) -> None:
    ids = {derive(clean(_pools(pool, {}, **one))).id for one in unlike}
    assert len(ids) == len(unlike)
    assert None not in ids


def test_what_is_missing_of_a_pool_is_missing() -> None:
    unknown = derive(clean(_pools({"adapters": [{"name": "b", "path": "/b"}]}, {})))
    assert (unknown.id, [name for name, _ in unknown.missing]) == (None, ["adapters"])


def test_a_tombstone_is_no_adapter() -> None:
    gone = {"adapters": [{"name": "a", "digest": digest("9"), "removed": True}]}
    assert derive(clean(gone)).id == derive(clean()).id


def test_an_image_counts_only_where_no_packages_are_listed() -> None:
    images = ["sha256:" + letter * 64 for letter in "89"]
    with_packages = {derive(clean({"engine.image": image})).id for image in images}
    without = {derive(clean({"engine.image": image, "engine.packages": None})).id for image in images}
    assert (len(with_packages), len(without), None in without) == (1, 2, False)
    assert derive(clean({"engine.image": None, "engine.packages": None})).id is not None
    assert derive(clean({"engine.image": FORGET, "engine.packages": None})).id is None
    assert derive(clean({"engine.image": FORGET})).id == derive(clean()).id


def test_special_tokens_count_where_the_template_reads_them() -> None:
    def ids(**template: Any) -> set[str | None]:
        return {
            derive(clean({**{f"chat_template.{k}": v for k, v in template.items()},
                          "tokenizer.special_tokens/pad_token": token})).id
            for token in ("<a>", "<b>")
        }  # fmt: skip

    assert len(ids()) == 1
    assert len(ids(reads=["pad_token"])) == 2
    assert ids(reads=FORGET) == {None}


ON_A_CONDITION = {"engine.image", "engine.max_model_len", "parallelism.data"}
REQUIRED = sorted({path for one in dimensions() for path in one.identity} - ON_A_CONDITION)


@pytest.mark.parametrize("path", REQUIRED)
def test_there_is_none_while_anything_that_counts_is_unknown(path: str) -> None:
    section = path.rpartition(".")[0] if path in ("weights.checkpoint.digest", "tokenizer.vocabulary.digest") else path
    derived = derive(clean({section: FORGET}))
    assert derived.id is None
    (owner,) = (one for one in dimensions() if path in one.identity)
    assert (owner.id, owner.settle) in derived.missing


def test_replicas_count_where_they_divide_attention() -> None:
    assert derive(clean({"parallelism.data": FORGET})).id == derive(clean({"parallelism.data": 4})).id is not None
    assert [dimension for dimension, _ in derive(clean({**SHARDED, "parallelism.data": FORGET})).missing] == [
        "parallelism.data"
    ]
    plain = [derive(clean({"engine.name": "sglang", "parallelism.data": size})).id for size in (2, 4)]
    assert plain[0] == plain[1]


def test_there_is_none_while_a_length_that_rope_reads_is_unknown() -> None:
    dynamic = {"model.config/rope_parameters": {"rope_type": "dynamic"}}
    assert derive(clean({**dynamic, "engine.max_model_len": FORGET})).id is None
    assert derive(clean({"model.config": FORGET})).missing[0][0] == "model.config"


@pytest.mark.parametrize("section", ["weights", "tokenizer", "chat_template", "adapters"])
def test_what_must_be_measured_gives_none_while_it_is_only_declared(section: str) -> None:
    base = {"adapters": [{"name": "a", "digest": digest("1")}]}
    assert derive(clean({**base, f"provenance/{section}": "declared"})).id is None
    assert derive(clean({**base, f"provenance/{section}": "observed"})).id == derive(clean(base)).id


def test_there_is_nothing_to_measure_about_no_adapters() -> None:
    assert derive(clean({"provenance/adapters": "declared"})).id == derive(clean()).id


def test_an_adapter_without_a_digest_gives_none() -> None:
    assert derive(clean({"adapters": [{"name": "a"}]})).id is None
    assert derive(clean({"adapters": [{"name": "a", "digest": digest("1")}, {"name": "b"}]})).id is None


def test_a_pinned_commit_stands_in_where_no_digest_was_taken() -> None:
    def pinned(letter: str) -> dict[str, Any]:
        return {"weights.checkpoint": None, "weights.hub": {"repo": "a/b", "commit": letter * 40}}

    assert derive(clean(pinned("a"))).id not in (None, derive(clean(pinned("b"))).id)
    assert derive(clean({"weights.checkpoint": None, "weights.hub": None})).id is None
    assert derive(clean({"weights.checkpoint": None, "weights.hub": FORGET})).id is None


def test_an_accelerator_that_nobody_named_is_missing() -> None:
    found = derive(clean({"engine.accelerator": None}))
    assert (found.id, [name for name, _ in found.missing]) == (None, ["engine.accelerator"])
    assert derive(clean({"engine.accelerator": "cpu"})).id is not None


def test_without_a_store_what_shapes_the_store_plays_no_part() -> None:
    none = {"cache.connector": None}
    assert derive(clean(none)).id == derive(clean({**none, "cache.serde": FORGET, "inputs": FORGET})).id is not None


def test_what_is_missing_comes_most_useful_first() -> None:
    from kvgate.rules.manifest import manifest_from

    bare = derive(manifest_from({"schema": "kvgate/manifest/v1", "model": {"id": "a"}}))
    assert bare.id is None
    order = {one.id: one.order for one in dimensions()}
    found = [order[name] for name, _ in bare.missing]
    assert found == sorted(found)
    assert bare.missing[0][0] == "weights"
    assert all(settle for _, settle in bare.missing)


def test_two_bare_manifests_are_never_reuse_and_say_what_to_capture() -> None:
    from kvgate.rules.manifest import manifest_from

    bare = manifest_from({"schema": "kvgate/manifest/v1", "model": {"id": "a"}})
    decision = decided(bare, bare, accept=frozenset({"new-namespace"}))
    assert (decision.verdict, decision.exit_code) == ("new-namespace", 11)
    assert all(finding.unverified and finding.settle for finding in decision.findings)


def test_equal_ids_are_reuse_in_front_of_the_same_address() -> None:
    """What shares an id may share entries: no change that leaves the id alone may ask for more than a harmless line."""
    for name, change in SAME_DEPLOYMENT.items():
        if derive(clean(change)).id != derive(clean()).id or name in ("namespace", "location", "model name"):
            continue
        assert decided({}, change).verdict == REUSE, name


def test_the_id_is_the_same_in_every_process() -> None:
    script = (
        "import json, sys\n"
        "from kvgate.rules.manifest import manifest_from\n"
        "from kvgate.rules.namespace import derive\n"
        "print(derive(manifest_from(json.load(sys.stdin))).id)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], input=json.dumps(data()), capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("0", "1")
    }  # fmt: skip
    assert found == {derive(clean()).id}


def test_the_id_of_the_clean_manifest_stays() -> None:
    """It names entries in stores: a release that derives another id makes every store cold."""
    assert derive(clean()).id == "kvg1-dn4jsf4zw5qjr3ulrbh7hzokddd3bdts"


def test_identity_is_plain_data() -> None:
    assert json.dumps(identity(clean()), allow_nan=False)
