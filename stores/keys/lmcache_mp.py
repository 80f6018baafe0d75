"""The names of LMCache's multi-process server (LMCacheMPConnector in vLLM).

Source: lmcache 0.5.6 wheel, lmcache/v1/distributed/api.py (``ObjectKey``), v1/distributed/l2_adapters/fs_l2_adapter.py
and native_connector_l2_adapter.py (names), valkey_l2_adapter.py (``key_prefix``), v1/multiprocess/token_hasher.py
(chunk hashes), integration/vllm/vllm_multi_process_adapter.py (``ParallelStrategy``: ranks).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.rules.attention import uses_mla
from kvgate.rules.keyforms import in_key
from kvgate.rules.launched import launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.rules.offload_layout import one_group
from kvgate.rules.places import tiers
from kvgate.rules.values import Known
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.lmcache_files import FILE, from_file, to_file
from kvgate.stores.keys.models import as_started
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID

_ID = "lmcache-mp"
_HASH = r"(?P<hash>[0-9a-f]{64}|[0-9a-f]{16})"  # blake3 and SHA-256; Python's own hash
_REST = rf"(?P<rank>[0-9a-f]{{8}})@(?P<group>0|[1-9a-f][0-9a-f]{{0,7}})@{_HASH}"
_MODEL = r"(?P<model>[^@]+)"
_SALT = r"(?P<salt>[^@/\\\x00]{1,128})"
_KEY = re.compile(rf"{_MODEL}@{_REST}(?:@{_SALT})?")
_PREFIXED = re.compile(rf"(?P<prefix>[^@]+)@{_MODEL}@{_REST}(?:@{_SALT})?")
_SALTS = re.compile(_SALT)
_IN_FILES = "@0x"  # in front of the ranks, where keys have no such mark
_MOST_RANKS = 256  # a rank has eight bits in a name
_DECORATED = "##lmcache-dcp-layout-v1-"  # what follows a model's name where context parallelism interleaves tokens


def parse(name: str) -> StoredKey | None:
    """Take a name apart: a key of Redis, Valkey or an object store, or a file's name."""
    in_a_file = name.endswith(FILE) and _IN_FILES in name
    text = from_file(name) if in_a_file else name
    if text is None:
        return None
    if in_a_file:
        text = text.replace(_IN_FILES, "@", 1)
    readings = [found for pattern in (_KEY, _PREFIXED) if (found := pattern.fullmatch(text)) is not None]
    if len(readings) != 1 or (in_a_file and readings[0].re is _PREFIXED):
        return None
    parts = readings[0].groupdict()
    rank = int(parts["rank"], 16)
    world, worker, local_world, local_worker = (rank >> shift & 0xFF for shift in (24, 16, 8, 0))
    model, decorated, layout = parts["model"].partition(_DECORATED)
    isolated = [one for one in (parts.get("prefix"), parts["salt"]) if one]
    return StoredKey(
        _ID,
        name,
        namespace="@".join(isolated) or None,
        model=model,
        fields={
            **({"context_layout": layout} if decorated else {}),
            "world_size": world,
            "worker": worker,
            "local_world_size": local_world,
            "local_worker": local_worker,
            "group": int(parts["group"], 16),
        },
        hash=parts["hash"],
    )


def predict(manifest: Manifest, request: Request) -> Prediction:
    """Say under which names the server stores the whole chunks of a prompt, in every tier of its location."""
    facts = Facts(manifest, _ID)
    forms = tuple(dict.fromkeys(_forms(facts)))
    chunk = facts.set("cache.chunk_size")
    model, size = facts.set("model.id"), _world_size(facts)
    salt = _salt(facts, request)
    server = _server(facts)
    _one_group(facts, server)
    if (algorithm := server.get("hash-algorithm", "blake3")) != "blake3":
        facts.lacks("engine.args", f"{algorithm} starts with what the vLLM beside the server hashes, if there is one")
    if isinstance(model, str) and "@" in model:
        facts.lacks("model.id", "LMCache refuses a name with '@' in it")
    if request.media:
        facts.lacks("request_features", "the ids that LMCache puts in the place of media are not foretold")
    if request.embeds is not None:
        facts.lacks("request_features", "what LMCache makes of prompt embeds is not known")
    if facts.unknown or chunk is None or size is None:
        return facts.predict(None)
    return facts.predict(
        form(f"{model}", _rank(size, worker), hashed, salt)
        for hashed in chunk_hashes(request.token_ids, chunk)
        for worker in range(size)
        for form in forms
    )


