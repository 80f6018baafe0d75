"""Run in vLLM's environment: its own code names what it stores.

What a GPU, other ranks or a store would say is said for them; every name is made by the code of the wheel.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import vllm.config.vllm as config_module
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector, ReqMeta
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    RequestOffloadState,
    SchedulerOffloadConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_configs,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MLAAttentionSpec
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.request import Request

Settings = dict[str, Any]
MEMORY = 1 << 34
# A GPU has Triton, so that the runner is the one that serves there.
config_module.HAS_TRITON = True


def vllm_config(given: Settings) -> VllmConfig:
    folder = Path(given["model"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given["config"]))
    connector = {"fs": "OffloadingConnector", "obj": "OffloadingConnector", "mooncake": "MooncakeStoreConnector"}
    made = VllmConfig(
        model_config=ModelConfig(
            model=given["model"],
            served_model_name=given.get("served_name"),
            revision=given.get("revision"),
            skip_tokenizer_init=True,
            dtype=given["dtype"],
            max_model_len=given.get("max_model_len"),
            quantization=given.get("quantization"),
        ),
        cache_config=CacheConfig(block_size=given["block_size"], cache_dtype=given["cache_dtype"]),
        parallel_config=ParallelConfig(
            tensor_parallel_size=given["tensor"],
            pipeline_parallel_size=given["pipeline"],
            decode_context_parallel_size=given["decode_context"],
            enable_expert_parallel=given.get("expert", 1) > 1,
            distributed_executor_backend="mp",
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector.get(given["store"], "ExampleConnector"),
            kv_role="kv_both",
            kv_connector_extra_config=given["extra"],
        ),
    )
    made.cache_config.kv_cache_layout = given.get("layout", "LBNHC")
    return made


def kv_cache_config(config: VllmConfig) -> KVCacheConfig:
    """The groups that the engine makes of the layers of all ranks, each of which says what its own cache."""
    parallel, model = config.parallel_config, config.model_config
    kind = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    ranks = []
    for stage in range(parallel.pipeline_parallel_size):
        parallel.rank = stage * parallel.tensor_parallel_size
        first, end = model.get_layers_start_end_indices(parallel)
        spec = kind(
            block_size=config.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(parallel),
            head_size=model.get_head_size(),
            dtype=torch.uint8 if config.cache_config.cache_dtype.startswith("fp8") else model.dtype,
        )
        layers = {f"model.layers.{layer}.self_attn.attn": spec for layer in range(first, end)}
        ranks += [layers] * parallel.tensor_parallel_size
    parallel.rank = 0
    return generate_scheduler_kv_cache_config(get_kv_cache_configs(config, ranks, [MEMORY] * len(ranks)))


def request_of(given: Settings, asked: Settings, tokens: int) -> Request:
    """The request as the scheduler holds it, its blocks hashed."""
    os.environ.pop("PYTHONHASHSEED", None)
    if given["seed"] is not None:
        os.environ["PYTHONHASHSEED"] = given["seed"]
    function = get_hash_fn_by_name(given["algorithm"])
    init_none_hash(function)
    adapter = asked.get("adapter")
    embeds = asked.get("embeds")
    return Request(
        "one",
        asked["token_ids"] if embeds is None else None,
        SamplingParams(max_tokens=1),
        None,
        prompt_embeds=None if embeds is None else rows(embeds, len(asked["token_ids"])),
        lora_request=LoRARequest(adapter["name"], 1, adapter["path"]) if adapter else None,
        cache_salt=asked.get("salt"),
        mm_features=[
            MultiModalFeatureSpec(
                None, "image", media["identifier"], PlaceholderRange(media["offset"], media["length"])
            )
            for media in asked.get("media", ())
        ],
        block_hasher=get_request_block_hasher(tokens, function),
    )


def rows(embeds: str, count: int) -> torch.Tensor:
    """Embeddings from their bytes, a row for each token."""
    return torch.frombuffer(bytearray.fromhex(embeds), dtype=torch.float32).reshape(count, -1)


def handshake(given: Settings) -> list[list[str]]:
    """The hash that NIXL's peers compare when they connect, whatever is asked."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import compute_nixl_compatibility_hash

    return [[compute_nixl_compatibility_hash(vllm_config(given), given["attention_backend"])]] * len(given["requests"])


def names(given: Settings) -> list[list[str]]:
    """Name the entries of each request."""
    if given["store"] == "handshake":
        return handshake(given)
    with patch.dict(os.environ, given["variables"]):
        config = vllm_config(given)
        cached = kv_cache_config(config)
        _, tokens = resolve_kv_cache_block_sizes(cached, config)
        requests = [request_of(given, asked, tokens) for asked in given["requests"]]
        return STORES[given["store"]](config, cached, requests)


