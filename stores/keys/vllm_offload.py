"""The names of vLLM's tiered offload, in a folder and in an object store.

Source: vllm 0.32.0 and 0.33.0 wheels, v1/kv_offload/file_mapper.py (``FileMapper``), v1/kv_offload/tiering/fs and obj
(manager.py), distributed/kv_transfer/kv_connector/v1/offloading/config.py and scheduler.py
(``update_offload_keys``). The tiers live in the scheduler, whose rank is 0: one file holds the block of all ranks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from kvgate.rules.launched import connector_settings, launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.rules.offload_layout import one_name_for_all_layouts
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID, block_hashes, tokens_per_hash
from kvgate.stores.keys.vllm_layers import attention_layers

_FILES, _OBJECTS = "vllm-offload-fs", "vllm-offload-object"
_BLOCK = (
    r"(?P<model>[^/\x00]+)_(?P<settings>[0-9a-f]{12})_r(?P<rank>[0-9]{1,6})"
    r"/(?P<first>[0-9a-f]{3})/(?P<next>[0-9a-f]{2})_g(?P<group>[0-9]{1,6})/(?P<hash>[0-9a-f]{64}|[0-9a-f]{32})\.bin"
)
# A prefix is followed by two slashes, and without one a name begins with a slash.
_FORMS = {_FILES: re.compile(_BLOCK), _OBJECTS: re.compile(rf"(?:(?P<prefix>[^\x00]+)/)?/{_BLOCK}")}


def _parse(connector: str, name: str) -> StoredKey | None:
    found = _FORMS[connector].fullmatch(name)
    if found is None or not found["hash"].startswith(found["first"] + found["next"]):
        return None
    fields: dict[str, str | int] = {
        "settings": found["settings"],
        "rank": int(found["rank"]),
        "group": int(found["group"]),
    }
    prefix = found.groupdict().get("prefix")
    return StoredKey(connector, name, prefix, found["model"], fields, found["hash"])


def _predict(connector: str, manifest: Manifest, request: Request) -> Prediction:
    facts = Facts(manifest, connector)
    settings = _settings(facts, connector)
    per_chunk = _blocks_per_chunk(facts)
    blocks = block_hashes(facts, request)
    prefix = facts.set_or("cache.namespace", "") if connector == _OBJECTS else None
    model = _model(manifest)
    if facts.unknown or per_chunk is None or model is None:
        return facts.predict(None)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
    root = "" if prefix is None else f"{prefix}//" if prefix else "/"
    return facts.predict(_names(f"{root}{model}_{digest}_r0", blocks[per_chunk - 1 :: per_chunk]))


def _names(folder: str, hashes: tuple[bytes, ...]) -> Iterator[str]:
    for name in (one.hex() for one in hashes):
        yield f"{folder}/{name[:3]}/{name[3:5]}_g0/{name}.bin"


def _settings(facts: Facts, connector: str) -> dict[str, Any]:
    """Return what the digest in a folder's name is made over, and what the tier writes into ``config.json`` there."""
    manifest = facts.manifest
    alike = one_name_for_all_layouts(manifest)
    if alike is None:
        facts.lacks("engine.args", "whether files are named alike for all rank layouts is not known of this deployment")
    layers = attention_layers(manifest)
    if layers is None:
        facts.lacks("model.config", "what vLLM calls the layers of this model is not known")
    stages = facts.set("parallelism.pipeline")
    if layers is not None and stages is not None:
        if len(layers) % stages or (launch_flags(manifest) or {}).get("VLLM_PP_LAYER_PARTITION") is not None:
            facts.lacks("parallelism.pipeline", "which layers the first stage holds is not known")
        layers = layers[: len(layers) // stages]
    tokens, per_chunk = tokens_per_hash(facts), _blocks_per_chunk(facts)
    # Objects of 0.32 are filed under one block each, however many they hold.
    one_each = connector == _OBJECTS and manifest.value("engine.version") == "0.32.0"
    sizes = {
        name: 1 if alike else facts.set(f"parallelism.{path}")
        for name, path in (
            ("tp_size", "tensor"),
            ("pp_size", "pipeline"),
            ("pcp_size", "prefill_context"),
            ("dcp_size", "decode_context"),
        )
    }
    return {
        "model_name": manifest.value("model.id"),
        "tokens_per_hash": tokens,
        "blocks_per_file": 1 if one_each else per_chunk,
        **sizes,
        "dtype": _dtype(facts),
        "kv_cache_groups": [{"tokens_per_block": tokens, "layer_names": list(layers or ())}],
        "inference_engine": "vllm",
        **({} if alike else {"parallel_agnostic": False}),
    }


def _blocks_per_chunk(facts: Facts) -> int | None:
    """How many blocks a file holds: ``block_size`` or ``blocks_per_chunk`` of the connector's settings, else one."""
    block, extra = facts.set("engine.block_size"), connector_settings(facts.manifest)
    chunk = facts.set_or("cache.chunk_size", block)
    if extra is None:
        facts.lacks("engine.args", "the connector's other settings are not known")
        return None
    if block is None or chunk is None:
        return None
    tokens = block * (facts.set("parallelism.decode_context") or 1)
    given = extra.get("blocks_per_chunk")
    if given is not None:
        return given if type(given) is int and given > 0 else None
    if facts.manifest.unset("cache.chunk_size"):
        return 1
    if chunk % tokens:
        facts.lacks("cache.chunk_size", f"it is no multiple of {tokens} tokens, which vLLM refuses")
        return None
    return int(chunk // tokens)


def _dtype(facts: Facts) -> str | None:
    """The KV dtype as the launch line spells it: ``fp8`` and ``fp8_e4m3`` are one format and two names."""
    canonical = facts.set("precision.kv_cache")
    if canonical is None or canonical in ("bfloat16", "float16", "float32"):
        return None if canonical is None else str(canonical)
    facts.assumed.append("precision.kv_cache is spelled as --kv-cache-dtype is")
    return str(facts.manifest.data["precision"]["kv_cache"])


def _model(manifest: Manifest) -> str | None:
    found = manifest.value("model.id")
    return found.replace("/", "_") if isinstance(found, str) else None


def _scheme(connector: str) -> Scheme:
    within = frozenset({"rank", "group"})
    return Scheme(connector, partial(_parse, connector), partial(_predict, connector), _model, UNSAID, within)


FILES, OBJECTS = map(_scheme, (_FILES, _OBJECTS))
