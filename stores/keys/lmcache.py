"""The names of LMCache inside the engine (LMCacheConnectorV1 in vLLM).

Source: lmcache 0.5.6 wheel, lmcache/utils.py (``CacheEngineKey``, ``LayerCacheEngineKey``), v1/token_database.py (chunk
hashes), v1/storage_backend/connector/redis_connector.py and fs_connector.py (names), v1/storage_backend/
local_disk_backend.py, integration/vllm/utils.py (model, ranks, number format).

A request's tags stand at the end of a key, and behind them, with no mark between, which part of an entry it is in
Redis, or what a file's name ends in: a tag whose value ends in any of these may read as a shorter one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvgate.rules.attention import uses_mla
from kvgate.rules.dtypes import torch_storage
from kvgate.rules.keyforms import in_key
from kvgate.rules.launched import connector_settings, launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.rules.places import tiers
from kvgate.rules.profile import version_in
from kvgate.rules.values import Known
from kvgate.stores.keys.cbor import cbor
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.lmcache_files import FILE, from_file, to_file
from kvgate.stores.keys.models import as_started
from kvgate.stores.keys.python_hash import text_hash
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID, none_hash

_ID = "lmcache"
_DTYPES = "half|bfloat16|float|double|int8|uint8|int16|int32|int64|bool|fp8_e4m3fn|fp8_e4m3fnuz|fp8_e5m2|fp8_e5m2fnuz"
_PARTS = ("kv_bytes", "metadata")  # the two keys of an entry in Redis
_DISK = ".pt"
_KEY = re.compile(
    rf"(?P<model>[^@]+)@(?P<world>\d{{1,9}})@(?P<worker>\d{{1,9}})@(?P<hash>-?[0-9a-f]{{1,16}})@(?P<dtype>{_DTYPES})"
    r"(?:@(?P<layer>\d{1,9}))?(?P<tags>(?:@[^@%]+%[^@]*)*)"
)
_TORCH = {"bfloat16": "bfloat16", "float16": "half", "float32": "float", "float64": "double", "uint8": "uint8"}
# lmcache/v1/config.py: what may be set, and makes other names or other chunks.
_OTHER_NAMES = ("use_layerwise", "save_unfull_chunk", "enable_blending", "enable_pd", "save_only_first_rank")
_IN_ENVIRONMENT, _OVER_IT = "LMCACHE_", "lmcache."
_ALGORITHM = "pre_caching_hash_algorithm"
_TAG = "ns"  # what kvgate's own advice calls the tag that isolates a deployment
_SEEDED = ">=0.29"  # releases of vLLM that start a cryptographic hash with a seed of their own


def parse(name: str) -> StoredKey | None:
    """Take a name apart: a key of Redis or the like, or a file's name.

    On a local disk slashes of the model's name are dashes: which of them were is not known, nor so the model.
    """
    part = next((one for one in _PARTS if name.endswith(one)), None)
    if name.endswith(FILE):
        key, part = from_file(name), None
    elif name.endswith(_DISK):
        key, part = (None if "/" in name else name.removesuffix(_DISK)), None
    else:
        key = name.removesuffix(part or "")
    found = None if key is None else _KEY.fullmatch(key)
    if found is None:
        return None
    on_disk = name.endswith(_DISK)
    fields: dict[str, str | int] = {
        **({"model_with_dashes": found["model"]} if on_disk else {}),
        "world_size": int(found["world"]),
        "worker": int(found["worker"]),
        "dtype": found["dtype"],
    }
    if found["layer"] is not None:
        fields["layer"] = int(found["layer"])
    if part is not None:
        fields["part"] = part
    return StoredKey(_ID, name, found["tags"][1:] or None, None if on_disk else found["model"], fields, found["hash"])


def predict(manifest: Manifest, request: Request) -> Prediction:
    """Say under which names the engine stores the whole chunks of a prompt, in every tier of its location."""
    facts = Facts(manifest, _ID)
    forms = tuple(dict.fromkeys(_forms(facts)))
    chunk, model = facts.set("cache.chunk_size"), facts.set("model.id")
    size, dtype = _world_size(facts), facts.set("precision.kv_cache")
    settings = _settings(facts)
    for name in _OTHER_NAMES:
        if str(settings.get(name, False)).lower() not in ("false", "0"):
            facts.lacks("engine.args", f"the names under {name} are not foretold")
    hashes = _hashes(facts, str(settings.get(_ALGORITHM, "builtin")))
    namespace = facts.set_or("cache.namespace", "")
    if namespace:
        facts.assumed.append(f"every request carries cache.namespace as its tag lmcache.tag.{_TAG}, and no other tag")
    tenancy = manifest.value("cache.tenancy")
    if isinstance(tenancy, Mapping) and str(tenancy.get("carried_by")).startswith("lmcache.tag."):
        facts.lacks("cache.tenancy", f"the value of the tag {tenancy['carried_by']} enters every name")
    if request.media:
        facts.lacks("request_features", "the ids that LMCache puts in the place of media are not foretold")
    if request.embeds is not None:
        facts.lacks("request_features", "what LMCache makes of prompt embeds is not known")
    if (torch := _TORCH.get(torch_storage(str(dtype)))) is None:
        facts.lacks("precision.kv_cache", f"what LMCache calls {dtype} is not known")
    if facts.unknown or hashes is None or chunk is None or size is None:
        return facts.predict(None)
    tag = f"@{_TAG}%{namespace}" if namespace else ""
    return facts.predict(
        name
        for hashed in hashes(request.token_ids, chunk)
        for worker in range(size)
        for form in forms
        for name in form(f"{model}@{size}@{worker}@{hashed:x}@{torch}{tag}")
    )


_Hashes = Callable[[Any, int], Iterator[int]]


def _hashes(facts: Facts, algorithm: str) -> _Hashes | None:
    """Return what hashes a prompt's chunks, each over the one before it."""
    seed = facts.set_or("engine.prefix_hash.seed", None)
    if facts.unknown:
        return None
    if algorithm == "builtin":
        start = None if seed is None else text_hash(seed, seed)
        if start is None:
            facts.lacks("engine.prefix_hash.seed", "without PYTHONHASHSEED every process draws its own")
            return None
        facts.assumed.append("the engine runs in a CPython of 3.11 or later, of 64 bits")
        return lambda ids, chunk: _chained(start, ids, chunk, hash)
    if algorithm == "sha256_cbor":
        first = none_hash(algorithm, seed)
        if seed is None and not version_in(facts.manifest.value("engine.version"), _SEEDED):
            facts.lacks("engine.prefix_hash.seed", "without PYTHONHASHSEED every process of vLLM before 0.29 draws one")
        elif first is not None:
            return lambda ids, chunk: _chained(_folded(first), ids, chunk, _sha256_cbor)
    facts.lacks("engine.args", f"the hashes of {_ALGORITHM} {algorithm!r} are not foretold")
    return None


