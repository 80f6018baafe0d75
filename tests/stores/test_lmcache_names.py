"""LMCache's names and the example connector's: taken apart, and foretold only where every part is known.

What they are made of is held against LMCache and vLLM themselves in ``tests/engines``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.rules.manifest import schema_leaves
from kvgate.stores.keys import lmcache, lmcache_mp, vllm_example
from kvgate.stores.keys.schemes import LONGEST, SCHEMES, readings
from kvgate.stores.keys.stored import Media, Request, StoredKey
from tests.rules.clean import FORGET, clean

HASH = "5" * 64
IDS = list(range(600))
BASES: dict[str, dict[str, Any]] = {
    "lmcache": {"cache.connector": "lmcache"},
    "lmcache-mp": {},
    "vllm-example": {"cache.connector": "vllm-example", "cache.version": None, "cache.location": "/kv"},
}

READ = {
    f"acme/support-8b@02010201@0@{HASH}": ("lmcache-mp", "acme/support-8b", None, 2, 1),
    f"acme/support-8b@02010201@0@{HASH}@tenant": ("lmcache-mp", "acme/support-8b", "tenant", 2, 1),
    f"prod@acme/support-8b@02010201@0@{HASH}": ("lmcache-mp", "acme/support-8b", "prod", 2, 1),
    f"prod@acme/support-8b@02010201@0@{HASH}@tenant": ("lmcache-mp", "acme/support-8b", "prod@tenant", 2, 1),
    f"acme-SEP-support-8b@0x02010201@a@{HASH}.data": ("lmcache-mp", "acme/support-8b", None, 2, 1),
    f"-SEP-models-SEP-x@0x01000100@0@{HASH}@t.data.data": ("lmcache-mp", "/models/x", "t.data", 1, 0),
    f"acme/support-8b@01000100@0@{'5' * 16}": ("lmcache-mp", "acme/support-8b", None, 1, 0),
    f"acme/8b##lmcache-dcp-layout-v1-d2-interleave16@02010201@0@{HASH}": ("lmcache-mp", "acme/8b", None, 2, 1),
    f"acme/8b@02010201@0@{HASH}@t.data": ("lmcache-mp", "acme/8b", "t.data", 2, 1),
    "acme/support-8b@2@1@-4cfc@bfloat16": ("lmcache", "acme/support-8b", None, 2, 1),
    "acme/support-8b@2@1@4cfc@half@3": ("lmcache", "acme/support-8b", None, 2, 1),
    "acme/support-8b@2@1@4cfc@uint8@3@ns%a@b%kv%2": ("lmcache", "acme/support-8b", "ns%a@b%kv%2", 2, 1),
    "acme/support-8b@2@1@4cfc@bfloat16kv_bytes": ("lmcache", "acme/support-8b", None, 2, 1),
    "acme/support-8b@2@1@4cfc@bfloat16@ns%ametadata": ("lmcache", "acme/support-8b", "ns%a", 2, 1),
    "acme-SEP-support-8b@2@1@4cfc@bfloat16.data": ("lmcache", "acme/support-8b", None, 2, 1),
    "acme-support-8b@2@1@4cfc@bfloat16.pt": ("lmcache", None, None, 2, 1),
}


@pytest.mark.parametrize("name", READ)
def test_a_name_is_taken_apart(name: str) -> None:
    (key,) = readings(name)
    fields = key.fields
    assert (key.connector, key.model, key.namespace, fields["world_size"], fields["worker"]) == READ[name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "acme/support-8b",
        f"@02010201@0@{HASH}",
        f"acme@2010201@0@{HASH}",
        f"acme@02010201@00@{HASH}",
        f"acme@02010201@0@{HASH[1:]}",
        f"acme@02010201@0@{HASH.replace('5', 'A')}",
        f"acme@02010201@0@{HASH}@",
        f"acme@02010201@0@{HASH}@a/b",
        f"acme@02010201@0@{HASH}@{'s' * 129}",
        f"acme@02010201@0@{HASH}.data",  # of a file, without its mark
        f"acme@0x02010201@0@{HASH}",  # of a file, without its end
        f"tmp/acme@0x02010201@0@{HASH}.data",  # not where LMCache puts it
        f"prod@acme@0x02010201@0@{HASH}.data",  # files have no prefix
        f"a@02010201@0@{HASH}@02010201@0@{HASH}",  # reads in two ways
        "acme@2@1@4cfc@float17",
        "acme@2@1@0x4cfc@half",
        "acme@2@1@4cfc@half@tag",
        "acme@2@1@4cfc@half@%v",
        "a@b@2@1@4cfc@half",
        f"{'5' * 32}/../layer.safetensors",
        f"{'5' * 32}/.safetensors",
        f"{'5' * 31}/layer.safetensors",
        f"{'5' * 32}/layer.safetensors.tmp",
    ],
)
def test_a_name_of_another_form_is_not_guessed_at(name: str) -> None:
    assert [one(name) for one in (lmcache.parse, lmcache_mp.parse, vllm_example.parse)] == [None] * 3


@given(st.text(st.characters(), max_size=200) | st.from_regex(r"[a@/.0-9-]{0,80}(@0@)?[0-9a-f@%]{0,80}(\.data)?\n?"))
def test_no_name_is_too_odd_to_be_looked_at(name: str) -> None:
    for scheme in SCHEMES.values():
        assert scheme.parse(name) is None or isinstance(scheme.parse(name), StoredKey)


@pytest.mark.parametrize("connector", BASES)
def test_what_is_foretold_reads_as_what_it_was_made_of(connector: str) -> None:
    manifest = clean(BASES[connector])
    names = SCHEMES[connector].predict(manifest, Request(IDS)).names
    assert names
    assert len(names) == len(set(names))
    for name in names:
        (key,) = readings(name)
        assert (key.connector, key.model) == (connector, SCHEMES[connector].model(manifest))
        if connector != "vllm-example":
            assert key.fields["world_size"] == 2
            assert key.namespace is not None
            assert key.namespace.endswith("prod-a")


@pytest.mark.parametrize("connector", BASES)
def test_a_field_that_is_forgotten_never_makes_another_name(connector: str) -> None:
    known = SCHEMES[connector].predict(clean(BASES[connector]), Request(IDS))
    without = {}
    for path in schema_leaves():
        with suppress(InputError):  # what a manifest must have, or has no such section for
            without[path] = SCHEMES[connector].predict(clean({**BASES[connector], path: FORGET}), Request(IDS))
    assert len(without) >= 60
    for path, found in without.items():
        assert (found.names is None) == bool(found.unknown), path
        assert found.names in (None, known.names), path


NEEDED = {
    "lmcache": "cache.chunk_size cache.location cache.namespace cache.version engine.args engine.prefix_hash.seed "
    "engine.name model.config parallelism.tensor parallelism.pipeline precision.kv_cache",
    "lmcache-mp": "cache.chunk_size cache.location cache.namespace cache.version engine.args engine.name "
    "engine.speculative model.config parallelism.tensor parallelism.pipeline parallelism.decode_context",
    "vllm-example": "engine.block_size engine.name engine.version engine.speculative model.config",
}


@pytest.mark.parametrize(("connector", "path"), [(name, path) for name in NEEDED for path in NEEDED[name].split()])
def test_what_a_name_depends_on_must_be_known(connector: str, path: str) -> None:
    found = SCHEMES[connector].predict(clean({**BASES[connector], path: FORGET}), Request(IDS))
    assert found.names is None
    first = path.split(".")[0]
    assert any(sentence.startswith((first, "cache.connector")) for sentence in found.unknown)


UNFORETOLD: dict[str, tuple[str, dict[str, Any], str]] = {
    "drawn by each process": ("lmcache", {"engine.prefix_hash.seed": None}, "PYTHONHASHSEED"),
    "drawn on purpose": ("lmcache", {"engine.prefix_hash.seed": "random"}, "PYTHONHASHSEED"),
    "another hash": ("lmcache", {"engine.args/LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256"}, "sha256"),
    "layer by layer": ("lmcache", {"engine.args/LMCACHE_USE_LAYERWISE": "True"}, "use_layerwise"),
    "a store without names": ("lmcache", {"cache.location": "lm://cache-1:65432"}, "lm://"),
    "an odd format": ("lmcache", {"precision.kv_cache": "int4"}, "int4"),
    "another version": ("lmcache", {"cache.version": "0.3.9"}, "0.3.9"),
    "a bucket": ("lmcache-mp", {"cache.location": "s3://bucket/kv"}, "s3://"),
    "the server's hash": ("lmcache-mp", {"engine.args/lmcache-server": {"hash-algorithm": "builtin"}}, "builtin"),
    "context parallelism": ("lmcache-mp", {"parallelism.decode_context": 2}, "decode_context"),
    "a refused salt": ("lmcache-mp", {"cache.namespace": "a/b"}, "refuses"),
    "a refused name": ("lmcache-mp", {"model.id": "acme@8b"}, "refuses"),
    "tenants": ("lmcache-mp", {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}, "salt"),
    "tagged tenants": (
        "lmcache",
        {"cache.tenancy": {"boundary": "tenant", "carried_by": "lmcache.tag.tenant"}},
        "lmcache.tag.tenant",
    ),
    "a draft": ("lmcache-mp", {"engine.speculative": {"method": "eagle"}}, "draft"),
    "unknown layers": ("vllm-example", {"model.config/model_type": "gpt_neox"}, "layers"),
}


@pytest.mark.parametrize("name", UNFORETOLD)
def test_what_is_not_known_is_said_and_nothing_is_foretold(name: str) -> None:
    connector, changes, words = UNFORETOLD[name]
    found = SCHEMES[connector].predict(clean({**BASES[connector], **changes}), Request(IDS))
    assert found.names is None
    assert any(words in sentence for sentence in found.unknown)


@pytest.mark.parametrize("connector", ["lmcache", "lmcache-mp"])
@pytest.mark.parametrize("request_", [Request(IDS, media=(Media("a", 0, 9),)), Request(IDS, embeds=b"")], ids=str)
def test_what_lmcache_makes_of_media_is_not_foretold(connector: str, request_: Request) -> None:
    assert SCHEMES[connector].predict(clean(BASES[connector]), request_).names is None


def test_chunks_ranks_and_tiers_stand_in_order() -> None:
    tiers = {"cache.location": "[/kv + redis://cache-1:6379]", "cache.namespace": None, "parallelism.tensor": 2}
    names = lmcache_mp.predict(clean(tiers), Request(IDS)).names
    assert names is not None
    assert [re.sub(r"@[0-9a-f]{64}", "", name) for name in names] == [
        "acme-SEP-support-8b@0x02000200@0.data",
        "acme/support-8b@02000200@0",
        "acme-SEP-support-8b@0x02010201@0.data",
        "acme/support-8b@02010201@0",
    ] * 2


def test_a_salt_of_the_request_stands_in_the_place_of_the_namespace() -> None:
    tenants = clean({"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}})
    salted = lmcache_mp.predict(tenants, Request(IDS, salt="prod-a.tenant"))
    assert salted.names is not None
    assert all(name.endswith("@prod-a.tenant") for name in salted.names)


def test_a_chain_of_hashes_holds_everything_before_it() -> None:
    for connector, base in BASES.items():
        long = SCHEMES[connector].predict(clean(base), Request(IDS)).names or ()
        other = SCHEMES[connector].predict(clean(base), Request([9, *IDS[1:]])).names or ()
        assert not set(long) & set(other)
        if connector != "vllm-example":
            assert SCHEMES[connector].predict(clean(base), Request(IDS[:256])).names == long[: len(long) // 2]
            assert SCHEMES[connector].predict(clean(base), Request(IDS[:255])).names == ()


def test_latents_that_all_ranks_share_are_stored_once() -> None:
    latents = {
        "model.config/model_type": "deepseek_v3",
        "model.config/architectures": ["DeepseekV3ForCausalLM"],
        "model.config/kv_lora_rank": 512,
        "parallelism.tensor": 8,
    }
    staged = lmcache_mp.predict(clean({**latents, "parallelism.pipeline": 2}), Request(IDS[:256]))
    assert staged.names is not None
    assert [name.split("@")[1] for name in staged.names] == ["02000200", "02010201"]
    alone = lmcache.predict(clean({**latents, **BASES["lmcache"]}), Request(IDS[:256]))
    assert alone.names is not None
    assert [name.split("@")[1:3] for name in alone.names] == [["1", "0"]] * 2
    assert (
        lmcache.predict(clean({**latents, **BASES["lmcache"], "parallelism.pipeline": 2}), Request(IDS)).names is None
    )


def test_a_name_longer_than_any_path_is_not_looked_at() -> None:
    rest = f"@02010201@0@{HASH}"
    assert len(readings("a" * (LONGEST - len(rest)) + rest)) == 1
    assert readings("a" * (LONGEST - len(rest) + 1) + rest) == ()
