"""The keys of vLLM's connector to a Mooncake store.

Source: vllm 0.32.0 and 0.33.0 wheels, distributed/kv_transfer/kv_connector/v1/mooncake/store/data.py (``PoolKey``) and
worker.py (``_init_lookup_key_prefixes``, ``_spec_tp_replication_factor``, ``_select_store_layout``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvgate.rules.attention import uses_mla
from kvgate.rules.launched import connector_settings
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID, block_hashes

_ID = "vllm-mooncake"
_RANKS = ("tp_rank", "pcp", "dcp", "pp_rank")
_KEY = re.compile(
    r"(?:(?P<prefix>[^\x00]+)@)?(?P<model>(?!store_[a-z]+:)[^@/\x00]+)(?P<format>(?:@store_[a-z]+:[^@\x00]+)*)"
    r"@tp_rank:(?P<tp_rank>[0-9]+)@pcp(?P<pcp>[0-9]+)@dcp(?P<dcp>[0-9]+)@pp_rank:(?P<pp_rank>[0-9]+)"
    r"@group:(?P<group>[0-9]+)@(?P<hash>[0-9a-f]{64}|[0-9a-f]{32})"
)


def parse(name: str) -> StoredKey | None:
    """Take a key apart. A prefix may hold ``@``; the model's name is what stands behind the last one."""
    found = _KEY.fullmatch(name)
    if found is None:
        return None
    fields: dict[str, str | int] = {part: int(found[part]) for part in (*_RANKS, "group")}
    if found["format"]:
        fields["format"] = found["format"].removeprefix("@")
    return StoredKey(_ID, name, found["prefix"], found["model"], fields, found["hash"])


def predict(manifest: Manifest, request: Request) -> Prediction:
    """Say which keys must be there for a prompt's blocks to be found: of every block, one for each rank."""
    facts = Facts(manifest, _ID)
    prefix = facts.set_or("cache.namespace", "")
    tensor, stages = facts.set("parallelism.tensor"), facts.set("parallelism.pipeline")
    prefill, decode = facts.set("parallelism.prefill_context"), facts.set("parallelism.decode_context")
    if decode is not None and decode > 1:
        facts.lacks("parallelism.decode_context", "which ranks share a block was not read")
    extra = connector_settings(manifest)
    if extra is None or {"store_tp_size", "enable_store_tp_lcm"} & extra.keys():
        facts.lacks("engine.args", "whether blocks are stored in a form for several tensor sizes is not known")
    shards = _shards(facts, tensor)
    model, blocks = _model(manifest), block_hashes(facts, request)
    if facts.unknown or shards is None or model is None:
        return facts.predict(None)
    start = f"{prefix}@{model}" if prefix else model
    ranks = [
        f"{start}@tp_rank:{shard}@pcp{context}@dcp0@pp_rank:{stage}@group:0"
        for context in range(prefill)
        for shard in range(shards)
        for stage in range(stages)
    ]
    return facts.predict(f"{rank}@{block.hex()}" for block in blocks for rank in ranks)


def _shards(facts: Facts, tensor: int | None) -> int | None:
    """How many tensor ranks store something of their own: copies of heads, and latents, are stored once."""
    mla = uses_mla(facts.manifest)
    config = facts.manifest.value("model.config")
    heads = config.get("num_key_value_heads") if isinstance(config, Mapping) else None
    if mla:
        return 1
    if mla is None or type(heads) is not int:
        facts.lacks("model.config", "how many heads a rank holds is not known of this model")
        return None
    return None if tensor is None else tensor // max(1, tensor // heads)


def _model(manifest: Manifest) -> str | None:
    found = manifest.value("model.id")
    return found.rstrip("/").rpartition("/")[2] if isinstance(found, str) else None


SCHEME = Scheme(_ID, parse, predict, _model, UNSAID, within=frozenset({*_RANKS, "group"}))
