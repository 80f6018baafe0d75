"""LMCache inside an engine: the names foretold are those that its own code makes, and those that it really stores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgate.stores.keys import lmcache
from kvgate.stores.keys.stored import Request
from kvgate.stores.scanning.entries import Entry
from kvgate.stores.scanning.inventory import take_inventory
from kvgate.stores.scanning.locate import open_store
from tests.rules.clean import clean

from .install import environment, installed
from .servers import SECONDS, redis_server

CHUNK = 32
IDS = [(7 * number + 3) % 1200 for number in range(100)]
SEED = "7"
PLAIN: dict[str, Any] = {
    "store": None,
    "model": "acme/tiny",
    "ranks": 1,
    "dtype": "bfloat16",
    "algorithm": "builtin",
    "seed": SEED,
    "tags": {},
    "chunk": CHUNK,
    "token_ids": IDS,
}
CASES: dict[str, dict[str, Any]] = {
    "builtin": {},
    "another prompt": {"token_ids": IDS[1:]},
    "ranks": {"ranks": 3},
    "half": {"dtype": "float16"},
    "eight bits": {"dtype": "uint8"},
    "tagged": {"tags": {"ns": "kvg1-x"}},
    "chunks": {"chunk": 16},
    "CBOR, seeded": {"algorithm": "sha256_cbor"},
    "CBOR": {"algorithm": "sha256_cbor", "seed": None},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, list[str]], dict[str, str]]]:
    """Yield the keys that LMCache makes of each case, and the places where it stored the plain one."""
    work = tmp_path_factory.mktemp("lmcache")
    with redis_server(work) as url:
        stores = {"redis": url, "files": f"fs://localhost:0{work}/kv"}
        cases = {**CASES, **{name: {"store": store, "tags": {"ns": "kvg1-y"}} for name, store in stores.items()}}
        ordered = sorted(cases, key=lambda name: cases[name].get("seed", SEED) is None)
        ran = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "programs" / "lmcache_keys.py")],
            input=json.dumps([{**PLAIN, **cases[name]} for name in ordered]).encode(),
            env={**environment(installed("lmcache"), installed("vllm")), "PYTHONHASHSEED": SEED},
            cwd=work,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()[-4000:]
        yield dict(zip(ordered, json.loads(ran.stdout), strict=True)), stores


def predicted(case: dict[str, Any], location: str = "resp://cache-1:6379") -> tuple[str, ...] | None:
    algorithm = case["algorithm"]
    named = {} if algorithm == "builtin" else {"engine.args/LMCACHE_PRE_CACHING_HASH_ALGORITHM": algorithm}
    manifest = clean(
        {
            "model.id": case["model"],
            "parallelism.tensor": case["ranks"],
            "precision.kv_cache": {"uint8": "fp8_e4m3"}.get(case["dtype"], case["dtype"]),
            "engine.prefix_hash.seed": case["seed"],
            "cache.connector": "lmcache",
            "cache.location": location,
            "cache.chunk_size": case["chunk"],
            "cache.namespace": case["tags"].get("ns"),
            **named,
        }
    )
    found = lmcache.predict(manifest, Request(case["token_ids"]))
    assert (found.names is None) == bool(found.unknown), found
    return found.names


@pytest.mark.parametrize("name", CASES)
def test_the_names_foretold_are_those_that_lmcache_makes(
    made: tuple[dict[str, list[str]], dict[str, str]], name: str
) -> None:
    keys, case = made[0][name], {**PLAIN, **CASES[name]}
    chunks = len(case["token_ids"]) // case["chunk"]
    assert len(keys) == chunks * case["ranks"]
    by_chunk = [keys[rank * chunks + chunk] for chunk in range(chunks) for rank in range(case["ranks"])]
    assert list(predicted(case) or ()) == by_chunk
    for key in keys:
        read = lmcache.parse(key)
        assert read is not None
        assert (read.model, read.fields["world_size"]) == (case["model"], case["ranks"])


@pytest.mark.parametrize("store", ["redis", "files"])
def test_exactly_the_names_foretold_are_stored(made: tuple[dict[str, list[str]], dict[str, str]], store: str) -> None:
    location = made[1][store]
    there = list(open_store(location).entries())
    assert all(isinstance(one, Entry) for one in there)
    foretold = predicted({**PLAIN, "tags": {"ns": "kvg1-y"}}, location)
    assert sorted(one.name for one in there) == sorted(foretold or ())
    (row,) = take_inventory(open_store(location)).rows
    assert (row.connectors, row.model, row.namespace) == (("lmcache",), "acme/tiny", "ns%kvg1-y")
    assert row.layout == {"world_size": 1, "dtype": "bfloat16"}
    assert row.within == {"worker": {0}, **({"part": {"kv_bytes", "metadata"}} if store == "redis" else {})}
