"""Run with LMCache beside vLLM: LMCache's own code names what it stores, inside the engine and in its server.

Which rank an engine's process has is said for it; every name is made by the code of the wheel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from lmcache.integration.vllm import utils as inside
from lmcache.integration.vllm.lmcache_mp_connector import (
    build_parallel_strategy_from_vllm_config,
    get_dcp_decorated_model_name,
)
from lmcache.v1.distributed.api import ipc_key_to_object_keys
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import _object_key_to_filename
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from lmcache.v1.token_database import ChunkedTokenDatabase
from vllm.multimodal.inputs import PlaceholderRange
from vllm_names import kv_cache_config, vllm_config  # type: ignore[import-not-found]

Settings = dict[str, Any]


def token_ids(asked: Settings) -> torch.Tensor:
    """What LMCache hashes: the prompt's ids, other ones where media stand."""
    media = asked["media"]
    return inside.apply_mm_hashes_to_token_ids(
        torch.tensor(asked["token_ids"]),
        [one["identifier"] for one in media],
        [PlaceholderRange(one["offset"], one["length"]) for one in media],
    )


def ranks(given: Settings) -> Iterator[Any]:
    """The engine's config on each rank."""
    config = vllm_config(given)
    for rank in range(config.parallel_config.world_size):
        config.parallel_config.rank = rank
        yield config


def in_process(given: Settings) -> list[list[str]]:
    found = []
    for asked in given["requests"]:
        ours = []
        for config in ranks(given):
            inside._config_instance = None  # it is read once for each process
            metadata, settings = inside.create_lmcache_metadata(config)
            if metadata.use_mla and metadata.worker_id:
                continue  # the first rank stores what all hold
            database = ChunkedTokenDatabase(settings, metadata)
            tags = {"lmcache.tag.ns": given["namespace"]} if given["namespace"] else {}
            ours += [key.to_string() for _, _, key in database.process_tokens(token_ids(asked), request_configs=tags)]
        found.append(ours)
    return found


def in_the_server(given: Settings) -> list[list[str]]:
    hasher = TokenHasher(chunk_size=given["chunk"])
    found = []
    for asked in given["requests"]:
        ids = token_ids(asked).tolist()
        hashes = [TokenHasher.hash_to_bytes(one) for one in hasher.compute_chunk_hashes(ids)]
        ours = []
        for config in ranks(given):
            strategy = build_parallel_strategy_from_vllm_config(config, 1)
            if strategy.is_kv_writer:
                key = IPCCacheServerKey(
                    model_name=get_dcp_decorated_model_name(config, kv_cache_config(config)),
                    world_size=strategy.kv_world_size,
                    worker_id=strategy.kv_worker_id,
                    token_ids=tuple(ids),
                    start=0,
                    end=len(ids),
                    request_id="one",
                    cache_salt=asked["salt"] or given["namespace"] or "",
                )
                (objects,) = ipc_key_to_object_keys(key, hashes, [0])
                ours += [_object_key_to_filename(one) for one in objects]
        found.append(ours)
    return found


STORES = {"inside": in_process, "server": in_the_server}


def names(given: Settings) -> list[list[str]]:
    """Name the entries of each request."""
    os.environ.pop("PYTHONHASHSEED", None)
    if given["seed"] is not None:
        os.environ["PYTHONHASHSEED"] = given["seed"]
    with patch.dict(os.environ, given["variables"]):
        return STORES[given["store"]](given)
