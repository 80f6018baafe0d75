"""The names of AIBrix's second level: folders of a shared file system, and keys of a store.

Source: aibrix-kvcache 0.8.0 wheel, l2/l2_cache.py:85, l2/connectors/connector.py:85, l2/connectors/shfs.py
(``_key_to_filepath``), l2/key_builders/, spec.py (``signature``), utils.py (``hash_combine_128``),
integration/vllm/kv_connector/aibrix_offloading_connector_type1.py:740-800 and 114.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence

from kvgate.rules.attention import uses_mla
from kvgate.rules.launched import launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.farm import farm_128
from kvgate.stores.keys.models import nameless
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID

_ID = "aibrix"
_VARIABLE = "AIBRIX_KV_CACHE_OL_"
_PRIME, _128 = 0x1000000000000000000013B, (1 << 128) - 1
_PART = (
    r"(?P<namespace>[^/\x00]+)_h(?P<first_head>[0-9]+)_(?P<last_head>[0-9]+)_l(?P<first_layer>[0-9]+)_"
    r"(?P<last_layer>[0-9]+)_(?P<layout>ncld|lcnd)(?P<tokens>[0-9]+)(?P<builder>ro|sim)(?P<packing>c|ex)"
)
_FOLDER = re.compile(rf"{_PART}/(?P<first>[0-9a-f]{{2}})/(?P<next>[0-9a-f]{{2}})/(?P<hash>[0-9a-f]{{32}})")
_KEY = re.compile(rf"(?P<hash>[0-9a-f]{{32}}){_PART}")
_NUMBERS = ("first_head", "last_head", "first_layer", "last_layer", "tokens")


def parse(name: str) -> StoredKey | None:
    """Take a path in the shared folder, or a key of a store, apart."""
    found = _FOLDER.fullmatch(name) or _KEY.fullmatch(name)
    if found is None:
        return None
    parts = found.groupdict()
    if "first" in parts and not parts["hash"].startswith(parts["first"] + parts["next"]):
        return None
    fields: dict[str, str | int] = {part: int(parts[part]) for part in _NUMBERS}
    fields |= {part: parts[part] for part in ("layout", "builder", "packing")}
    return StoredKey(_ID, name, parts["namespace"], None, fields, parts["hash"])


def predict(manifest: Manifest, request: Request) -> Prediction:
    """Say under which names the blocks of a prompt lie: of every block, one for each rank."""
    facts = Facts(manifest, _ID)
    namespace = facts.set_or("cache.namespace", "aibrix")
    location = facts.set("cache.location")
    tokens = facts.set("engine.block_size") if manifest.unset("cache.chunk_size") else facts.set("cache.chunk_size")
    if request.media or request.embeds is not None:
        facts.lacks("request_features", "what stands for media and embeddings was not read")
    flags = launch_flags(manifest)
    if flags is None or any(name.startswith(_VARIABLE) for name in flags):
        facts.lacks("engine.args", f"other variables {_VARIABLE}... are not known to be left as they are")
    ranges = _ranges(facts)
    if facts.unknown or tokens is None or location is None:
        return facts.predict(None)
    facts.assumed.append("the key builder is ROLLING_HASH and tokens are not stored with the blocks, the defaults")
    parts = [f"{namespace}_{one}_lcnd{tokens}roc" for one in ranges]
    hashes = _rolling(request.token_ids, tokens)
    if "://" in location:
        return facts.predict(f"{one}{part}" for one in hashes for part in parts)
    return facts.predict(f"{part}/{one[:2]}/{one[2:4]}/{one}" for one in hashes for part in parts)


def _ranges(facts: Facts) -> list[str]:
    """The heads and layers that each rank holds, as they stand in names, ranks of one stage beside each other."""
    config = facts.manifest.value("model.config")
    heads, layers = (
        config.get(name) if isinstance(config, Mapping) else None
        for name in ("num_key_value_heads", "num_hidden_layers")
    )
    tensor, stages = facts.set("parallelism.tensor"), facts.set("parallelism.pipeline")
    if uses_mla(facts.manifest) is not False or type(heads) is not int or type(layers) is not int:
        facts.lacks("model.config", "which heads and layers a rank holds is not known of this model")
        return []
    if stages is not None and layers % stages:
        facts.lacks("parallelism.pipeline", "which layers a stage holds is not known")
    if tensor is None or stages is None:
        return []
    each, deep = max(1, heads // tensor), layers // stages
    return [
        f"h{each * rank}_{each * (rank + 1) - 1}_l{deep * stage}_{deep * (stage + 1) - 1}"
        for stage in range(stages)
        for rank in range(tensor)
    ]


def _rolling(token_ids: Sequence[int], tokens: int) -> list[str]:
    """The hash of every whole block, joined with the one before."""
    found: list[int] = []
    for start in range(0, len(token_ids) - tokens + 1, tokens):
        block = farm_128(struct.pack(f"={tokens}i", *token_ids[start : start + tokens]))
        found.append(_joined(found[-1], block) if found else block)
    return [one.to_bytes(16, "big").hex() for one in found]


def _joined(before: int, block: int) -> int:
    return ((before ^ block + _PRIME + (before << 24) + (before >> 4)) & _128) * _PRIME & _128


SCHEME = Scheme(
    _ID,
    parse,
    predict,
    nameless,
    {
        **UNSAID,
        "model.id": "no name holds the model",
        "adapters": "no name holds an adapter",
        "precision.kv_cache": "no name holds the format",
        "cache.tenancy": "no name holds a salt",
    },
    within=frozenset({"first_head", "last_head", "first_layer", "last_layer"}),
)
