"""Servers on the loopback interface that say what they run with, in the shapes of real ones.

vLLM's answers have the shape of a real one's (0.32.0 on the CPU; ``tests/engines`` asks one), SGLang's that of
sglang/srt/entrypoints/http_server.py and srt/arg_groups/fields, 0.5.23 (read, not run).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.corpora.engine_server import Answer

TIER = {"type": "fs", "root_dir": "/kv/support"}
TRANSFER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [TIER]},
}
ROPE = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
VLLM_LINE = (
    "vllm serve /models/support --served-model-name support --tensor-parallel-size 2 --dtype bfloat16"
    " --max-model-len 512 --block-size 16 --kv-cache-dtype fp8_e4m3 --prefix-caching-hash-algo sha256_cbor"
    f" --enable-lora --lora-modules billing=/adapters/billing --hf-overrides '{json.dumps(ROPE)}'"
    f" --kv-transfer-config '{json.dumps(TRANSFER)}'"
)
SGLANG_LINE = (
    "python -m sglang.launch_server --model-path /models/support --served-model-name support --tp-size 2"
    " --dtype bfloat16 --context-length 512 --page-size 64 --kv-cache-dtype fp8_e4m3 --admin-api-key given"
    " --enable-hierarchical-cache --hicache-storage-backend file"
)
_CACHE = {"block_size": 16, "cache_dtype": "fp8_e4m3", "prefix_caching_hash_algo": "sha256_cbor", "num_gpu_blocks": 9}

Answers = dict[str, Any]


def vllm_answers() -> Answers:
    """Return what a vLLM answers that ``VLLM_LINE`` starts, by path."""
    card = {"object": "model", "owned_by": "vllm", "parent": None}
    config = {
        "model_config": {
            "model": "/models/support",
            "dtype": "torch.bfloat16",
            "max_model_len": 512,
            "revision": None,
            "hf_token": "hf_abcdefghijklmnopqrst",
            "hf_overrides": ROPE,
        },
        "cache_config": {**_CACHE, "enable_prefix_caching": True},
        "parallel_config": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
        },
        "kv_transfer_config": {**TRANSFER, "engine_id": "8f0c", "kv_port": 14579},
    }
    labels = ",".join(f'{name}="{value}"' for name, value in {**_CACHE, "kv_cache_layout": None, "engine": "0"}.items())
    return copy.deepcopy(
        {
            "/version": {"version": "0.33.0"},
            "/v1/models": {
                "data": [
                    {**card, "id": "support", "root": "/models/support", "max_model_len": 512},
                    {**card, "id": "billing", "root": "/adapters/billing", "parent": "support"},
                ]
            },
            "/server_info?config_format=json": {"vllm_config": config, "vllm_env": {}, "system_env": {}},
            "/metrics": f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n",
        }
    )


def sglang_answers() -> Answers:
    """Return what an SGLang answers that ``SGLANG_LINE`` starts, by path."""
    return {
        "/model_info": {
            "model_path": "/models/support",
            "served_model_name": "support",
            "tokenizer_path": "/models/support",
        },
        "/server_info": {
            "version": "0.5.23",
            "admin_api_key": "given",
            "dtype": "bfloat16",
            "context_length": 512,
            "page_size": 64,
            "kv_cache_dtype": "fp8_e4m3",
            "tp_size": 2,
            "pp_size": 1,
            "dcp_size": 1,
            "attn_cp_size": 1,
            "json_model_override_args": "{}",
            "hicache_storage_backend": "file",
            "enable_lmcache": False,
            "internal_states": [],
        },
        "/v1/models": {"data": [{"id": "support", "root": "support", "parent": None, "max_model_len": 512}]},
    }


def telling(answers: Mapping[str, Any]) -> Callable[[str, str, Any], Answer]:
    """Answer with these, by path, and nothing else; a status and a body where it is a pair."""

    def answer(method: str, path: str, _: Any) -> Answer:
        missing = 404, {"detail": "Not Found"}
        found = answers.get(path, missing) if method == "GET" else missing
        return found if isinstance(found, tuple) else (200, found)

    return answer
