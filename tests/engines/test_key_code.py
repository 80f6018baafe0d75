"""The engines' own code names what they store: the names are the predicted ones, and profiles say what they tell apart.

Each engine is started once for all of its cases, so each has one test.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.rules.decide import Decision
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import Feature, cover
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Media, Request
from tests.engines.install import environment, installed
from tests.engines.key_settings import KEY_CODE, settings
from tests.rules.clean import clean, digest
from tests.rules.connectors import KEYS, OTHER, RUN, Changes, base
from tests.rules.deciding import decided

SCRIPTS = Path(__file__).parent / "key_code"
SECONDS = 900  # a hang guard

IDS = list(range(1000, 1070))
PLAIN = Request(IDS)
CARRIED: dict[Feature, tuple[Request, Request]] = {
    "lora": (replace(PLAIN, adapter="billing"), replace(PLAIN, adapter="legal")),
    "cache_salt": (replace(PLAIN, salt="one"), replace(PLAIN, salt="two")),
    "multimodal": (
        replace(PLAIN, media=(Media("one", 10, 12), Media("three", 30, 20))),
        replace(PLAIN, media=(Media("two", 10, 12),)),
    ),
    "prompt_embeds": tuple(
        Request([0] * 64, embeds=struct.pack("<128f", *[start + n for n in range(128)])) for start in (0.5, 1.5)
    ),  # type: ignore[dict-item]
}
ADAPTERS = [{"name": name, "path": f"/adapters/{name}", "digest": digest("9")} for name in ("billing", "legal")]

MLA: Changes = {
    "model.config/model_type": "deepseek_v3",
    "model.config/architectures": ["DeepseekV3ForCausalLM"],
    "model.config/kv_lora_rank": 512,
}
ALGORITHM, SEED = "engine.prefix_hash.algorithm", "engine.prefix_hash.seed"
OLDER_RUNNER: Changes = {"engine.args/VLLM_USE_V2_MODEL_RUNNER": "0"}
MANY_RANKS: Changes = {"parallelism.tensor": 16}
NEW: dict[str, Changes] = {
    **OTHER,
    "model.id": {"model.id": "other/support-9b"},
    "cache.chunk_size": {"cache.chunk_size": 64},
    "adapters": {"adapters": ADAPTERS},
}
TEXT = ("tokenizer", "tokenizer.renderer", "tokenizer.options", "chat_template")
# Where the same difference needs another deployment around it.
AROUND: dict[tuple[str, str], Changes] = {
    **{(name, "parallelism.context"): MANY_RANKS for name in KEY_CODE},
    **{(name, "parallelism.context"): MLA for name in KEY_CODE if name.startswith("sglang-")},
    **{(name, "model.served_name"): {"model.served_name": "support"} for name in KEY_CODE},
    ("aibrix", "cache.chunk_size"): {"cache.chunk_size": 16},
}
LAYOUTS = ({"engine.kv_layout": "page_first"}, {"engine.kv_layout": "page_first_direct"})

# Pairs whose names meet or do not although the values differ: connector, old, new, what differs, whether they meet.
MEETING: list[tuple[str, Changes, Changes, str, bool]] = [
    ("lmcache", {"parallelism.pipeline": 2}, {"parallelism.tensor": 4}, "parallelism.tensor", True),
    ("lmcache-mp", {"parallelism.pipeline": 2}, {"parallelism.tensor": 4}, "parallelism.tensor", True),
    ("lmcache", {"precision.kv_cache": "fp8_e4m3"}, {"precision.kv_cache": "fp8_e5m2"}, "precision.kv_cache", True),
    ("lmcache-mp", MLA, {**MLA, "parallelism.tensor": 4}, "parallelism.tensor", True),
    ("vllm-mooncake", {}, {"model.id": "other/support-8b"}, "model.id", True),
    ("vllm-offload-fs", {}, {"model.id": "acme_support-8b"}, "model.id", False),
    ("vllm-offload-fs", OLDER_RUNNER, {**OLDER_RUNNER, "parallelism.tensor": 4}, "parallelism.tensor", True),
    ("vllm-offload-object", OLDER_RUNNER, {**OLDER_RUNNER, "parallelism.tensor": 4}, "parallelism.tensor", True),
    ("vllm-offload-fs", OLDER_RUNNER, {**OLDER_RUNNER, "engine.kv_layout": "HND"}, "engine.kv_layout", True),
    ("vllm-apc", {}, {ALGORITHM: "sha256"}, "engine.prefix_hash", False),
    (
        "vllm-apc",
        {"engine.prefix_hash.seed": None},
        {"engine.prefix_hash.seed": "vllm-none-hash"},
        "engine.prefix_hash",
        True,
    ),
    ("vllm-apc", {ALGORITHM: "xxhash"}, {ALGORITHM: "xxhash_cbor"}, "engine.prefix_hash", False),
    ("sglang-hicache-file", {}, {"model.id": "acme-support-8b"}, "model.id", True),
    ("sglang-hicache-nixl", {"parallelism.pipeline": 2}, {"parallelism.pipeline": 4}, "parallelism.pipeline", True),
    ("sglang-hicache-mooncake", {"parallelism.pipeline": 2}, {"parallelism.pipeline": 4}, "parallelism.pipeline", True),
    ("sglang-hicache-file", MLA, {**MLA, "parallelism.tensor": 4}, "parallelism.tensor", True),
    ("aibrix", {"cache.chunk_size": 8}, {"cache.chunk_size": 64}, "cache.chunk_size", False),
    ("aibrix", {"parallelism.tensor": 8}, MANY_RANKS, "parallelism.tensor", True),
]
# The names differ here, and need not elsewhere: profiles do not rely on it.
ON_A_CONDITION = {
    ("vllm-apc", "parallelism.context"): "a hash covers a block of all ranks, which is another number of tokens",
    ("vllm-mooncake", "parallelism.context"): "the same; of the ranks a key holds no size",
    ("aibrix", "parallelism.pipeline"): "stages keep their range of layers where sizes do not divide their number",
}
NOT_FORETOLD = {
    (name, "parallelism.context")
    for name in KEY_CODE
    if name in SCHEMES and (name in ("lmcache-mp", "vllm-mooncake") or name.startswith("sglang-"))
}


@dataclass(frozen=True)
class Side:
    """A deployment, and the prompts whose entries are named."""

    manifest: Manifest
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Pair:
    """Two deployments in front of one connector, what differs, and whether names meet where that is written down."""

    connector: str
    name: str
    old: Side
    new: Side
    meet: bool | None = None


def pairs(connector: str) -> Iterator[Pair]:
    for name in sorted(RUN[connector]):
        around = AROUND.get((connector, name), {})
        old, new = LAYOUTS if connector.startswith("sglang") and name == "engine.kv_layout" else ({}, NEW[name])
        other = Request([one + 1 for one in IDS]) if name in TEXT or name.startswith("inputs.") else PLAIN
        yield Pair(connector, name, _side(connector, {**around, **old}), _side(connector, {**around, **new}, other))
    for where, old, new, name, meet in MEETING:
        if where == connector:
            yield Pair(connector, name, _side(connector, old), _side(connector, new), meet)


def _side(connector: str, changes: Changes, *requests: Request) -> Side:
    own: Changes = {**base(connector), "cache.location": "/kv"}
    if not connector.startswith("sglang"):
        own["engine.version"] = "0.32.0"
    if connector != "aibrix" and not connector.startswith("sglang"):
        own["cache.chunk_size"] = 32 if "offload" in connector or "lmcache" in connector else None
    if connector == "lmcache":  # Python's own hash is one and the same in a process, whatever its variables become
        own |= {
            "cache.location": "resp://cache-1:6379",
            "engine.args/LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor",
        }
    return Side(clean({**own, **changes}), requests or (PLAIN,))


def carrying(connector: str) -> Side:
    """A deployment whose requests carry what its connector's code takes."""
    taken: dict[str, list[Feature]] = {
        "vllm": [] if connector == "vllm-nixl" else list(CARRIED),
        "sglang": ["lora", "cache_salt"],
        "lmcache": ["cache_salt", "multimodal"],
        "aibrix": [],
    }
    requests = [one for feature in taken[connector.partition("-")[0]] for one in CARRIED[feature]]
    return _side(connector, {"adapters": ADAPTERS}, PLAIN, *requests)


