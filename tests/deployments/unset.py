"""What a server's bare command says of a manifest: nothing is set, so the engine's defaults apply."""

from __future__ import annotations

from typing import Any

UNSET: dict[str, Any] = {
    "engine.name": "vllm",
    "engine.image": None,
    "engine.attention_backend": None,
    "engine.block_size": None,
    "engine.max_model_len": None,
    "engine.kv_layout": None,
    "engine.prefix_hash.algorithm": None,
    "engine.prefix_hash.seed": None,
    "engine.speculative": None,
    "engine.args": {},
    "model.quantization": None,
    "model.revision": None,
    "model.served_name": None,
    "parallelism.tensor": 1,
    "parallelism.pipeline": 1,
    "parallelism.data": 1,
    "parallelism.expert": 1,
    "parallelism.decode_context": 1,
    "parallelism.prefill_context": 1,
    "adapters": [],
    "request_features": [],
    "roles": None,
    "weights.mutable": False,
    "tokenizer.options": {},
    "cache.connector": None,
    "cache.location": None,
    "cache.namespace": None,
    "cache.chunk_size": None,
    "cache.serde": None,
}
