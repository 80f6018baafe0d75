"""``--set``: what is typed becomes what the schema asks for."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.cli.settings import parse_settings
from kvgate.rules.errors import UsageError
from kvgate.rules.manifest import manifest_from, schema_leaves

GIVEN: dict[str, Any] = {
    "engine.version=0.33.0": "0.33.0",
    "engine.version=1": "1",
    "model.revision=010": "010",
    "model.revision=null": None,
    'model.revision="null"': "null",
    "engine.name=null": "null",  # cannot be unset: the manifest refuses nothing here, a word is a word
    "model.id=on": "on",
    "cache.location=redis://cache-1:6379/0?x=y": "redis://cache-1:6379/0?x=y",
    "engine.prefix_hash.seed=0": "0",
    "engine.block_size=16": 16,
    "engine.block_size=null": None,
    "engine.prefix_hash=null": None,
    "weights.mutable=false": False,
    "cache.epoch=14": 14,
    "precision.kv_scales=dynamic": "dynamic",
    "precision.kv_scales=null": None,
    "request_features=[lora, cache_salt]": ["lora", "cache_salt"],
    "request_features=[]": [],
    "adapters=[]": [],
    "roles=null": None,
    "inputs=null": None,
    "inputs.tool_schemas.billing=sha256:00": "sha256:00",
    "cache.tenancy={boundary: tenant, carried_by: cache_salt}": {"boundary": "tenant", "carried_by": "cache_salt"},
    'cache.tenancy={"boundary": "shared", "carried_by": null}': {"boundary": "shared", "carried_by": None},
    "cache.tenancy.carried_by=null": None,
    "cache.key_fields=[token_ids, namespace]": ["token_ids", "namespace"],
    "engine.args.swap-space=4": 4,
    "engine.args.flag=true": True,
    "engine.args.name=a b": "a b",
    "model.config.rope_theta=1e6": 1e6,
    "model.config.rope_parameters.rope_type=yarn": "yarn",
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_value_gets_the_type_of_its_field(given: str) -> None:
    (value,) = parse_settings([given]).values()
    assert value == GIVEN[given]
    assert type(value) is type(GIVEN[given])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("engine.version", "has no '='"),
        ("engine.verson=1", "did you mean engine.version?"),
        ("=1", "is not a manifest path"),
        ("engine..version=1", "is not a manifest path"),
        ("schema=kvgate/manifest/v2", "is not a manifest path"),
        ("provenance.weights=computed", "is not a manifest path"),
        ("weights.checkpoint.digest.x=1", "is not a manifest path"),
        ("engine.block_size=", "is set to nothing"),
        ("engine.block_size=010", "read differently"),
        ("adapters=[", "not valid YAML"),
        ("engine.args.x=*a", "anchors and aliases"),
        ("engine.block_size=1\nengine.name: x", "more than one value"),
    ],
)
def test_what_cannot_be_set_is_said(given: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_settings([given])
    assert message in str(caught.value)


def test_a_path_is_set_once() -> None:
    with pytest.raises(UsageError, match="set twice"):
        parse_settings(["engine.version=1", "engine.version=2"])


def test_every_schema_leaf_can_be_set() -> None:
    for leaf in schema_leaves():
        if leaf.partition(".")[0] not in ("schema", "provenance"):
            assert leaf in parse_settings([f"{leaf}=null"])


def test_what_is_parsed_is_what_the_manifest_takes() -> None:
    parsed = parse_settings(["model.id=a", "model.revision=010", "model.quantization=null"])
    manifest = manifest_from(
        {
            "schema": "kvgate/manifest/v1",
            "model": {path.removeprefix("model."): value for path, value in parsed.items()},
        }
    )
    assert manifest.value("model.revision") == "010"
