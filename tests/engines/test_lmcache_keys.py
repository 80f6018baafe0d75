"""LMCache's own code: the names foretold are those that it makes, and those that it really stores inside an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.stores.keys import lmcache, lmcache_mp
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

SERVED: dict[str, Any] = {
    "model": "acme/tiny",
    "tensor": 1,
    "pipeline": 1,
    "latents": False,
    "servers": 1,
    "salt": "",
    "chunk": CHUNK,
    "token_ids": IDS,
}
SERVER_CASES: dict[str, dict[str, Any]] = {
    "two servers": {"tensor": 4, "servers": 2},
    "two servers, salted": {"tensor": 4, "servers": 2, "salt": "prod-a"},
    "latents on two servers": {"latents": True, "tensor": 4, "servers": 2},
}
"""What is named with several servers; with one, it is held against LMCache in ``test_key_code.py``."""

LATENTS = {
    "model.config/model_type": "deepseek_v3",
    "model.config/architectures": ["DeepseekV3ForCausalLM"],
    "model.config/kv_lora_rank": 512,
}


@dataclass(frozen=True)
class Made:
    """What LMCache's code made: the keys of each case, and the places where it stored the plain one."""

    inside: dict[str, list[str]]
    server: dict[str, list[str]]
    stores: dict[str, str]


@contextmanager
def running(work: Path) -> Iterator[Made]:
    with redis_server(work) as url:
        stores = {"redis": url, "files": f"fs://localhost:0{work}/kv"}
        cases = {**CASES, **{name: {"store": store, "tags": {"ns": "kvg1-y"}} for name, store in stores.items()}}
        ordered = sorted(cases, key=lambda name: cases[name].get("seed", SEED) is None)
        ran = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "programs" / "lmcache_keys.py")],
            input=json.dumps(
                {
                    "inside": [{**PLAIN, **cases[name]} for name in ordered],
                    "server": [{**SERVED, **case} for case in SERVER_CASES.values()],
                }
            ).encode(),
            env={**environment(installed("lmcache"), installed("vllm")), "PYTHONHASHSEED": SEED},
            cwd=work,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()[-4000:]
        names = json.loads(ran.stdout)
        server = dict(zip(SERVER_CASES, names["server"], strict=True))
        yield Made(dict(zip(ordered, names["inside"], strict=True)), server, stores)


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


def test_the_names_foretold_are_those_that_lmcache_makes_and_stores(tmp_path: Path) -> None:
    """One test, since one run of LMCache answers all of it."""
    with running(tmp_path) as made:
        for name, changes in CASES.items():
            inside_as_made(made.inside[name], {**PLAIN, **changes})
        for store, location in made.stores.items():
            stored_as_foretold(store, location)
        for name, changes in SERVER_CASES.items():
            served_as_made(made.server[name], {**SERVED, **changes})


def inside_as_made(keys: list[str], case: dict[str, Any]) -> None:
    chunks = len(case["token_ids"]) // case["chunk"]
    assert len(keys) == chunks * case["ranks"]
    by_chunk = [keys[rank * chunks + chunk] for chunk in range(chunks) for rank in range(case["ranks"])]
    assert list(predicted(case) or ()) == by_chunk, case
    for key in keys:
        read = lmcache.parse(key)
        assert read is not None
        assert (read.model, read.fields["world_size"]) == (case["model"], case["ranks"])


def stored_as_foretold(store: str, location: str) -> None:
    there = list(open_store(location).entries())
    assert all(isinstance(one, Entry) for one in there)
    foretold = predicted({**PLAIN, "tags": {"ns": "kvg1-y"}}, location)
    assert sorted(one.name for one in there) == sorted(foretold or ())
    (row,) = take_inventory(open_store(location)).rows
    assert (row.connectors, row.model, row.namespace) == (("lmcache",), "acme/tiny", "ns%kvg1-y")
    assert row.layout == {"world_size": 1, "dtype": "bfloat16"}
    assert row.within == {"worker": {0}, **({"part": {"kv_bytes", "metadata"}} if store == "redis" else {})}


def served_as_made(keys: list[str], case: dict[str, Any]) -> None:
    servers = ",".join(f"tcp://cache-{number}:5555" for number in range(case["servers"]))
    extra = {"kv_connector_extra_config": {"lmcache.mp.server_urls": servers}}
    manifest = clean(
        {
            "model.id": case["model"],
            "parallelism.tensor": case["tensor"],
            "parallelism.pipeline": case["pipeline"],
            "cache.location": "[/kv + redis://cache-1:6379]",
            "cache.chunk_size": case["chunk"],
            "cache.namespace": case["salt"] or None,
            "engine.args/kv-transfer-config": extra,
            **(LATENTS if case["latents"] else {}),
        }
    )
    found = lmcache_mp.predict(manifest, Request(case["token_ids"]))
    assert sorted(found.names or ()) == keys, found
    for key in keys:
        read = lmcache_mp.parse(key)
        assert read is not None
        assert (read.model, read.namespace) == (case["model"], case["salt"] or None)