def hashes(_config: VllmConfig, _cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    return [[one.hex() for one in request.block_hashes] for request in requests]


def files(config: VllmConfig, cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    """Paths in the folder that two deployments share; each tier's own lies in it."""
    root = config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"][0]["root_dir"]
    with offloaded(config, cached, requests) as (spec, keys):
        tier = FileSystemTierManager(spec, view(), "fs", root)
        try:
            return [[tier.file_mapper.get_file_name(key) for key in ours] for ours in keys]
        finally:
            tier.shutdown()


def objects(config: VllmConfig, cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    nixl = ModuleType("nixl._api")
    with patch.dict(sys.modules, {"nixl": ModuleType("nixl"), "nixl._api": nixl}):
        from vllm.v1.kv_offload.tiering.obj import manager

        tier_of = config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"][0]
        with (
            patch.multiple(manager, nixl_agent=MagicMock(), nixl_agent_config=MagicMock()),
            offloaded(config, cached, requests) as (spec, keys),
        ):
            tier = manager.ObjectStoreSecondaryTierManager(
                spec, view(), "obj", store_config=tier_of["store_config"], prefix=tier_of.get("prefix", "")
            )
            return [[tier._file_mapper.get_file_name(key) for key in ours] for ours in keys]


@contextmanager
def offloaded(
    config: VllmConfig, cached: KVCacheConfig, requests: list[Request]
) -> Iterator[tuple[TieringOffloadingSpec, list[list[bytes]]]]:
    """What the connector's scheduler hands to its tiers: the spec, and the keys of each request's chunks."""
    spec = TieringOffloadingSpec(build_offloading_config(config, cached))
    scheduled = SchedulerOffloadConfig.from_spec(spec, config, cached)
    keys = []
    for request in requests:
        state = RequestOffloadState(scheduled, request, MagicMock(), MagicMock())
        state.update_offload_keys()
        keys.append([key for group in state.group_states for key in group.offload_keys])
    yield spec, keys


def view() -> memoryview:
    """A pool of CPU memory, two blocks of it."""
    return memoryview((ctypes.c_char * 8192)()).cast("B", shape=[2, 4096])


def mooncake(config: VllmConfig, cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    """The keys that every rank looks up, so that a block is whole."""
    store = ModuleType("mooncake.store")
    store.MooncakeDistributedStore = store.ReplicateConfig = MagicMock()  # type: ignore[attr-defined]
    with patch.dict(sys.modules, {"mooncake": ModuleType("mooncake"), "mooncake.store": store}), ExitStack() as stack:
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as module

        parallel = config.parallel_config
        alone = SimpleNamespace(world_size=1, rank_in_group=0)
        context = SimpleNamespace(world_size=parallel.decode_context_parallel_size, rank_in_group=0)
        stack.enter_context(
            patch.multiple(
                module,
                get_tensor_model_parallel_rank=lambda: 0,
                get_tensor_model_parallel_world_size=lambda: parallel.tensor_parallel_size,
                get_pcp_group=lambda: alone,
                get_dcp_group=lambda: context,
                MooncakeStoreConfig=MagicMock(),
                setup_mooncake_store=MagicMock(),
                LookupKeyServer=MagicMock(),
                rdma_utils=MagicMock(),
            )
        )
        worker = module.MooncakeStoreWorker(config, cached)
        found = []
        for request in requests:
            ours = []
            for number, database in enumerate(worker.token_dbs):
                whole = len(request.block_hashes) * database.hash_block_size
                for _, _, block in database.process_tokens(whole, request.block_hashes):
                    ours += [
                        module.PoolKey.build_key_string(prefix, block.hex())
                        for prefix in worker._lookup_key_prefixes[number]
                    ]
            found.append(ours)
        return found


def examples(config: VllmConfig, cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    connector = ExampleConnector(config, KVConnectorRole.WORKER, cached)
    layers = [
        f"model.layers.{number}.self_attn.attn" for number in range(config.model_config.get_total_num_hidden_layers())
    ]
    found = []
    for request in requests:
        size = config.cache_config.block_size
        media = [feature.identifier for feature in request.mm_features]
        asked = ReqMeta.make_meta(list(request.prompt_token_ids or ()), [0], size, True, media)
        made = [connector._generate_filename_debug(layer, asked.token_ids, asked.mm_hashes) for layer in layers]
        found.append([str(Path(name).relative_to("shared")) for name in made])
    return found


def pages(config: VllmConfig, _cached: KVCacheConfig, requests: list[Request]) -> list[list[str]]:
    """Where HF3FS's connector looks for blocks: the metadata server's names of them, in the file of each rank."""
    from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_connector import HF3FSKVConnector

    connector = HF3FSKVConnector.__new__(HF3FSKVConnector)
    connector._block_size = config.cache_config.block_size
    found = []
    for request in requests:
        named = connector._generate_block_hashes(list(request.prompt_token_ids or ()), 0)
        found.append([f"{rank}/{one}" for rank in range(config.parallel_config.tensor_parallel_size) for one in named])
    return found


STORES = {"pages": pages, "example": examples, "hashes": hashes, "fs": files, "obj": objects, "mooncake": mooncake}
