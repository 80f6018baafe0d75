"""A clean pair: a complete manifest, from which every test changes as little as it is about."""

from __future__ import annotations

import copy
from typing import Any

from kvgate.rules.manifest import Manifest, manifest_from

_ABSENT = object()


def digest(letter: str) -> str:
    """A well-formed digest that is recognisable in a failing test."""
    return "blake3:" + (letter * 64)[:64]


COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"

CLEAN: dict[str, Any] = {
    "schema": "kvgate/manifest/v1",
    "release": {"name": "support-assistant", "version": "2026.11.2", "owner": "team-serving"},
    "model": {
        "id": "acme/support-8b",
        "served_name": "support",
        "revision": COMMIT,
        "config": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
            "eos_token_id": 128001,
            "vocab_size": 128256,
        },
        "config_class": {"name": "LlamaConfig", "transformers": "5.24.0"},
        "quantization": None,
        "code": None,
        "processor": None,
    },
    "weights": {
        "checkpoint": {
            "digest": digest("a"),
            "kv_digest": digest("b"),
            "kv_rule": "1/llama",
            "layout": digest("c"),
            "tensors": 291,
            "bytes": 16060522496,
            "map": None,
        },
        "hub": None,
        "served": None,
        "mutable": False,
    },
    "tokenizer": {
        "path": "acme/support-8b",
        "files": {"tokenizer.json": digest("d"), "tokenizer_config.json": digest("e")},
        "effective": digest("f"),
        "built_by": {"transformers": "5.23.0", "tokenizers": "0.23.3"},
        "vocabulary": {"size": 128256, "digest": digest("1")},
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"},
        "renderer": {"engine": "vllm", "engine_version": "0.33.0", "transformers": "5.23.0", "tokenizers": "0.23.3"},
        "options": {"add_generation_prompt": True, "content_format": "string"},
        "snapshot": None,
    },
    "chat_template": {
        "digest": digest("2"),
        "tree": digest("3"),
        "source": "chat_template.jinja",
        "reads": ["bos_token", "messages"],
        "reads_clock": False,
        "clock": None,
    },
    "precision": {"compute": "bfloat16", "kv_cache": "bfloat16", "kv_scales": None},
    "adapters": [],
    "parallelism": {"tensor": 2, "pipeline": 1, "data": 1, "expert": 1, "decode_context": 1, "prefill_context": 1},
    "engine": {
        "name": "vllm",
        "version": "0.33.0",
        "image": "sha256:" + "4" * 64,
        "packages": digest("5"),
        "accelerator": "H200",
        "attention_backend": "FLASH_ATTN",
        "block_size": 16,
        "max_model_len": 8192,
        "kv_layout": "NHD",
        "prefix_hash": {"algorithm": "sha256_cbor", "seed": "0"},
        "speculative": None,
        "args": {"gpu-memory-utilization": 0.9},
    },
    "request_features": [],
    "roles": None,
    "cache": {
        "connector": "lmcache-mp",
        "version": "0.5.6",
        "location": "redis://cache-1:6379/0",
        "chunk_size": 256,
        "serde": "naive",
        "namespace": "prod-a",
        "tenancy": None,
        "key_fields": None,
        "epoch": 14,
        "ttl": "30d",
        "cleanup_owner": "team-serving",
    },
    "inputs": {
        "tool_schemas": {"billing": digest("6")},
        "document_sets": {"policies": digest("7")},
        "system_prompts": {"default": digest("8")},
    },
    "provenance": {"weights": "computed", "tokenizer": "computed", "chat_template": "computed", "adapters": "computed"},
}


def data(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the clean manifest's data with changes applied: dotted path to value, ``FORGET`` to leave it out.

    A key of a complete collection that holds dots is given as ``section/key``.
    """
    result = copy.deepcopy(CLEAN)
    for path, value in (changes or {}).items():
        dotted, slash, last = path.partition("/")
        parts = [*dotted.split("."), *([last] if slash else [])]
        target = result
        for part in parts[:-1]:
            if not isinstance(target.get(part), dict):
                target[part] = {}
            target = target[part]
        if value is FORGET:
            target.pop(parts[-1], None)
        else:
            target[parts[-1]] = copy.deepcopy(value)
    return result


FORGET = _ABSENT
"""The value that leaves a field out."""


def clean(changes: dict[str, Any] | None = None, source: str = "manifest.yaml") -> Manifest:
    """Return the clean manifest with changes applied, validated."""
    return manifest_from(data(changes), source)
