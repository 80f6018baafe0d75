"""What the sources say of each connector's key, and how deployments differ in one dimension.

Written down from the sources on its own, not from the profiles: the tests hold the two against each other.
"read": from the source, with the file and line that the profile names; nothing of it was run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from kvgate.rules.catalogue import dimensions
from kvgate.rules.profile import Profile, shipped_profiles
from tests.rules.clean import digest
from tests.rules.served import served

Changes = dict[str, Any]

_VLLM: Changes = {"cache.version": None}
_SGLANG: Changes = {"engine.name": "sglang", "engine.version": "0.5.23", "cache.version": None}
_COMMITS = {"vllm-ascend": "182b75e", "flexkv": "34ab141" + "0" * 33, "llm-d-fs": "0.22", "aibrix": "0.8.0"}

OTHER: dict[str, dict[str, Any]] = {
    "weights": {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("9")},
    "weights.served": {"weights.served": served("9")},
    "weights.mutable": {},
    "model.id": {"model.id": "/models/other"},
    "model.served_name": {"model.served_name": "other"},
    "model.revision": {"model.revision": "b" * 40},
    "model.config": {"model.config/rms_norm_eps": 1e-06},
    "model.quantization": {"model.quantization": "awq"},
    "model.code": {"model.code": digest("9")},
    "model.processor": {"model.processor": digest("9")},
    "tokenizer": {"tokenizer.effective": digest("9")},
    "tokenizer.renderer": {"tokenizer.renderer.tokenizers": "0.22.0"},
    "tokenizer.options": {"tokenizer.options/content_format": "openai"},
    "chat_template": {"chat_template.digest": digest("9"), "chat_template.tree": digest("9")},
    "precision.compute": {"precision.compute": "float16"},
    "precision.kv_cache": {"precision.kv_cache": "fp8_e4m3"},
    "precision.kv_scales": {"precision.kv_scales": digest("9")},
    "adapters": {"adapters": [{"name": "billing", "digest": digest("9")}]},
    "parallelism.tensor": {"parallelism.tensor": 4},
    "parallelism.pipeline": {"parallelism.pipeline": 2},
    "parallelism.expert": {"parallelism.expert": 2},
    "parallelism.context": {"parallelism.decode_context": 2},
    "engine.name": {"engine.name": "sglang"},
    "engine.version": {"engine.version": "0.32.0"},
    "engine.build": {"engine.packages": digest("9")},
    "engine.accelerator": {"engine.accelerator": "B200"},
    "engine.attention_backend": {"engine.attention_backend": "FLASHINFER"},
    "engine.block_size": {"engine.block_size": 32},
    "engine.kv_layout": {"engine.kv_layout": "HND"},
    "engine.max_model_len": {"engine.max_model_len": 4096},
    "engine.prefix_hash": {"engine.prefix_hash.seed": "1"},
    "engine.speculative": {"engine.speculative": {"method": "eagle"}},
    "engine.args": {"engine.args/enable-dbo": True},
    "cache.version": {},
    "cache.location": {"cache.location": "redis://cache-2:6379/0"},
    "cache.chunk_size": {"cache.chunk_size": 128},
    "cache.serde": {"cache.serde": "cachegen"},
    "cache.namespace": {"cache.namespace": "prod-b"},
    "cache.tenancy": {},
    "cache.key_fields": {"cache.key_fields": ["token_ids"]},
    "cache.epoch": {"cache.epoch": 15},
    "inputs.tool_schemas": {"inputs.tool_schemas": {}},
    "inputs.document_sets": {"inputs.document_sets": {}},
    "inputs.system_prompts": {"inputs.system_prompts": {}},
}
# Where the new side's own fault would hide it, or only the step up is covered, the old side differs instead.
OLD_OTHER: dict[str, dict[str, Any]] = {
    "weights.mutable": {"weights.mutable": True},
    "weights.served": {"weights.served": served("8")},
    "cache.version": {"cache.version": "0.4.9"},
    "cache.tenancy": {"cache.tenancy": {"boundary": "tenant", "carried_by": None}},
}


ALWAYS = frozenset({"request_features", "roles", "cache.connector"})
"""What no key is asked about: what requests carry is asked on its own; pools and connectors are compared whole."""

DIMENSIONS = [
    one.id for one in dimensions() if one.compare not in ("label", "replicas") and one.id not in ALWAYS
]  # fmt: skip

_TEXT = "tokenizer tokenizer.renderer tokenizer.options chat_template"
_INPUTS = "inputs.tool_schemas inputs.document_sets inputs.system_prompts"


@dataclass(frozen=True)
class Key:
    """What a connector's key makes of the dimensions: those that are not listed do not separate.

    Attributes:
        base: what a clean deployment changes to use this connector, so that its profile speaks.
        separates: dimensions that every entry's key holds.
        adapter: whether the keys of an adapter's entries hold it.
        hashed: dimensions that separate only because token hashes change, besides those of text.
        rejects: refused when connecting.
        unknown: not known.
        requests: what requests may carry that the key holds.
        asked: what they may carry of which it is not known, or known only on a condition.
        collides: two models whose names meet in this connector's keys; ``None`` where names are not compared.
        apart: two models whose names do not meet; ``None`` where every two do.
        text: how the dimensions of text enter.
        in_worker: entries end with the worker.
        converted: dimensions whose unlike values are converted when blocks are read, or refused.
        read: where it is read, release or commit, file and lines; what of it is run as well stands in ``RUN``.
    """

    base: Changes
    read: str
    separates: str = ""
    adapter: str = "no"
    hashed: str = ""
    rejects: str = ""
    unknown: str = ""
    requests: str = ""
    asked: str = ""
    apart: Changes | None = None
    collides: Changes = field(default_factory=lambda: {"model.id": "other/model"})
    text: str = "token-ids"
    in_worker: bool = False
    converted: str = ""

    def of(self, dimension: str) -> str:
        """Return what the key makes of a dimension."""
        for name in ("separates", "hashed", "rejects", "unknown"):
            if dimension in getattr(self, name).split():
                return {"hashed": "token-ids"}.get(name, name)
        if dimension == "adapters":
            return self.adapter
        if dimension in _TEXT.split():
            return self.text
        return "token-ids" if dimension in _INPUTS.split() else "no"


_NAME: Changes = {"model.id": "other/model"}
_LAST: Changes = {"model.id": "acme/other"}
_BLOCK_HASH = "lora cache_salt multimodal prompt_embeds"
_HICACHE = Key(
    read="",
    base={**_SGLANG, "model.served_name": None},
    adapter="adapter",
    hashed="engine.block_size",
    unknown="engine.speculative",
    requests="lora cache_salt multimodal",
    asked="prompt_embeds",
    apart=_NAME,
    collides={"model.id": "acme-support-8b"},
)
_UNKNOWN_HERE = "cache.location cache.chunk_size cache.namespace"

KEYS: dict[str, Key] = {
    "lmcache": Key(
        read="lmcache 0.5.6 wheel, lmcache/utils.py:418-475, v1/token_database.py:234-364",
        base={},
        separates=(
            "model.id precision.kv_cache parallelism.tensor parallelism.pipeline engine.prefix_hash "
            "cache.location cache.namespace"
        ),
        hashed="cache.chunk_size",
        requests="multimodal",
        asked="prompt_embeds",
        apart=_NAME,
        collides={},
    ),
    "lmcache-mp": Key(
        read="lmcache 0.5.6 wheel, lmcache/v1/distributed/api.py:99-170, v1/multiprocess/token_hasher.py:28-80",
        base={},
        separates="model.id parallelism.tensor parallelism.pipeline cache.location cache.namespace",
        hashed="cache.chunk_size",
        requests="cache_salt multimodal",
        asked="prompt_embeds",
        apart=_NAME,
        collides={},
    ),
    "vllm-offload-fs": Key(
        read="vllm 0.33.0 wheel, vllm/v1/kv_offload/file_mapper.py:21-124, tiering/fs/manager.py:174-180 (0.32.0)",
        base=_VLLM,
        separates=(
            "model.id precision.kv_cache parallelism.tensor parallelism.pipeline parallelism.context engine.block_size "
            "engine.prefix_hash cache.location cache.chunk_size cache.namespace"
        ),
        adapter="adapter",
        requests=_BLOCK_HASH,
        apart=_NAME,
        collides={},
    ),
    "vllm-offload-object": Key(
        read="vllm 0.33.0 wheel, vllm/v1/kv_offload/file_mapper.py:21-124, tiering/obj/manager.py:170-174 (0.32.0)",
        base=_VLLM,
        separates=(
            "model.id precision.kv_cache parallelism.tensor parallelism.pipeline parallelism.context engine.block_size "
            "engine.prefix_hash cache.location cache.namespace"
        ),
        adapter="adapter",
        requests=_BLOCK_HASH,
        apart=_NAME,
        collides={},
    ),
    "vllm-mooncake": Key(
        read="vllm 0.33.0 wheel, vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/data.py:100-178",
        base=_VLLM,
        separates="model.id engine.prefix_hash cache.location cache.namespace",
        adapter="adapter",
        unknown="engine.block_size cache.chunk_size",
        requests=_BLOCK_HASH,
        apart=_LAST,
        collides={"model.id": "/models/other/support-8b/"},
    ),
    "vllm-umbp": Key(
        read="vllm 0.33.0 wheel, vllm/distributed/kv_transfer/kv_connector/v1/umbp/data.py:132-243",
        base={**_VLLM, "cache.namespace": None},
        separates=(
            "model.id precision.kv_cache parallelism.tensor parallelism.pipeline parallelism.context "
            "engine.block_size engine.kv_layout engine.prefix_hash engine.speculative cache.namespace"
        ),
        adapter="adapter",
        unknown="model.revision precision.compute precision.kv_scales cache.location cache.chunk_size",
        requests="lora cache_salt multimodal",
        asked="prompt_embeds",
        apart=_NAME,
        collides={},
    ),
    "vllm-apc": Key(
        read="vllm 0.33.0 wheel, vllm/v1/core/kv_cache_utils.py:590-735",
        base=_VLLM,
        separates="engine.prefix_hash",
        adapter="adapter",
        hashed="engine.block_size",
        requests=_BLOCK_HASH,
        in_worker=True,
    ),
    "vllm-nixl": Key(
        read="vllm 0.33.0 wheel, vllm/distributed/kv_transfer/kv_connector/v1/nixl/metadata.py:146-190",
        base=_VLLM,
        rejects=(
            "model.id precision.compute precision.kv_cache engine.version engine.attention_backend "
            "engine.speculative engine.kv_layout"
        ),
        unknown="parallelism.pipeline parallelism.context engine.block_size",
        converted="parallelism.tensor",
        requests=f"{_BLOCK_HASH} template_kwargs",
        text="no",
    ),
    "vllm-example": Key(
        read="vllm 0.32.0 wheel, vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py:403-459",
        base=_VLLM,
        separates="cache.location",
        requests="multimodal",
    ),
    "vllm-hf3fs": Key(
        read="vllm 0.32.0 wheel, vllm/distributed/kv_transfer/kv_connector/v1/hf3fs/hf3fs_connector.py:946-1009",
        base=_VLLM,
        hashed="engine.block_size",
        unknown="cache.location",
    ),
    "vllm-ascend": Key(
        read=(
            "vllm-project/vllm-ascend 182b75e, "
            "vllm_ascend/distributed/kv_transfer/kv_pool/ascend_store/metadata.py:75-171"
        ),
        base={"cache.version": _COMMITS["vllm-ascend"]},
        separates="model.id engine.prefix_hash",
        adapter="adapter",
        unknown="engine.block_size cache.location cache.chunk_size",
        requests="lora cache_salt multimodal",
        asked="prompt_embeds",
        apart=_LAST,
        collides={"model.id": "other/support-8b"},
    ),
    "sglang-hicache-file": replace(
        _HICACHE,
        read="sglang 0.5.23 wheel, srt/mem_cache/hicache_storage.py:728-775, srt/managers/cache_controller.py:748-812",
        separates=(
            "model.id model.served_name parallelism.tensor parallelism.pipeline parallelism.context cache.location"
        ),
    ),
    "sglang-hicache-nixl": replace(
        _HICACHE,
        read="sglang 0.5.23 wheel, srt/mem_cache/storage/nixl/hicache_nixl.py:97-114",
        separates="model.id model.served_name parallelism.tensor cache.location",
    ),
    "sglang-hicache-mooncake": replace(
        _HICACHE,
        read="sglang 0.5.23 wheel, srt/mem_cache/storage/mooncake_store/mooncake_store.py:456-474",
        separates=(
            "model.id model.served_name parallelism.pipeline parallelism.context cache.location cache.namespace"
        ),
    ),
    "sglang-hicache-hf3fs": replace(
        _HICACHE,
        read="sglang 0.5.23 wheel, srt/mem_cache/storage/hf3fs/storage_hf3fs.py:272-380",
        unknown="engine.speculative cache.location",
        apart=None,
        collides={"model.id": "other/model"},
    ),
    "sglang-hicache-eic": replace(
        _HICACHE,
        read="sglang 0.5.23 wheel, srt/mem_cache/storage/eic/eic_storage.py:202-318",
        separates="model.id model.served_name parallelism.tensor cache.location cache.namespace",
        unknown="engine.kv_layout engine.speculative",
        apart={"model.id": "acme-support-8b"},
        collides={},
    ),
    "trtllm": Key(
        read="NVIDIA/TensorRT-LLM 0e14b46, cpp/include/tensorrt_llm/batch_manager/blockKey.h:44-53",
        base={},
        adapter="adapter",
        unknown=(
            "parallelism.tensor parallelism.pipeline parallelism.context engine.block_size engine.kv_layout "
            "engine.prefix_hash engine.speculative cache.chunk_size"
        ),
        requests="lora cache_salt multimodal",
        asked="prompt_embeds",
        in_worker=True,
    ),
    "dynamo-kvbm": Key(
        read="ai-dynamo/dynamo 7b92686, lib/kv-hashing/src/salt.rs:24-51",
        base={},
        adapter="unknown",
        hashed="engine.block_size",
        unknown=f"cache.version {_UNKNOWN_HERE}",
        asked="lora cache_salt prompt_embeds",
    ),
    "aibrix": Key(
        read="vllm-project/aibrix e3e10f9, aibrix_kvcache/l2/l2_cache.py:85-114, l2/connectors/connector.py:85-107",
        base={"cache.version": _COMMITS["aibrix"], "cache.chunk_size": None},
        separates="parallelism.tensor engine.block_size cache.location cache.chunk_size cache.namespace",
        asked="prompt_embeds",
    ),
    "flexkv": Key(
        read="taco-project/FlexKV d142f73, flexkv/external/mooncake_store_keys.py:26-42",
        base={"cache.version": _COMMITS["flexkv"]},
        adapter="unknown",
        unknown=_UNKNOWN_HERE,
        asked="lora cache_salt prompt_embeds",
    ),
    "llm-d-fs": Key(
        read="llm-d/llm-d-kv-cache 7be76e1, kv_connectors/llmd_fs_backend/llmd_fs_backend/file_mapper.py:63-121",
        base={"cache.version": _COMMITS["llm-d-fs"]},
        separates=(
            "model.id parallelism.tensor parallelism.pipeline parallelism.context engine.block_size "
            "engine.prefix_hash cache.location cache.chunk_size"
        ),
        adapter="adapter",
        requests="lora cache_salt multimodal",
        asked="prompt_embeds",
        apart=_NAME,
        collides={},
    ),
    "hosted-api": Key(
        read="platform.claude.com/docs, build-with-claude/prompt-caching: no code to read",
        base={"cache.version": None},
        separates="cache.namespace",
        adapter="unknown",
        unknown=" ".join(
            name
            for name in DIMENSIONS
            if name not in ("cache.namespace", "cache.epoch", "cache.key_fields", "adapters", *_INPUTS.split())
        ),
        asked="lora cache_salt multimodal prompt_embeds template_kwargs",
    ),
}

# Where one value of a clean deployment is the very one that a condition asks for, both sides set another.
BOTH: dict[tuple[str, str], tuple[Changes, Changes]] = {
    ("vllm-umbp", "cache.namespace"): ({"cache.namespace": "prod-a"}, {"cache.namespace": "prod-b"}),
    ("vllm-umbp", "engine.speculative"): (
        {"engine.speculative": {"method": "eagle", "model": "a"}},
        {"engine.speculative": {"method": "eagle", "model": "b"}},
    ),
    ("aibrix", "cache.chunk_size"): ({"cache.chunk_size": 16}, {"cache.chunk_size": 32}),
    **{(name, "engine.name"): ({}, {"engine.name": "vllm"}) for name in KEYS if name.startswith("sglang-")},
    **{
        (name, "model.served_name"): ({"model.served_name": "support"}, {"model.served_name": "other"})
        for name in KEYS
        if name.startswith("sglang-")
    },
}  # fmt: skip


_NAMED = "tokenizer tokenizer.renderer tokenizer.options chat_template adapters parallelism.tensor parallelism.pipeline"
_OF_VLLM = (
    f"{_NAMED} {_INPUTS} model.id model.served_name model.revision model.config precision.compute precision.kv_cache "
    "engine.block_size engine.kv_layout engine.max_model_len engine.prefix_hash"
)
_OF_SGLANG = (
    f"{_NAMED} {_INPUTS} model.id model.served_name parallelism.context engine.block_size engine.kv_layout "
    "cache.namespace"
)
RUN: dict[str, frozenset[str]] = {
    name: frozenset(dimensions.split())
    for name, dimensions in {
        "lmcache": f"{_OF_VLLM} parallelism.context cache.chunk_size cache.namespace".replace("adapters ", ""),
        "lmcache-mp": f"{_OF_VLLM} parallelism.context cache.chunk_size cache.namespace".replace("adapters ", ""),
        "vllm-example": f"{_OF_VLLM} parallelism.context",
        "vllm-hf3fs": _OF_VLLM.replace("adapters ", ""),
        "vllm-nixl": "model.id model.served_name model.revision model.config precision.compute precision.kv_cache "
        "engine.attention_backend engine.max_model_len engine.prefix_hash parallelism.tensor",
        "sglang-hicache-eic": _OF_SGLANG,
        "vllm-apc": f"{_OF_VLLM} parallelism.context",
        "vllm-offload-fs": f"{_OF_VLLM} parallelism.context cache.chunk_size cache.namespace",
        "vllm-offload-object": f"{_OF_VLLM} parallelism.context cache.chunk_size cache.namespace",
        "vllm-mooncake": f"{_OF_VLLM} parallelism.context cache.namespace",
        "sglang-hicache-file": _OF_SGLANG,
        "sglang-hicache-nixl": _OF_SGLANG,
        "sglang-hicache-mooncake": _OF_SGLANG,
        "aibrix": f"{_OF_VLLM} cache.chunk_size cache.namespace".replace("adapters ", ""),
    }.items()
}
"""What the connectors' own code is run with, both ways (tests/engines/test_key_code.py); the rest is read, not run."""


def base(connector: str) -> Changes:
    """Return what a clean deployment changes to use a connector."""
    return {"cache.connector": connector, **KEYS[connector].base}


def pair(connector: str, dimension: str) -> tuple[Changes, Changes]:
    """Return two deployments in front of one connector that differ in one dimension."""
    own = base(connector)
    old, new = BOTH.get((connector, dimension), (OLD_OTHER.get(dimension, {}), OTHER[dimension]))
    return {**own, **old}, {**own, **new}


def spoken() -> dict[str, Profile]:
    """Return the shipped profiles, those that were read at no one release as if every version were that release."""
    return {
        name: profile.model_copy(update={"versions": None})
        if profile.versions is not None and not profile.versions.said
        else profile
        for name, profile in shipped_profiles().items()
    }
