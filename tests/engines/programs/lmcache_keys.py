"""What LMCache's own code names, inside an engine and as a server, and what it really stores inside one.

Reads cases on standard input, ``{"inside": [...], "server": [...]}``; writes the names of each on standard output in
the same form. A case with a ``store`` is stored there by LMCache's engine, from tensors on the CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy
from lmcache.utils import mock_up_broadcast_fn, mock_up_broadcast_object_fn
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ipc_key_to_object_keys
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import _object_key_to_filename
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.token_database import ChunkedTokenDatabase

LAYERS, HEADS, SIZE = 2, 2, 16


class Zeros(GPUConnectorInterface):  # type: ignore[misc]  # LMCache is not what types are checked with
    """Stands for a GPU whose cache holds zeros."""

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size([2, LAYERS, num_tokens, HEADS * SIZE])

    def from_gpu(self, memory_obj: Any, *_: Any, **__: Any) -> None:
        memory_obj.tensor.zero_()

    def batched_from_gpu(self, memory_objs: Any, *_: Any, **__: Any) -> None:
        for one in memory_objs:
            self.from_gpu(one)

    def to_gpu(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    batched_to_gpu = to_gpu


def inside(number: int, case: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a case, in the order in which LMCache makes them."""
    if case["seed"] is None:
        os.environ.pop("PYTHONHASHSEED", None)  # which only matters to what does not use Python's own hash
    settings = {"chunk_size": case["chunk"], "pre_caching_hash_algorithm": case["algorithm"], "local_cpu": False}
    if case["store"] is not None:
        settings |= {"remote_url": case["store"], "remote_serde": "naive", "max_local_cpu_size": 0.1}
    config = LMCacheEngineConfig.from_defaults(**settings)
    tags = {f"lmcache.tag.{name}": value for name, value in case["tags"].items()}
    for worker in range(case["ranks"]):
        metadata = LMCacheMetadata(
            model_name=case["model"],
            world_size=case["ranks"],
            local_world_size=case["ranks"],
            worker_id=worker,
            local_worker_id=worker,
            kv_dtype=getattr(torch, case["dtype"]),
            kv_shape=(LAYERS, 2, case["chunk"], HEADS, SIZE),
        )
        database = ChunkedTokenDatabase(config, metadata)
        for _, _, key in database.process_tokens(case["token_ids"], request_configs=tags):
            yield key.to_string()
    if case["store"] is not None:
        engine = LMCacheEngineBuilder.get_or_create(
            str(number), config, metadata, Zeros(), mock_up_broadcast_fn, mock_up_broadcast_object_fn
        )
        engine.post_init()
        ids = torch.tensor(case["token_ids"])
        engine.store(ids, request_configs=tags)
        while engine.lookup(ids, request_configs=tags) < len(ids) // case["chunk"] * case["chunk"]:
            time.sleep(0.05)


def served(case: dict[str, Any]) -> Iterator[str]:
    """Yield what every rank of an engine names through a server: keys, and files' names."""
    hashes = TokenHasher(case["chunk"]).compute_chunk_hashes(case["token_ids"])
    for worker in range(case["tensor"] * case["pipeline"]):
        ranks = ParallelStrategy(
            case["latents"],
            case["tensor"] * case["pipeline"],
            worker,
            case["tensor"],
            case["pipeline"],
            case["servers"],
        )
        asked = IPCCacheServerKey.from_token_ids(
            case["model"], ranks.kv_world_size, ranks.kv_worker_id, case["token_ids"], cache_salt=case["salt"]
        )
        for key in ipc_key_to_object_keys(asked, hashes, [0])[0]:
            yield _object_key_to_string(key)
            yield _object_key_to_filename(key)


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    made = {
        "server": [sorted(set(served(case))) for case in cases["server"]],
        "inside": [list(inside(number, case)) for number, case in enumerate(cases["inside"])],
    }
    print(json.dumps(made), flush=True)
    os._exit(0)  # what LMCache leaves running would keep the process