def chunk_hashes(token_ids: Any, chunk: int) -> Iterator[str]:
    """Yield the hash of every whole chunk, each over the one before it."""
    from blake3 import blake3

    # What stands for the parent of the first: the hash of one token, 0, under a parent that is the number 0.
    parent = blake3(bytes(8) + bytes(4)).digest()
    for start in range(0, len(token_ids) - chunk + 1, chunk):
        parent = blake3(parent + struct.pack(f">{chunk}I", *token_ids[start : start + chunk])).digest()
        yield parent.hex()


def _rank(size: int, worker: int) -> int:
    return size << 24 | worker << 16 | size << 8 | worker


def _key(model: str, rank: int, hashed: str, salt: str) -> str:
    return f"{model}@{rank:08x}@0@{hashed}" + (f"@{salt}" if salt else "")


def _file(model: str, rank: int, hashed: str, salt: str) -> str:
    return to_file(f"{model}@{rank:#010x}@0@{hashed}" + (f"@{salt}" if salt else ""))


def _forms(facts: Facts) -> Iterator[Any]:
    location = facts.set("cache.location")
    for tier in tiers(location) if isinstance(location, str) else ():
        scheme, mark, _ = tier.partition("://")
        if not mark or scheme in ("file", "fs"):
            yield _file
        elif scheme in ("redis", "rediss"):
            yield _key
        else:
            facts.lacks("cache.location", f"the names in {scheme}:// are not foretold")


def _server(facts: Facts) -> Mapping[str, Any]:
    """The settings of the server that have no path of their own."""
    flags = launch_flags(facts.manifest)
    found = {} if flags is None else flags.get("lmcache-server", {})
    if flags is None or not isinstance(found, Mapping):
        facts.lacks("engine.args", "not known, and the server may hash otherwise")
    return found if isinstance(found, Mapping) else {}


def _world_size(facts: Facts) -> int | None:
    """In how many pieces the KV of one chunk is stored."""
    manifest = facts.manifest
    if manifest.value("parallelism.decode_context") != 1:
        facts.lacks("parallelism.decode_context", "not known to be 1: more decorate the model's name")
        return None
    if uses_mla(manifest):  # every tensor rank holds the same
        size = manifest.get("parallelism.pipeline")
    else:
        size = in_key("world-size-per-server-unless-mla", Known(None), manifest)
    if not isinstance(size, Known):
        facts.lacks("parallelism", "how many ranks there are for each server is not known")
        return None
    if not 0 < size.value < _MOST_RANKS:
        facts.lacks("parallelism", "a name holds no such number of ranks")
    return int(size.value)


def _one_group(facts: Facts, server: Mapping[str, Any]) -> None:
    """Whether the KV of a chunk is one object of each rank."""
    if uses_mla(facts.manifest) is None:
        facts.lacks("model.config", "whether all layers are stored in one group is not known of this model")
    if not facts.manifest.unset("engine.speculative"):
        facts.lacks("engine.speculative", "a draft's layers may be stored as a group of their own")
    if server.get("separate-object-groups") and not one_group(facts.manifest):
        facts.lacks("engine.args", "the groups of --separate-object-groups are not foretold for this model")


def _salt(facts: Facts, request: Request) -> str:
    """The salt of the request: its own, or what the gateway gives every request to isolate the deployment."""
    salt = request.salt
    if salt is None:
        tenancy = facts.manifest.value("cache.tenancy")
        if isinstance(tenancy, Mapping) and tenancy.get("carried_by") == "cache_salt":
            facts.lacks("cache.tenancy", "requests carry a salt, and this one's was not given (--salt)")
        salt = facts.set_or("cache.namespace", "")
        if salt:
            facts.assumed.append("every request carries cache.namespace as its cache_salt")
    if salt and _SALTS.fullmatch(salt) is None:
        facts.lacks(
            "cache.namespace", "LMCache refuses a salt with '@', '/' or '\\' in it, or of more than 128 characters"
        )
    return salt or ""


SCHEME = Scheme(
    _ID,
    parse,
    predict,
    as_started,
    {
        **UNSAID,
        "precision.kv_cache": "no name holds the number format",
        "adapters": "no name holds an adapter: their entries lie among those of the model",
        "engine.kv_layout": "no name holds the layout",
    },
    within=frozenset({"worker", "local_worker"}),
)