def run(given: list[dict[str, Any]], folder: Path) -> list[list[list[str]]]:
    """Let the engine's code name the entries of each request of each deployment."""
    kept = environment(SCRIPTS, *map(installed, ("key_code", "lmcache", "vllm")))
    built = installed("key_code") / "built"
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "run.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **kept,
            "PATH": os.pathsep.join([str(installed("key_code") / "bin"), kept["PATH"]]),
            "TORCH_EXTENSIONS_DIR": str(built),
        },
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[list[list[str]]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("engine", sorted({code.engine for code in KEY_CODE.values()}))
def test_names_are_foretold_and_profiles_say_what_they_tell_apart(engine: str, tmp_path: Path) -> None:
    connectors = [name for name, code in KEY_CODE.items() if code.engine == engine]
    of = {connector: list(pairs(connector)) for connector in connectors}
    carried = [carrying(connector) for connector in connectors]
    sides = [
        side
        for connector, carrier in zip(connectors, carried, strict=True)
        for side in (*(side for pair in of[connector] for side in (pair.old, pair.new)), carrier)
    ]
    found = run([settings(side.manifest, list(side.requests)) for side in sides], tmp_path)
    named = dict(zip(map(id, sides), found, strict=True))
    compared = [pair for ours in of.values() for pair in ours]
    wrong: list[str] = []
    for pair in compared:
        wrong += _unlike_the_profile(pair, *(set(named[id(side)][0]) for side in (pair.old, pair.new)))
    for side in carried:
        wrong += _unlike_what_requests_carry(side, named[id(side)])
    for side in sides:
        wrong += _not_taken_apart(side, named[id(side)])
    blind = {
        (pair.connector, pair.name)
        for pair in compared
        for side in (pair.old, pair.new)
        for request, names in zip(side.requests, named[id(side)], strict=True)
        if not _foretold(side.manifest, request, names, wrong)
    }
    assert wrong == []
    assert blind == {(connector, name) for connector, name in NOT_FORETOLD if connector in connectors}


def _unlike_the_profile(pair: Pair, old: set[str], new: set[str]) -> list[str]:
    said = _only(decided(pair.old.manifest, pair.new.manifest), pair.name)
    apart, case = not old & new, (pair.connector, pair.name)
    assert old, case
    if pair.meet is not None:
        return [] if apart is not pair.meet and (said != "yes" or apart) else [f"{case}: {said}, {old}, {new}"]
    expected = {"yes": True, "through token ids": True, "no": case in ON_A_CONDITION, "unknown": apart}[said]
    key = KEYS[pair.connector].of(pair.name)
    expected = expected or key == "rejects"  # what is compared when connecting is no key
    known = key != "unknown" or said == "unknown"
    return [] if apart is expected and known else [f"{case}: said {said}, {sorted(old)[:2]}, {sorted(new)[:2]}"]


def _only(decision: Decision, name: str) -> str:
    (said,) = {finding.keys_separate for finding in decision.findings if finding.change.dimension == name}
    return said


def _unlike_what_requests_carry(side: Side, named: list[list[str]]) -> list[str]:
    wrong, connector = [], side.manifest.value("cache.connector")
    of = dict(zip(map(id, side.requests), map(set, named), strict=True))
    for feature, both in CARRIED.items():
        if id(both[0]) in of:
            plain, one, two = (of[id(request)] for request in (side.requests[0], *both))
            apart = not (plain & one or plain & two or one & two)
            key = cover(side.manifest).request(feature).key
            right = not (one or two) if key == "rejects" else bool(one) and apart is (key == "separates")
            wrong += [] if right else [f"{connector}: {feature}: {key}"]
    return wrong


def _not_taken_apart(side: Side, named: list[list[str]]) -> list[str]:
    """Every name is read by its scheme, and says the model, the namespace and what the prediction is made of."""
    scheme = SCHEMES.get(side.manifest.value("cache.connector"))
    if scheme is None:
        return []
    wrong = []
    for name in (name for names in named for name in _inside(side.manifest, names)):
        read = scheme.parse(name)
        model = None if read is None else read.model
        if read is None or model not in (None, scheme.model(side.manifest)) or read.hash not in name:
            wrong.append(f"{name}: {read}")
    return wrong


def _foretold(manifest: Manifest, request: Request, names: list[str], wrong: list[str]) -> bool:
    connector = manifest.value("cache.connector")
    if connector not in SCHEMES:
        return True
    said = SCHEMES[connector].predict(manifest, request)
    if said.names is None:
        return False
    stored = _inside(manifest, names)
    if set(said.names) != stored or len(said.names) != len(stored):
        wrong.append(f"{connector}: foretold {sorted(said.names)[:2]}, stored {sorted(stored)[:2]}")
    return True


def _inside(manifest: Manifest, names: list[str]) -> set[str]:
    """Names in the store's folder, which for vLLM's file tier is the one that its root names."""
    if manifest.value("cache.connector") != "vllm-offload-fs":
        return set(names)
    return {name.removeprefix(f"kv/{manifest.value('cache.namespace')}/") for name in names}
