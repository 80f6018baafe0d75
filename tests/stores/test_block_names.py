"""The names of vLLM's tiers, SGLang's HiCache and AIBrix: taken apart, and foretold only where every part is known.

What they are made of is held against the engines' own code in ``tests/engines/test_key_code.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.errors import InputError
from kvgate.rules.manifest import schema_leaves
from kvgate.stores.keys import aibrix, sglang_hicache, vllm_blocks, vllm_mooncake, vllm_offload
from kvgate.stores.keys.cbor import cbor
from kvgate.stores.keys.farm import farm_128
from kvgate.stores.keys.schemes import SCHEMES, STORED, readings
from kvgate.stores.keys.stored import Media, Prediction, Request
from kvgate.stores.keys.xxh3 import xxh3_128
from tests.rules.clean import FORGET, clean
from tests.rules.connectors import base

H, SHORT = "0123456789abcdef" * 4, "0123456789abcdef" * 2
IDS = list(range(2, 602))
OURS = (
    aibrix.SCHEME,
    sglang_hicache.FILES,
    sglang_hicache.OBJECTS,
    sglang_hicache.PIECES,
    vllm_blocks.SCHEME,
    vllm_mooncake.SCHEME,
    vllm_offload.FILES,
    vllm_offload.OBJECTS,
)
CONNECTORS = [scheme.connector for scheme in OURS]
BLOCK = f"acme_support-8b_0123456789ab_r0/012/34_g1/{H}.bin"

# connector, model, namespace, and the rest of what a name says
READ: dict[str, tuple[str, str | None, str | None, dict[str, str | int]]] = {
    H: ("vllm-apc", None, None, {}),
    BLOCK: ("vllm-offload-fs", "acme_support-8b", None, {"settings": "0123456789ab", "rank": 0, "group": 1}),
    f"/{BLOCK}": ("vllm-offload-object", "acme_support-8b", None, {"settings": "0123456789ab", "rank": 0, "group": 1}),
    f"prod/a//{BLOCK}": (
        "vllm-offload-object",
        "acme_support-8b",
        "prod/a",
        {"settings": "0123456789ab", "rank": 0, "group": 1},
    ),
    f"support-8b@tp_rank:1@pcp0@dcp0@pp_rank:2@group:0@{H}": (
        "vllm-mooncake",
        "support-8b",
        None,
        {"tp_rank": 1, "pcp": 0, "dcp": 0, "pp_rank": 2, "group": 0},
    ),
    f"prod@a@support-8b@store_tp:8@store_pp:1@store_format:x@tp_rank:1@pcp0@dcp0@pp_rank:0@group:0@{SHORT}": (
        "vllm-mooncake",
        "support-8b",
        "prod@a",
        {"tp_rank": 1, "pcp": 0, "dcp": 0, "pp_rank": 0, "group": 0, "format": "store_tp:8@store_pp:1@store_format:x"},
    ),
    f"{H}_acme-support_8b_1_4.bin": ("sglang-hicache-file", "acme-support_8b", None, {"tp_rank": 1, "tp_size": 4}),
    f"{H}_support_1_4_2_0.bin": (
        "sglang-hicache-file",
        "support",
        None,
        {"tp_rank": 1, "tp_size": 4, "pp_size": 2, "pp_rank": 0},
    ),
    f"{H}_support_2_0.bin": ("sglang-hicache-file", "support", None, {"pp_size": 2, "pp_rank": 0}),
    f"{H}_support.bin": ("sglang-hicache-file", "support", None, {}),
    f"{H}.mamba_support_0_2_cp1_2.bin": (
        "sglang-hicache-file",
        "support",
        None,
        {"tp_rank": 0, "tp_size": 2, "cp_rank": 1, "cp_size": 2, "pool": "mamba"},
    ),
    f"a1/{H}_support_0_2_k": ("sglang-hicache-nixl", "support", None, {"tp_rank": 0, "tp_size": 2, "half": "k"}),
    f"tag_support_{H}_1_0_v": ("sglang-hicache-mooncake", None, "tag_support", {"rank": "1_0", "half": "v"}),
    f"support_{H}__k": ("sglang-hicache-mooncake", None, "support", {"half": "k"}),
    f"prod_h0_3_l0_31_lcnd16roc/01/23/{SHORT}": (
        "aibrix",
        None,
        "prod",
        {"first_head": 0, "last_head": 3, "first_layer": 0, "last_layer": 31, "tokens": 16}
        | {"layout": "lcnd", "builder": "ro", "packing": "c"},
    ),
    f"{SHORT}a_h1_b_h4_7_l0_31_ncld32simex": (
        "aibrix",
        None,
        "a_h1_b",
        {"first_head": 4, "last_head": 7, "first_layer": 0, "last_layer": 31, "tokens": 32}
        | {"layout": "ncld", "builder": "sim", "packing": "ex"},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_name_is_taken_apart(name: str) -> None:
    connector, model, namespace, fields = READ[name]
    (key,) = readings(name, connector)
    assert (key.model, key.namespace, key.fields) == (model, namespace, fields)
    assert key.hash in (H, SHORT)
    assert readings(name) == ((key,) if connector in STORED else ())


@pytest.mark.parametrize(
    "name",
    [
        "",
        H[1:],
        H.upper(),
        BLOCK.replace("/012/", "/013/"),  # not where its hash puts it
        BLOCK.replace("/34_", "/35_"),
        BLOCK.replace("_r0", ""),
        f"{BLOCK}.tmp",
        f"a/{BLOCK}",
        "acme_support-8b_0123456789ab/config.json",
        f"acme/support-8b@tp_rank:1@pcp0@dcp0@pp_rank:2@group:0@{H}",
        f"support-8b@tp_rank:1@pcp0@dcp0@pp_rank:2@{H}",
        f"{H}_support_1_4",  # a file has an end, and a piece a folder
        f"{H}_.bin",
        f"{H}__k",
        f"{H}_a/b_0_1.bin",
        f"xyz/{H}_support_0_2_k",
        f"support_{H}_0_x",
        f"prod_h0_3_l0_31_lcnd16roc/01/24/{SHORT}",
        f"prod_h0_3_l0_31_lcnd16/01/23/{SHORT}",
        f"{SHORT}_h0_3_l0_31_lcnd16roc",
    ],
)
def test_a_name_of_another_form_is_not_guessed_at(name: str) -> None:
    found = [scheme.connector for scheme in OURS if scheme.parse(name) is not None]
    assert found == (["sglang-hicache-nixl"] if name == f"{H}_support_1_4" else [])


# ---- what is foretold ----


def deployed(connector: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    own = {**base(connector), "cache.location": "/kv", **({} if connector == "aibrix" else {"cache.chunk_size": None})}
    return {**own, **(changes or {})}


def foretell(connector: str, changes: dict[str, Any] | None = None, **carried: Any) -> Prediction:
    return SCHEMES[connector].predict(clean(deployed(connector, changes)), Request(IDS, **carried))


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_is_foretold_reads_as_what_it_was_made_of(connector: str) -> None:
    names = foretell(connector).names
    assert names
    assert len(names) == len(set(names))
    for name in names:
        (key,) = readings(name, connector)
        model = SCHEMES[connector].model(clean(deployed(connector)))
        assert key.model in ({None} if connector == "sglang-hicache-mooncake" else {model})


def _forgetting(connector: str) -> Iterator[tuple[str, Prediction]]:
    for path in schema_leaves():
        with suppress(InputError):  # a manifest must have it, or its section
            yield path, foretell(connector, {path: FORGET})


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_name_is_foretold_where_every_part_is_known_and_nowhere_else(connector: str) -> None:
    whole = foretell(connector)
    short = set()
    for path, found in _forgetting(connector):
        assert (found.names is None) == bool(found.unknown)
        assert found.names in (None, whole.names)
        short |= {path} if found.names is None else set()
    assert short == {*NEEDED[connector].split(), "engine.name", "engine.version", "cache.connector"} - (
        {"engine.version"} if connector == "aibrix" else set()
    )


_BLOCKS = (
    "model.config engine.block_size engine.speculative engine.prefix_hash.algorithm engine.prefix_hash.seed "
    "parallelism.decode_context"
)
_FILED = (
    f"{_BLOCKS} engine.args precision.kv_cache cache.chunk_size parallelism.tensor parallelism.pipeline "
    "parallelism.prefill_context"
)
_PAGES = (
    "model.config model.served_name engine.block_size engine.speculative engine.args parallelism.tensor "
    "parallelism.pipeline parallelism.data parallelism.decode_context parallelism.prefill_context"
)
NEEDED = {
    "vllm-apc": _BLOCKS,
    "vllm-offload-fs": _FILED,
    "vllm-offload-object": f"{_FILED} cache.namespace",
    "vllm-mooncake": f"{_BLOCKS} engine.args cache.namespace parallelism.tensor parallelism.pipeline "
    "parallelism.prefill_context",
    "sglang-hicache-file": _PAGES,
    "sglang-hicache-nixl": f"{_PAGES} engine.kv_layout cache.location",
    "sglang-hicache-mooncake": f"{_PAGES} cache.namespace",
    "aibrix": "model.config engine.args engine.block_size cache.chunk_size cache.location cache.namespace "
    "cache.version parallelism.tensor parallelism.pipeline",
}

HASH, EXTRA = "engine.prefix_hash", "engine.args/kv-transfer-config"
WINDOW = {"model.config/sliding_window": 4096}
UNFORETOLD: list[tuple[str, dict[str, Any], str]] = [
    ("vllm-apc", {f"{HASH}.algorithm": "xxhash", f"{HASH}.seed": None}, "draws its own"),
    ("vllm-apc", {f"{HASH}.algorithm": "md5"}, "vLLM has no 'md5'"),
    ("vllm-apc", {"engine.block_size": None}, "engine.block_size"),
    ("vllm-apc", {"engine.version": "0.30.0"}, "speaks for"),
    ("vllm-apc", {"cache.connector": "vllm-mooncake"}, "it is vllm-mooncake"),
    ("vllm-offload-fs", WINDOW, "layers"),
    ("vllm-offload-fs", {"model.config/model_type": "gemma2"}, "layers"),
    ("vllm-offload-fs", {EXTRA: {"kv_connector_extra_config": {"canonical_layout": True}}}, "rank layouts"),
    ("vllm-offload-fs", {"engine.args/enable-dbo": True}, "rank layouts"),
    ("vllm-offload-fs", {"engine.speculative": {"method": "eagle"}}, "draft"),
    ("vllm-offload-fs", {"parallelism.pipeline": 3}, "first stage"),
    ("vllm-offload-fs", {"cache.chunk_size": 24}, "no multiple"),
    ("vllm-mooncake", {EXTRA: {"kv_connector_extra_config": {"store_tp_size": 8}}}, "several tensor sizes"),
    ("sglang-hicache-file", {"engine.speculative": {"method": "eagle"}}, "EAGLE"),
    ("sglang-hicache-file", {"engine.args/enable-dp-attention": True}, "attention is shared out"),
    ("sglang-hicache-file", {"parallelism.decode_context": 2}, "context parallelism"),
    ("sglang-hicache-nixl", {"cache.location": "/kv,/more"}, "several folders"),
    ("sglang-hicache-mooncake", {"engine.args/hicache-storage-backend-extra-config": {"tp_lcm_size": 8}}, "settings"),
    ("aibrix", {"engine.args/AIBRIX_KV_CACHE_OL_L2_CACHE_KEY_BUILDER": "SIMPLE_HASH"}, "variables"),
    ("aibrix", {"parallelism.pipeline": 3}, "layers a stage"),
]


@pytest.mark.parametrize(("connector", "changes", "words"), UNFORETOLD)
def test_what_is_not_known_is_said_and_nothing_is_foretold(connector: str, changes: dict[str, Any], words: str) -> None:
    found = foretell(connector, changes)
    assert found.names is None
    assert any(words in sentence for sentence in found.unknown)


CARRIED: list[tuple[str, dict[str, Any]]] = [
    *((name, {"adapter": "billing"}) for name in CONNECTORS if name != "aibrix"),
    *((name, {"media": (Media("a", 0, 9),)}) for name in CONNECTORS if not name.startswith("vllm-")),
    *((name, {"embeds": b"0" * 2400}) for name in CONNECTORS if not name.startswith("vllm-")),
]


@pytest.mark.parametrize(("connector", "carried"), CARRIED)
def test_what_requests_carry_is_not_passed_over(connector: str, carried: dict[str, Any]) -> None:
    """An adapter without a path, and media and embeddings where they were not read."""
    assert foretell(connector, {"adapters": [{"name": "billing"}]}, **carried).names is None


def test_the_spelling_of_a_format_is_the_launch_lines() -> None:
    names = {foretell("vllm-offload-fs", {"precision.kv_cache": name}).names for name in ("fp8", "fp8_e4m3")}
    assert len(names) == 2
    assert foretell("vllm-offload-fs", {"precision.kv_cache": "fp8"}).assumed
    assert not foretell("vllm-offload-fs").assumed


def test_releases_that_file_objects_otherwise() -> None:
    chunks = {"cache.chunk_size": 32}
    of = {version: foretell("vllm-offload-object", {**chunks, "engine.version": version}) for version in READ_OF_VLLM}
    assert len({found.names for found in of.values()}) == 2
    files = {version: foretell("vllm-offload-fs", {**chunks, "engine.version": version}) for version in READ_OF_VLLM}
    assert len({found.names for found in files.values()}) == 1


READ_OF_VLLM = ("0.32.0", "0.33.0")


# ---- the hashes ----


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "99aa06d3014798d86001c324468d497f"),
        (3, "06b05ab6733a618578af5f94892f3950"),
    ],
)
def test_xxh3_gives_what_its_specification_says(size: int, expected: str) -> None:
    assert xxh3_128(b"abc"[:size]).hex() == expected


@given(
    st.recursive(st.none() | st.integers(-(2**64), 2**64 - 1) | st.binary() | st.text(), lambda of: st.tuples(of, of))
)
def test_every_value_has_an_encoding_of_its_own(value: object) -> None:
    encoded = cbor(value)
    assert cbor((value, value)) == b"\x82" + encoded + encoded


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (23, "17"),
        (24, "1818"),
        (1000000, "1a000f4240"),
        (18446744073709551615, "1bffffffffffffffff"),
        (-1, "20"),
        (-1000, "3903e7"),
        (b"\x01\x02", "420102"),
        ("ü", "62c3bc"),
        ((1, (2, None)), "82018202f6"),
    ],
)
def test_the_encoding_is_the_standards(value: object, encoded: str) -> None:
    """Examples of RFC 8949, appendix A."""
    assert cbor(value).hex() == encoded


@pytest.mark.parametrize("value", [True, 1.5, [1], {}, 2**64])
def test_a_value_of_another_kind_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        cbor(value)


def test_farmhash_of_every_length_is_another_number() -> None:
    assert len({farm_128(bytes(size)) for size in range(400)}) == 400
