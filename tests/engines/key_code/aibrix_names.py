"""Run with AIBrix's wheel beside vLLM: its connector and its shared-folder store name the blocks.

Ranks are said for it, and no memory is pinned; every name is made by the code of the wheel.
"""

# ruff: noqa: E402  (stand-ins are made before what imports them)

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from absent import stand_in  # type: ignore[import-not-found]  # it lies beside this file where it runs

stand_in("flashinfer", "netifaces", "nvtx", "pyroscope", "redis", "rocksdict", "validators", "zstandard")

import torch
from aibrix_kvcache.cache_hashable import TokenListView
from aibrix_kvcache.integration.vllm.kv_connector import aibrix_offloading_connector_type1 as connector
from vllm_names import vllm_config  # type: ignore[import-not-found]

Settings = dict[str, Any]
EMPTY = torch.empty
SHARED = {
    "AIBRIX_KV_CACHE_OL_L1_CACHE_ENABLED": "0",
    "AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND": "SHFS",
    "AIBRIX_KV_CACHE_OL_L1_CACHE_CAPACITY_GB": "0.1",
    "AIBRIX_KV_CACHE_OL_L2_CACHE_INGESTION_TYPE": "ALL",
    "VLLM_AIBRIX_SYNC_GRANULARITY": "NONE",  # ranks wait for nobody
}


def unpinned(*shape: Any, **options: Any) -> torch.Tensor:
    """Memory as there is without a GPU."""
    options.pop("pin_memory", None)
    return EMPTY(*shape, **options)


def names(given: Settings) -> list[list[str]]:
    """What lies in the shared folder once every rank has stored the blocks of each request."""
    config = vllm_config(given)
    found = []
    for asked in given["requests"]:
        with TemporaryDirectory() as folder:
            variables = {**SHARED, **given.get("variables", {}), "AIBRIX_KV_CACHE_OL_SHFS_ROOT": folder}
            with patch.dict(os.environ, variables):
                for rank in range(given["tensor"] * given["pipeline"]):
                    store(config, rank, given, asked["token_ids"])
            found.append(sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()))
    return found


def store(config: Any, rank: int, given: Settings, token_ids: list[int]) -> None:
    """Store a prompt's blocks as one rank of the engine does."""
    config.parallel_config.rank = rank
    backend = MagicMock()
    backend.get_name.return_value = given["attention_backend"]
    worker = connector.AIBrixOffloadingConnectorWorker.__new__(connector.AIBrixOffloadingConnectorWorker)
    with (
        patch.multiple(
            connector,
            get_tp_group=lambda: SimpleNamespace(rank_in_group=rank % given["tensor"], cpu_group=None),
            get_attn_backend=lambda *_args, **_options: backend,
        ),
        patch.object(torch, "empty", unpinned),
    ):
        worker._init_worker(config)
        tokens = TokenListView(token_ids)
        whole = tokens[: len(token_ids) // worker.cache.block_size * worker.cache.block_size]
        worker.cache.put(None, whole, worker.cache.allocate_for(None, whole).value)
        worker.cache.flush()
        worker.cache.close()
