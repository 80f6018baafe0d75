"""The forms in which a manifest's values enter a key: where two values share one, the key does not tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from kvgate.rules import dtypes
from kvgate.rules.attention import replicas_divide_attention, uses_mla
from kvgate.rules.launched import connector_settings, launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.rules.offload_layout import one_name_for_all_layouts
from kvgate.rules.values import UNKNOWN, Field, Known

Form = Literal[
    "verbatim",
    "last-component",
    "slashes-as-dashes",
    "world-size-unless-mla",
    "world-size-per-server-unless-mla",
    "attention-tensor-size",
    "kv-heads-per-rank",
    "whether-more-than-one",
    "size-unless-one-name-for-all",
    "torch-storage-dtype",
    "cache-dtype-flag",
    "draft-model",
]


def in_key(form: Form, field: Known, manifest: Manifest) -> Field:
    """Return a known value of a manifest in the form in which it enters a key; unknown where that is not known.

    Args:
        form: how the key is made of it; what each form does stands beside its function.
        field: the value in the manifest.
        manifest: the deployment it belongs to: some forms depend on more than the one value.
    """
    return _FORMS[form](field, manifest)


def _verbatim(field: Known, _manifest: Manifest) -> Field:
    return field


def _last_component(field: Known, _manifest: Manifest) -> Field:
    return _of_text(field, lambda text: text.rstrip("/").rpartition("/")[2])


def _slashes_as_dashes(field: Known, _manifest: Manifest) -> Field:
    return _of_text(field, lambda text: text.replace("/", "-"))


def _torch_storage_dtype(field: Known, _manifest: Manifest) -> Field:
    return _of_text(field, dtypes.torch_storage)


def _cache_dtype_flag(field: Known, _manifest: Manifest) -> Field:
    return _of_text(field, dtypes.flag_name)


def _of_text(field: Known, change: Callable[[str], str]) -> Field:
    return Known(change(field.value)) if isinstance(field.value, str) else field


def _world_size_unless_mla(_field: Known, manifest: Manifest) -> Field:
    """Only the engine's world size; MLA drops it (LMCache).

    vLLM multiplies pipeline, tensor and prefill context size, and with its external launcher the data parallel size
    too (vllm 0.32.0, config/parallel.py:945): one that is not known may make up for another.
    """
    mla = uses_mla(manifest)
    if mla is None or mla:
        return UNKNOWN if mla is None else Known(1)
    size = 1
    for name in ("tensor", "pipeline", "prefill_context", *(() if _launches_itself(manifest) else ("data",))):
        factor = manifest.value(f"parallelism.{name}")
        if type(factor) is not int:
            return UNKNOWN
        size *= factor
    return Known(size)


def _world_size_per_server_unless_mla(field: Known, manifest: Manifest) -> Field:
    """The world size divided by the number of LMCache servers (lmcache 0.5.6, vllm_multi_process_adapter.py:400)."""
    size, servers = _world_size_unless_mla(field, manifest), _lmcache_servers(manifest)
    if not isinstance(size, Known) or servers is None:
        return UNKNOWN
    return size if uses_mla(manifest) else Known(size.value // servers)


def _lmcache_servers(manifest: Manifest) -> int | None:
    """How many servers a deployment is connected to; one where no list is given (lmcache_mp_connector.py:626-653).

    Not known where the launch flags are only said to be at their defaults: the one that names the servers is not, for
    it names the connector too.
    """
    extra = connector_settings(manifest)
    if extra is None or manifest.unset("engine.args"):
        return None
    urls = extra.get("lmcache.mp.server_urls") or "one"
    urls = urls.split(",") if isinstance(urls, str) else urls
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        return None
    return len([url for url in urls if url.strip()]) or None


def _launches_itself(manifest: Manifest) -> bool:
    """Whether vLLM is known not to be started by an external launcher, which counts replicas as ranks."""
    flags = launch_flags(manifest)
    return flags is not None and flags.get("distributed-executor-backend") in (None, "mp", "ray", "uni")


def _attention_tensor_size(field: Known, manifest: Manifest) -> Field:
    """The tensor size of attention, and nothing for MLA (SGLang's HiCache).

    With data parallel attention it is the size divided by both the data and the context parallel size, and with some
    flags by another: so it is only known where nothing can divide it.
    """
    mla = uses_mla(manifest)
    if mla is None or mla:
        return UNKNOWN if mla is None else Known(1)
    alone = all(manifest.value(f"parallelism.{name}") == 1 for name in ("data", "prefill_context"))
    return field if alone and not replicas_divide_attention(manifest) else UNKNOWN


def _kv_heads_per_rank(field: Known, manifest: Manifest) -> Field:
    """The number of KV heads that a rank holds; never less than one, where heads are copied (AIBrix)."""
    config = manifest.value("model.config")
    heads = config.get("num_key_value_heads") if isinstance(config, Mapping) else None
    size: Any = field.value
    if uses_mla(manifest) is not False or type(heads) is not int or type(size) is not int:
        return UNKNOWN
    return Known(max(1, heads // size))


def _whether_more_than_one(field: Known, _manifest: Manifest) -> Field:
    """The rank alone, and only where there are several (SGLang's Mooncake store)."""
    return Known(field.value > 1) if type(field.value) is int else UNKNOWN


def _size_unless_one_name_for_all(field: Known, manifest: Manifest) -> Field:
    """The size, where it is known that names hold it at all (vLLM's tiered offload)."""
    return field if one_name_for_all_layouts(manifest) is False else UNKNOWN


def _draft_model(field: Known, _manifest: Manifest) -> Field:
    """The draft model's name; how many tokens it guesses does not enter (vLLM's UMBP connector)."""
    return Known(field.value.get("model")) if isinstance(field.value, Mapping) else Known(None)


_FORMS: Mapping[Form, Callable[[Known, Manifest], Field]] = {
    "verbatim": _verbatim,
    "last-component": _last_component,
    "slashes-as-dashes": _slashes_as_dashes,
    "world-size-unless-mla": _world_size_unless_mla,
    "world-size-per-server-unless-mla": _world_size_per_server_unless_mla,
    "attention-tensor-size": _attention_tensor_size,
    "kv-heads-per-rank": _kv_heads_per_rank,
    "whether-more-than-one": _whether_more_than_one,
    "size-unless-one-name-for-all": _size_unless_one_name_for_all,
    "torch-storage-dtype": _torch_storage_dtype,
    "cache-dtype-flag": _cache_dtype_flag,
    "draft-model": _draft_model,
}
