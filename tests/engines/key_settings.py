"""What a deployment's manifest says, as the settings with which each engine's own code is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvgate.rules.attention import uses_mla
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request

Settings = dict[str, Any]

TIER = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 20}
STORE = {"type": "obj", "store_config": {"bucket": "kv", "endpoint_override": "store:9000"}}
LAYOUTS = {"NHD": "LBNHC", "HND": "LBHNC"}


@dataclass(frozen=True)
class KeyCode:
    """How the code of one connector's keys is run.

    Attributes:
        engine: whose process it runs in.
        module: which of ``key_code/`` runs it.
        store: what that calls the store.

    """

    engine: str
    module: str
    store: str


KEY_CODE = {  # AIBrix's last: see key_code/run.py
    "lmcache": KeyCode("vllm", "lmcache_names", "inside"),
    "lmcache-mp": KeyCode("vllm", "lmcache_names", "server"),
    "vllm-apc": KeyCode("vllm", "vllm_names", "hashes"),
    "vllm-offload-fs": KeyCode("vllm", "vllm_names", "fs"),
    "vllm-offload-object": KeyCode("vllm", "vllm_names", "obj"),
    "vllm-mooncake": KeyCode("vllm", "vllm_names", "mooncake"),
    "vllm-example": KeyCode("vllm", "vllm_names", "example"),
    "vllm-nixl": KeyCode("vllm", "vllm_names", "handshake"),
    "vllm-hf3fs": KeyCode("vllm", "vllm_names", "pages"),
    "aibrix": KeyCode("vllm", "aibrix_names", "hashes"),
    "sglang-hicache-file": KeyCode("sglang", "sglang_names", "files"),
    "sglang-hicache-nixl": KeyCode("sglang", "sglang_names", "pieces"),
    "sglang-hicache-eic": KeyCode("sglang", "sglang_names", "eic"),
    "sglang-hicache-mooncake": KeyCode("sglang", "sglang_names", "objects"),
}


def settings(manifest: Manifest, requests: list[Request]) -> Settings:
    """Return what the script of a deployment's connector is given."""
    connector = manifest.value("cache.connector")
    given = {
        "module": KEY_CODE[connector].module,
        "store": KEY_CODE[connector].store,
        "tensor": manifest.value("parallelism.tensor"),
        "pipeline": manifest.value("parallelism.pipeline"),
        "decode_context": manifest.value("parallelism.decode_context"),
        "requests": [_asked(manifest, one) for one in requests],
    }
    return {**given, **(_sglang if connector.startswith("sglang-") else _vllm)(manifest, connector)}


def _asked(manifest: Manifest, request: Request) -> Settings:
    asked: Settings = {"token_ids": list(request.token_ids), "salt": request.salt}
    if request.adapter is not None:
        path = manifest.value("adapters")[request.adapter]["path"]
        asked["adapter"] = {"name": request.adapter, "path": path}
    asked["media"] = [vars(one) for one in request.media]
    asked["embeds"] = None if request.embeds is None else request.embeds.hex()
    return asked


def _vllm(manifest: Manifest, connector: str) -> Settings:
    compute, kept = manifest.value("precision.compute"), manifest.data["precision"]["kv_cache"]
    chunk, space = manifest.value("cache.chunk_size"), manifest.value("cache.namespace")
    extra: Settings = {}
    flags = manifest.value("engine.args") or {}
    variables = {name: value for name, value in flags.items() if name.startswith(("LMCACHE_", "VLLM_"))}
    if connector.startswith("vllm-offload"):
        tier: Settings = {"type": "fs", "root_dir": f"kv/{space}"}
        if connector == "vllm-offload-object":
            tier = {**STORE, **({} if space is None else {"prefix": space})}
        extra = {**TIER, "secondary_tiers": [tier], **({} if chunk is None else {"block_size": chunk})}
    elif connector == "vllm-mooncake":
        extra = {} if space is None else {"cache_prefix": space}
    elif connector == "vllm-example":
        extra = {"shared_storage_path": "shared"}
    elif connector == "lmcache":
        variables["LMCACHE_CHUNK_SIZE"] = str(chunk)
    elif connector == "aibrix":
        own = {"BLOCK_SIZE": chunk, "L2_CACHE_NAMESPACE": space}
        variables |= {f"AIBRIX_KV_CACHE_OL_{name}": str(value) for name, value in own.items() if value is not None}
    return {
        "model": manifest.value("model.id"),
        "served_name": manifest.value("model.served_name"),
        "revision": manifest.value("model.revision"),
        "config": manifest.value("model.config"),
        "dtype": compute,
        "cache_dtype": "auto" if kept == compute else kept,
        "block_size": manifest.value("engine.block_size"),
        "layout": LAYOUTS[manifest.value("engine.kv_layout")],
        "max_model_len": manifest.value("engine.max_model_len"),
        "attention_backend": manifest.value("engine.attention_backend"),
        "algorithm": manifest.value("engine.prefix_hash.algorithm"),
        "seed": manifest.value("engine.prefix_hash.seed"),
        "extra": extra,
        "variables": variables,
        "chunk": chunk,
        "namespace": space,
    }


def _sglang(manifest: Manifest, _connector: str) -> Settings:
    space, layout = manifest.value("cache.namespace"), manifest.value("engine.kv_layout")
    return {
        "model_name": manifest.value("model.served_name") or manifest.value("model.id"),
        "mla": uses_mla(manifest),
        "page_size": manifest.value("engine.block_size"),
        "layout": layout,
        "extra": {} if space is None else {"extra_backend_tag": space},
    }