def _chained(parent: int, token_ids: Any, chunk: int, hashed: Callable[[object], int]) -> Iterator[int]:
    for start in range(0, len(token_ids) - chunk + 1, chunk):
        parent = hashed((parent, tuple(token_ids[start : start + chunk]), ()))
        yield parent


def _sha256_cbor(value: object) -> int:
    return _folded(hashlib.sha256(cbor(value)).digest())


def _folded(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def _in_redis(key: str) -> Iterator[str]:
    yield from (f"{key}{part}" for part in _PARTS)


def _as_key(key: str) -> Iterator[str]:
    yield key


def _in_a_file(key: str) -> Iterator[str]:
    yield to_file(key)


def _on_disk(key: str) -> Iterator[str]:
    yield key.replace("/", "-") + _DISK


_FORMS = {
    **dict.fromkeys(("redis", "rediss", "unix"), _in_redis),
    **dict.fromkeys(("resp", "valkey"), _as_key),
    "fs": _in_a_file,
    **dict.fromkeys(("file", ""), _on_disk),
}


def _forms(facts: Facts) -> Iterator[Callable[[str], Iterator[str]]]:
    location = facts.set("cache.location")
    for tier in tiers(location) if isinstance(location, str) else ():
        scheme = tier.partition("://")[0] if "://" in tier else ""
        if (form := _FORMS.get(scheme)) is None:
            facts.lacks("cache.location", f"the names in {scheme}:// are not foretold")
        else:
            yield form


def _world_size(facts: Facts) -> int | None:
    mla = uses_mla(facts.manifest)
    if mla is None:
        facts.lacks("model.config", "whether ranks share what they store is not known of this model")
    if mla:
        # One rank stores what all hold, and says that it is one of one; with stages it is not known which.
        if facts.manifest.value("parallelism.pipeline") != 1:
            facts.lacks("parallelism.pipeline", "not known to be 1, with latents that all ranks share")
        return 1
    size = in_key("world-size-unless-mla", Known(None), facts.manifest)
    if not isinstance(size, Known):
        facts.lacks("parallelism", "how many ranks there are is not known")
        return None
    return int(size.value)


def _settings(facts: Facts) -> Mapping[str, Any]:
    """LMCache's settings that have no path of their own, by their names in its configuration."""
    flags, extra = launch_flags(facts.manifest), connector_settings(facts.manifest)
    if flags is None or extra is None:
        facts.lacks("engine.args", "not known, and LMCache's settings may stand there")
        return {}
    found = {
        name.removeprefix(_IN_ENVIRONMENT).lower(): flags[name] for name in flags if name.startswith(_IN_ENVIRONMENT)
    }
    if "extra_config" in found:
        facts.lacks("engine.args", "what LMCACHE_EXTRA_CONFIG makes of names is not read")
    return {**found, **{name.removeprefix(_OVER_IT): extra[name] for name in extra if name.startswith(_OVER_IT)}}


SCHEME = Scheme(
    _ID,
    parse,
    predict,
    as_started,
    {**UNSAID, "adapters": "no name holds an adapter: their entries lie among those of the model"},
    within=frozenset({"worker", "layer", "part"}),
)
