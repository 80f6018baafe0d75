"""Deployments to rehearse, and what changes between two of them."""

from __future__ import annotations

from typing import Any

from kvgate.rules.manifest import Manifest
from tests.rules.clean import clean, digest

BASE: dict[str, Any] = {
    "cache.location": "/kv",
    "cache.chunk_size": 64,
    "cache.namespace": "prod-a",
    "parallelism.tensor": 1,
}
WEIGHTS = {"weights.checkpoint.digest": digest("9"), "weights.checkpoint.kv_digest": digest("8")}
ROPE = {"model.config.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
WINDOWED = {
    "model.config.model_type": "mistral",
    "model.config.architectures": ["MistralForCausalLM"],
    "model.config.sliding_window": 4096,
}
NARROWER = {**WINDOWED, "model.config.sliding_window": 2048}
TEMPLATE = {"chat_template.digest": digest("a1"), "chat_template.tree": digest("a2")}
TENANTS = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}
SALT_DROPPED = {"cache.tenancy": {"boundary": "tenant", "carried_by": None}, "request_features": []}
HALF = {"precision.compute": "float16", "precision.kv_cache": "float16"}
EIGHT_BITS = {"precision.kv_cache": "fp8_e4m3"}
OFFLOAD = {"cache.connector": "vllm-offload-fs", "cache.version": None, "cache.chunk_size": None}
OWN = {"cache.connector": "own-store", "cache.version": None}
ROLLED = {"cache.namespace": "prod-b"}
MOVED = {"cache.location": "/kv-b"}


def deployment(*changes: dict[str, Any]) -> Manifest:
    """The clean deployment with changes, later ones over earlier."""
    merged = dict(BASE)
    for change in changes:
        merged |= change
    return clean(merged)


def adapter(letter: str) -> dict[str, Any]:
    """One adapter of this name, whatever its bytes."""
    one = {"name": "billing", "path": "/adapters/billing", "digest": digest(letter), "rank": 16, "alpha": 32}
    return {"adapters": [one], "request_features": ["lora"]}


def own_key(*fields: str) -> dict[str, Any]:
    """An application's own store whose key holds these fields."""
    return {**OWN, "cache.key_fields": list(fields)}
