"""Manifests: validation with file, line and path, what is known of a path, canonical form, credentials."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kvgate.rules.catalogue import dimensions, owner_of
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest, manifest_from, parse_manifest, schema_leaves
from kvgate.rules.schema import ManifestModel
from kvgate.rules.values import UNKNOWN, Known
from tests.rules.clean import CLEAN, FORGET, clean, data, digest

HEAD = "schema: kvgate/manifest/v1\nmodel:\n  id: acme/a\n"


def refused(text: str | bytes) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_manifest(text.encode() if isinstance(text, str) else text, "m.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800
    return caught.value


def parsed(text: str) -> Manifest:
    return parse_manifest(text.encode(), "m.yaml")


# ---- what is refused ----


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        (HEAD + "  revision: 010\n", "m.yaml:4",
         "model.revision: 010 is read differently by different YAML tools", 'quote it if a string is meant: "010"'),
        (HEAD + "  revision: 1234567\n", "m.yaml:4",
         "model.revision: must be a string, but 1234567 is not one", 'quote it: "1234567"'),
        (HEAD + "  served_name: true\n", "m.yaml:4",
         "model.served_name: must be a string, but True is not one", 'quote it: "True"'),
        (HEAD + "engine: {version: 0.33}\n", "m.yaml:4",
         "engine.version: must be a string, but 0.33 is not one", 'quote it: "0.33"'),
        (HEAD + "  pinned: yes!\n", "m.yaml:4", "model.pinned: unknown key",
         "`kvgate schema manifest` prints the keys there are"),
        (HEAD + "cache:\n  tenancy: {boundary: tenant, carried_by: null, extra: 1}\n", "m.yaml:5",
         "cache.tenancy.extra: unknown key", "`kvgate schema manifest` prints the keys there are"),
        (HEAD + "engine:\n  name: null\n", "m.yaml:5", "engine.name: cannot be null",
         "leave it out where it is unknown"),
        (HEAD + "adapters: null\n", "m.yaml:4", "adapters: cannot be null", "leave it out where it is unknown"),
        (HEAD + "adapters:\n  - {digest: x}\n", "m.yaml:4", "adapters.0.name: is required", None),
        (HEAD + "adapters:\n  - {name: a, digest: x}\n", "m.yaml:5",
         "adapters.0.digest: not a digest: 'blake3:' or 'sha256:' and 64 hex digits", None),
        (HEAD + f"weights: {{checkpoint: {{digest: '{'B' * 5000}'}}}}\n", "m.yaml:4",
         "weights.checkpoint.digest: not a digest", None),
        (HEAD + "parallelism: {tensor: 0}\n", "m.yaml:4",
         "parallelism.tensor: Input should be greater than or equal to 1", None),
        (HEAD + "parallelism: {tensor: 2.0}\n", "m.yaml:4",
         "parallelism.tensor: Input should be a valid integer", None),
        (HEAD + "parallelism: {tensor: true}\n", "m.yaml:4",
         "parallelism.tensor: Input should be a valid integer", None),
        (HEAD + "precision: {kv_cache: Auto}\n", "m.yaml:4",
         "precision.kv_cache: 'auto' says nothing about what runs; write the resolved type, or leave it out", None),
        (HEAD + "precision: {kv_scales: 1.0}\n", "m.yaml:4",
         "precision.kv_scales: must be a string, but 1.0 is not one", 'quote it: "1.0"'),
        (HEAD + "request_features: [lora, magic]\n", "m.yaml:4", None, None),
        (HEAD + "request_features: lora\n", "m.yaml:4", "request_features: Input should be a valid list", None),
        (HEAD + "cache: {tenancy: {boundary: everybody, carried_by: null}}\n", "m.yaml:4", None, None),
        (HEAD + "cache: {tenancy: {boundary: tenant}}\n", "m.yaml:4", "cache.tenancy.carried_by: is required", None),
        (HEAD + "adapters: [{name: a}, {name: b}, {name: a}]\n", "m.yaml:4", "adapters: 'a' stands twice", None),
        (HEAD + "roles: [{name: a, set: {}}, {name: a, set: {}}]\n", "m.yaml:4", "roles: 'a' stands twice", None),
        (HEAD + "roles: [{name: p, set: {engine.size: 1}}]\n", "m.yaml:4",
         "roles: 'p' sets 'engine.size', which is not a manifest path", None),
        (HEAD + "roles: [{name: d, set: {}}, {name: p, set: {parallelism.tensor: '2'}}]\n", "m.yaml:4",
         "roles: 'p': parallelism.tensor: Input should be a valid integer", None),
        (HEAD + "roles: [{name: p, set: {adapters: [{name: a}, {name: a}]}}]\n", "m.yaml:4",
         "roles: 'p': adapters: 'a' stands twice", None),
        (HEAD + f"roles: [{', '.join(f'{{name: p{at}, set: {{}}}}' for at in range(33))}]\n", "m.yaml:4",
         "roles: List should have at most 32 items after validation, not 33", None),
        (HEAD + "provenance: {weight: computed}\n", "m.yaml:4",
         "provenance: 'weight' is not a manifest path", None),
        (HEAD + "provenance: {weights: guessed}\n", "m.yaml:4", None, None),
        ("model: {id: a}\n", "m.yaml", "not a kvgate manifest: 'schema' is nothing",
         "write 'schema: kvgate/manifest/v1'"),
        ("schema: kvgate/manifest/v2\nmodel: {id: a}\n", "m.yaml:1",
         "not a kvgate manifest: 'schema' is 'kvgate/manifest/v2'", "write 'schema: kvgate/manifest/v1'"),
        ("schema: kvgate/manifest/v1\n", "m.yaml", "model: is required", None),
        ("schema: kvgate/manifest/v1\nmodel: {}\n", "m.yaml:2", "model.id: is required", None),
        ("schema: kvgate/manifest/v1\nmodel: {id: ''}\n", "m.yaml:2", None, None),
        ("- a\n", "m.yaml", "not a manifest: the document is not a mapping",
         "a manifest starts with 'schema: kvgate/manifest/v1'"),
        ("just text\n", "m.yaml", "not a manifest: the document is not a mapping",
         "a manifest starts with 'schema: kvgate/manifest/v1'"),
        ('{"schema": "kvgate/manifest/v1", "model": {"id": 1}}', "m.yaml",
         "model.id: must be a string, but 1 is not one", 'quote it: "1"'),
    ],
    ids=lambda item: repr(item)[-40:] if item else "none",
)  # fmt: skip
def test_refused(text: str, where: str, message: str | None, hint: str | None) -> None:
    error = refused(text)
    assert error.where == where
    if message is not None:
        assert (error.message, error.hint) == (message, hint)


def test_keys_and_paths_that_never_end_are_cut() -> None:
    assert len(str(refused(HEAD + "x" * 100_000 + ": 1\n"))) < 500
    deep = b'{"schema":"kvgate/manifest/v1","model":{"id":"a","config":' + b'{"a":' * 400 + b"1" + b"}" * 402
    assert len(str(refused(deep))) < 500


def test_data_that_no_file_could_hold_is_refused_too() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    for config in ({1: 2}, {"a": {None: 1}}, {"a": {1, 2}}, {"a": b"x"}, {"a": "\ud800"}, {"\ud800": 1}, endless, deep):
        with pytest.raises(InputError):
            manifest_from({"schema": "kvgate/manifest/v1", "model": {"id": "a", "config": config}})


# ---- credentials ----

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@cache/0",
        f"redis://user:{SECRET}@cache/0",
        f"https://{SECRET}@host/org/model",
        f"//user:{SECRET}@host/x",
        f"redis://cache/0?password={SECRET}",
        f"https://host/x?a=b&TOKEN={SECRET}",
        f"https://host/x?api_key={SECRET}",
        f"s3://key:{SECRET}@bucket",
        f"redis://user:p@{SECRET}@cache/0",
    ],
)
@pytest.mark.parametrize(
    "path",
    ["cache.location", "model.id", "tokenizer.path", "cache.namespace", "chat_template.source", "model.config/path",
     "engine.args/kv-transfer-config", "release.owner", "tokenizer.options/x", "engine.speculative", "adapters",
     "roles", "cache.key_fields"],
)  # fmt: skip
def test_credentials_are_refused_wherever_they_stand_and_not_repeated(path: str, url: str) -> None:
    wrapped: dict[str, Any] = {
        "engine.speculative": {"model": {"deep": [url]}},
        "adapters": [{"name": "a", "path": url}],
        "roles": [{"name": "p", "set": {"cache.location": url}}],
        "cache.key_fields": [url],
    }
    with pytest.raises(InputError) as caught:
        clean({path: wrapped.get(path, url)})
    assert SECRET not in str(caught.value)
    assert "holds credentials" in caught.value.message
    assert caught.value.message.startswith(path.replace("/", "."))


def test_credentials_in_a_key_are_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        clean({"engine.args": {f"redis://u:{SECRET}@h/0": 1}})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "harmless",
    ["redis://cache-1:6379/0", "acme/support-8b@0e9e39f", "hf://acme/support-8b@main", "/models/a:b@c", "a@b",
     "git@host:a/b", "// note: see a@b", "http://[::1]:80/x", "s3://bucket/a?versionId=1", "file:///a/b@c"],
)  # fmt: skip
def test_what_only_looks_like_credentials(harmless: str) -> None:
    assert clean({"cache.location": harmless}).value("cache.location") == harmless


@pytest.mark.parametrize("text", ["//" + ":" * 200_000, "://" * 200_000, "//a" * 200_000, "?" * 500_000])
def test_the_search_for_credentials_takes_one_pass(text: str) -> None:
    assert clean({"cache.location": text}).value("cache.location") == text


# ---- what is known of a path ----


def test_absent_null_and_known() -> None:
    manifest = parsed(HEAD + "engine: {image: null, name: vllm}\ncache: {tenancy: null}\nchat_template: null\n")
    assert manifest.get("engine.name") == Known("vllm", "declared")
    assert manifest.get("engine.image") == Known(None, "declared")
    assert manifest.get("engine.version") == UNKNOWN
    assert manifest.get("precision.compute") == UNKNOWN
    assert manifest.get("cache.tenancy.boundary") == Known(None, "declared")
    assert manifest.get("chat_template.tree") == Known(None, "declared")
    assert (manifest.knows("engine.image"), manifest.knows("engine.version")) == (True, False)
    assert (manifest.value("engine.image"), manifest.value("engine.version")) == (None, None)


def test_the_line_of_a_path_as_near_as_the_document_tells() -> None:
    manifest = parsed(HEAD + "engine:\n  name: vllm\n")
    assert manifest.where("engine.name") == "m.yaml:5"
    assert manifest.where("engine.version") == "m.yaml:4"
    assert manifest.where("cache.location") == "m.yaml"
    assert manifest_from(manifest.data, "x").where("engine.name") == "x"


def test_the_longest_prefix_in_provenance_speaks() -> None:
    manifest = clean(
        {"provenance": {"weights": "computed", "weights.checkpoint": "observed",
                        "weights.checkpoint.digest": "declared", "model.config": "computed"}}
    )  # fmt: skip
    assert manifest.basis("weights.mutable") == "computed"
    assert manifest.basis("weights.checkpoint.kv_digest") == "observed"
    assert manifest.basis("weights.checkpoint.digest") == "declared"
    assert manifest.basis("model.config.rope_parameters") == "computed"
    assert manifest.basis("model.configuration") == "declared"
    assert manifest.basis("engine.name") == "declared"
    field = manifest.get("weights.checkpoint.layout")
    assert isinstance(field, Known)
    assert field.basis == "observed"


# ---- canonical form ----


def test_sets_and_keyed_lists_have_no_order() -> None:
    adapters = [{"name": "b", "digest": digest("1")}, {"name": "a", "digest": digest("2")}]
    one: dict[str, Any] = {
        "adapters": adapters,
        "request_features": ["lora", "cache_salt", "lora"],
        "cache.key_fields": ["b", "a"],
        "chat_template.reads": ["messages", "bos_token"],
        "roles": [{"name": "p", "set": {}}, {"name": "d", "set": {"parallelism.data": 2}}],
        "weights.served": [{"rank": 1, "digest": digest("1")}, {"rank": 0, "digest": digest("2")}],
    }
    other = {name: list(reversed(value)) for name, value in one.items()}
    assert clean(one).canonical == clean(other).canonical
    assert clean(one).value("request_features") == ["cache_salt", "lora"]
    assert clean(one).value("adapters") == {"a": {"digest": digest("2")}, "b": {"digest": digest("1")}}
    assert list(clean(one).value("weights.served")) == ["0", "1"]


def test_other_lists_keep_their_order() -> None:
    assert (
        clean({"model.config/layer_types": ["a", "b"]}).canonical
        != clean({"model.config/layer_types": ["b", "a"]}).canonical
    )


def test_one_number_in_two_spellings_is_one_number() -> None:
    left = parsed(HEAD + "  config: {a: 10000, b: 1.0e5, c: 1e-5, d: -0.0}\n")
    right = parsed(HEAD + "  config: {a: 10000.0, b: 100000, c: 0.00001, d: 0}\n")
    assert left.canonical == right.canonical
    assert left.sha256 != right.sha256
    for pair in ("1", "true"), ("9007199254740993", "9007199254740992"), ("1", "'1'"):
        one, two = (json.dumps(parsed(HEAD + f"  config: {{a: {text}}}\n").canonical) for text in pair)
        assert one != two


def test_yaml_json_and_data_are_the_same_manifest() -> None:
    written = yaml.safe_dump(CLEAN, sort_keys=False)
    from_yaml = parse_manifest(written.encode(), "m")
    from_json = parse_manifest(json.dumps(CLEAN).encode(), "m")
    assert from_yaml.canonical == from_json.canonical == clean().canonical
    assert from_json.lines == {}


def test_a_manifest_is_not_altered_by_being_read() -> None:
    given = data()
    before = copy.deepcopy(given)
    manifest = manifest_from(given)
    _ = manifest.canonical
    assert given == before
    assert manifest.data == before


# ---- the schema ----

FULL: dict[str, Any] = {
    "weights.hub": {"repo": "acme/a", "commit": "a" * 40, "files": {"x": "sha"}},
    "weights.served": [{"rank": 0, "digest": digest("1")}],
    "weights.checkpoint.map": {"file": "weights.jsonl", "sha256": "sha256:" + "1" * 64},
    "tokenizer.snapshot": {
        "file": "tokens.jsonl",
        "sha256": "sha256:" + "1" * 64,
        "corpus": "diagnostic@1",
        "renderer": {"transformers": "5", "tokenizers": "0", "vllm": "0", "sglang": "0"},
    },
    "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"},
}


@pytest.mark.parametrize("leaf", schema_leaves())
def test_every_leaf_is_owned_reachable_and_forgettable(leaf: str) -> None:
    owner = owner_of(leaf)
    assert owner is not None
    assert owner.owns(leaf)
    manifest = clean(FULL)
    assert manifest.knows(leaf)
    required = {"schema", "model.id", "model.config_class.name", "model.config_class.transformers",
                "weights.checkpoint.digest", "weights.checkpoint.map.file", "weights.checkpoint.map.sha256",
                "weights.hub.repo", "weights.hub.commit", "tokenizer.vocabulary.size", "tokenizer.vocabulary.digest",
                "tokenizer.snapshot.file", "tokenizer.snapshot.sha256", "tokenizer.snapshot.corpus",
                "chat_template.digest", "cache.tenancy.boundary", "cache.tenancy.carried_by"}  # fmt: skip
    if leaf in required:
        with pytest.raises(InputError, match=r"is required|'schema' is nothing"):
            clean({**FULL, leaf: FORGET})
    else:
        assert not clean({**FULL, leaf: FORGET}).knows(leaf)


def test_what_may_be_null_is_what_a_dimension_can_compare() -> None:
    """Identity that must be known to be something is not nullable: a null engine would equal a null engine."""
    nullable = []
    for leaf in schema_leaves():
        try:
            clean({**FULL, leaf: None})
        except InputError:
            continue
        nullable.append(leaf)
    assert not {"engine.name", "engine.version", "precision.compute", "precision.kv_cache", "parallelism.tensor",
                "adapters", "request_features", "weights.mutable", "model.config", "tokenizer.effective",
                "tokenizer.options", "tokenizer.special_tokens", "chat_template.digest", "chat_template.tree",
                "weights.checkpoint.digest"} & set(nullable)  # fmt: skip
    assert {"cache.connector", "cache.namespace", "engine.image", "model.code", "precision.kv_scales"} <= set(nullable)


def test_the_published_schema_takes_what_the_parser_takes() -> None:
    published = ManifestModel.model_json_schema(by_alias=True)
    Draft202012Validator.check_schema(published)
    validator = Draft202012Validator(published)
    taken: list[dict[str, Any]] = [{}, FULL, {"model.code": None, "adapters": []}]
    for changes in taken:
        assert list(validator.iter_errors(data(changes))) == []
    for wrong in ({"model.pinned": 1}, {"precision.kv_scales": "x"}, {"parallelism.tensor": 0}, {"engine.name": None}):
        assert list(validator.iter_errors(data(wrong))) != []
        with pytest.raises(InputError):
            clean(wrong)


def test_identity_names_manifest_paths_of_its_dimension() -> None:
    for one in dimensions():
        assert all(one.owns(path) or path == "tokenizer.special_tokens" for path in one.identity)


@settings(max_examples=200, deadline=2000)
@given(
    st.sampled_from(schema_leaves()),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_any_value_at_any_leaf_is_taken_or_refused(leaf: str, value: Any) -> None:
    try:
        manifest = clean({**FULL, leaf: value})
    except InputError:
        return
    assert manifest.knows(leaf)
    assert json.dumps(manifest.canonical, allow_nan=False)
