"""Run with SGLang's wheel: its own code names what HiCache stores.

What ranks, a memory pool and a store would say is said for them; every name is made by the code of the wheel.
"""

# ruff: noqa: E402  (stand-ins are made before what imports them)

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from absent import stand_in  # type: ignore[import-not-found]  # it lies beside this file where it runs

stand_in("IPython", "eic", "mooncake", "nixl", "sgl_kernel", "torchvision")

import torch
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers import cache_controller
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.storage.eic import eic_storage
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store
from sglang.srt.mem_cache.storage.nixl import hicache_nixl
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.sampling.sampling_params import SamplingParams

Settings = dict[str, Any]


def pages(given: Settings, asked: Settings) -> list[str]:
    """The hashes of a request's whole pages, as the tree hashes them."""
    adapter = asked.get("adapter")
    lora_id = adapter and LoRARef.deterministic_id(adapter["name"], adapter["path"])
    request = Req("one", "", asked["token_ids"], SamplingParams(), lora_id=lora_id, cache_salt=asked.get("salt"))
    size = given["page_size"]
    key = RadixKey(array("q", asked["token_ids"]), request.extra_key, cache_salt=request.cache_salt)
    return list(get_storage_hash_str(key.page_aligned(size), None, page_size=size))


def configs(given: Settings) -> Iterator[HiCacheStorageConfig]:
    """The storage's config on each rank."""
    pool = MLATokenToKVPool if given["mla"] else MHATokenToKVPool
    for tensor in range(given["tensor"]):
        for stage in range(given["pipeline"]):
            ranks = SimpleNamespace(
                tp_rank=tensor,
                tp_size=given["tensor"],
                pp_rank=stage,
                pp_size=given["pipeline"],
                attn_dcp_size=given["decode_context"],
                attn_dcp_rank=tensor % given["decode_context"],
            )
            controller = SimpleNamespace(
                mem_pool_device=pool.__new__(pool),
                mem_pool_host=SimpleNamespace(layout=given["layout"]),
                storage_host_pool=SimpleNamespace(storage_format_tag=None),
                enable_storage_metrics=False,
                page_size=given["page_size"],
                get_attn_cp_rank_and_size=lambda: (0, 1),
            )
            with patch.multiple(
                cache_controller, get_parallel=lambda r=ranks: r, is_dp_attention_enabled=lambda: False
            ):
                yield cache_controller.HiCacheController._generate_storage_config(
                    controller, given["model_name"], dict(given.get("extra", {}))
                )


def files(given: Settings) -> list[list[str]]:
    """What lies in the folder once every rank that writes has stored every page."""
    found = []
    for asked in given["requests"]:
        with TemporaryDirectory() as folder:
            for config in configs(given):
                if config.is_storage_writer:
                    store = HiCacheFile(config, folder)
                    for page in pages(given, asked):
                        assert store.set(page, torch.zeros(4))
            found.append(sorted(path.name for path in Path(folder).iterdir()))
    return found


def pieces(given: Settings) -> list[list[str]]:
    found = []
    for asked in given["requests"]:
        with TemporaryDirectory() as folder:
            ours: list[str] = []
            for config in configs(given):
                store = hicache_nixl.HiCacheNixl(config, folder)
                if store.backup_skip:
                    continue
                store.is_zero_copy = given["layout"] in ("page_first", "page_first_direct")
                if store.is_zero_copy:
                    names = store._get_key_list_from_meta(pages(given, asked))
                else:
                    names = [store._get_suffixed_key(page) for page in pages(given, asked)]
                ours += [str(Path(store.file_manager.get_file_path(name)).relative_to(folder)) for name in names]
            found.append(sorted(ours))
    return found


def objects(given: Settings) -> list[list[str]]:
    found = []
    for asked in given["requests"]:
        ours: list[str] = []
        for config in configs(given):
            store = mooncake_store.MooncakeStore(config, MagicMock())
            hashes = pages(given, asked)
            store.mem_pool_host = MagicMock(page_size=given["page_size"])
            halves = 1 if store.is_mla_backend else 2
            pointers = [0] * (halves * len(hashes))
            store.mem_pool_host.get_page_buffer_meta.return_value = (pointers, pointers)
            if config.is_storage_writer:
                indices = list(range(given["page_size"] * len(hashes)))
                ours += store._batch_preprocess(store._tag_keys(hashes), indices)[0] if hashes else []
        found.append(sorted(ours))
    return found


def in_eic(given: Settings) -> list[list[str]]:
    """Keys, behind the name space that goes with every call."""
    found = []
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "eic.yaml"
        space = given["extra"].get("extra_backend_tag", "")
        own = {"remote_url": "eic://store", "eic_namespace": space, "enable_kvset_direct": False, "eic_log_dir": folder}
        settings.write_text(json.dumps(own))
        client = eic_storage.eic.Client.return_value
        client.init.return_value, client.mexist.return_value = 0, (0, None)
        with patch.multiple(
            eic_storage, get_eic_config_file_path=lambda: str(settings), FlexibleKVCacheMemoryPool=MagicMock()
        ):
            for asked in given["requests"]:
                ours = []
                for config in configs(given):
                    pool = MagicMock(layout=given["layout"])
                    store = eic_storage.EICStorage(config, pool)
                    if config.is_storage_writer:
                        ours += [f"{store.eic_namespace}/{key}" for key in store._get_eic_key(pages(given, asked))]
                found.append(ours)
    return found


STORES = {"eic": in_eic, "files": files, "pieces": pieces, "objects": objects}


def names(given: Settings) -> list[list[str]]:
    """Name the entries of each request."""
    settled = SimpleNamespace(
        global_segment_size=1 << 30,
        check_server=False,
        device_name="",
        standalone_storage=False,
        local_hostname="here",
        metadata_server="",
        protocol="tcp",
        master_server_address="",
        enable_ssd_offload=False,
        ssd_offload_path=None,
        tenant_id=mooncake_store.DEFAULT_TENANT_ID,
    )
    client = MagicMock()
    client.return_value.setup.return_value = 0
    hicache_nixl.nixl_agent.return_value.get_plugin_list.return_value = ["POSIX"]
    with patch.multiple(
        mooncake_store.MooncakeStore,
        _import_mooncake_store=lambda _self: client,
        _load_config=lambda _self, _config: settled,
        warmup=lambda _self: None,
    ):
        return STORES[given["store"]](given)
