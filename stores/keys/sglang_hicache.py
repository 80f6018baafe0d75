"""The names of pages that SGLang's HiCache stores: in files, through NIXL and in a Mooncake store.

Source: sglang 0.5.23 wheel, srt/mem_cache/cpp_utils/hash_binding.cpp (``hash_page``), srt/mem_cache/utils.py
(``storage_namespace_seed``), srt/managers/schedule_batch.py:1164 and srt/lora/lora_registry.py:48 (adapters),
srt/managers/cache_controller.py (``_generate_storage_config``), srt/mem_cache/hicache_storage.py (``HiCacheFile``),
srt/mem_cache/storage/nixl/hicache_nixl.py:97-114 and 657-679, srt/mem_cache/storage/mooncake_store/mooncake_store.py:
456-474, 630-661 and 1310-1330.
"""

from __future__ import annotations

import hashlib
import re
import struct
import uuid
from collections.abc import Iterable

from kvgate.rules.attention import uses_mla
from kvgate.rules.keyforms import in_key
from kvgate.rules.launched import launch_flags
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID

_NAMESPACE = b"sglang-cache-namespace-v1"
_WIDE = b"\xff"  # in front of ids that do not fit into 32 bits


def page_hashes(facts: Facts, request: Request) -> tuple[str, ...]:
    """Return the hash of every whole page of a prompt, in order, each over the one before."""
    size = facts.set("engine.block_size")
    if not facts.manifest.unset("engine.speculative"):
        facts.lacks("engine.speculative", "EAGLE hashes pairs of ids; of other methods it is not known")
    if request.media:
        facts.lacks("request_features", "which ids stand for media is SGLang's own making")
    if request.embeds is not None:
        facts.lacks("request_features", "what of embeddings enters the hash was not read")
    before = _seed(_adapter(facts, request), request.salt or None)
    if facts.unknown or size is None:
        return ()
    found = []
    for start in range(0, len(request.token_ids) - size + 1, size):
        page = request.token_ids[start : start + size]
        wide = max(page) > 0xFFFFFFFF
        tokens = struct.pack(f"<{size}{'Q' if wide else 'I'}", *page)
        before = hashlib.sha256(before + (_WIDE if wide else b"") + tokens).digest()
        found.append(before.hex())
    return tuple(found)


def _seed(extra: str | None, salt: str | None) -> bytes:
    """What the first page is hashed over: nothing, where neither an adapter nor a salt is there."""
    if extra is None and salt is None:
        return b""
    seed = hashlib.sha256(_NAMESPACE)
    for part in (extra, salt):
        text = b"" if part is None else part.encode()
        seed.update(b"\x00" if part is None else b"\x01" + struct.pack("<Q", len(text)) + text)
    return seed.digest()


def _adapter(facts: Facts, request: Request) -> str | None:
    """The id that SGLang gives an adapter of ``--lora-paths``; one that is loaded later gets a random one."""
    if request.adapter is None:
        return None
    path = (facts.manifest.value("adapters") or {}).get(request.adapter, {}).get("path")
    if path is None:
        facts.lacks("adapters", f"the path of {request.adapter!r} is not known")
        return None
    facts.assumed.append(f"{request.adapter!r} was given in --lora-paths")
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{request.adapter}\0{path}").hex


def _model(manifest: Manifest) -> str | None:
    """The served name, or where there is none what the model was started with, in one component."""
    found = manifest.value("model.id" if manifest.unset("model.served_name") else "model.served_name")
    return found.replace("/", "-") if isinstance(found, str) else None


class _Ranks:
    """The ranks that write pages: how many of each kind, and whether tensor ranks share one page (MLA)."""

    def __init__(self, facts: Facts) -> None:
        manifest = facts.manifest
        tensor = facts.set("parallelism.tensor")
        size = None if tensor is None else in_key("attention-tensor-size", Known(tensor), manifest)
        mla = uses_mla(manifest)
        if mla is None or not isinstance(size, Known):
            facts.lacks("parallelism.tensor", "over how many ranks attention is shared out is not known")
        if manifest.value("parallelism.prefill_context") != 1 or manifest.value("parallelism.decode_context") != 1:
            facts.lacks("parallelism", "the ranks of context parallelism are not foretold")
        self.shared = bool(mla)
        self.tensor = size.value if isinstance(size, Known) else 0
        self.stages = facts.set("parallelism.pipeline") or 0

    def each(self) -> Iterable[tuple[int, int]]:
        """Every tensor rank that writes, and every stage."""
        return [(rank, stage) for rank in range(1 if self.shared else self.tensor) for stage in range(self.stages)]


def _start(facts: Facts) -> str | None:
    if facts.set_or("model.served_name", "") is not None and _model(facts.manifest) is None:
        facts.lacks("model.served_name", "not known")
    flags = launch_flags(facts.manifest)
    if flags is None or flags.get("hicache-storage-backend-extra-config") is not None:
        facts.lacks("engine.args", "other settings of the storage backend are not known")
    return _model(facts.manifest)


def _files(manifest: Manifest, request: Request) -> Prediction:
    facts = Facts(manifest, "sglang-hicache-file")
    model, ranks, pages = _start(facts), _Ranks(facts), page_hashes(facts, request)
    suffixes = []
    for rank, stage in ranks.each():
        own = "" if ranks.shared else f"_{rank}_{ranks.tensor}"
        suffixes.append(f"_{model}{own}" + (f"_{ranks.stages}_{stage}" if ranks.stages > 1 else ""))
    return facts.predict(f"{page}{suffix}.bin" for page in pages for suffix in suffixes)


def _mooncake(manifest: Manifest, request: Request) -> Prediction:
    facts = Facts(manifest, "sglang-hicache-mooncake")
    tag = facts.set_or("cache.namespace", "")
    model, ranks, pages = _start(facts), _Ranks(facts), page_hashes(facts, request)
    start = f"{tag}_{model}" if tag else model
    parts = []
    for rank, stage in ranks.each():
        own = [*([] if ranks.shared else [str(rank)]), *([str(stage)] if ranks.stages > 1 else [])]
        parts += [f"{'_'.join(own)}_{half}" for half in (("k",) if ranks.shared else ("k", "v"))]
    return facts.predict(f"{start}_{page}_{part}" for page in pages for part in parts)


def _nixl(manifest: Manifest, request: Request) -> Prediction:
    facts = Facts(manifest, "sglang-hicache-nixl")
    location, layout = facts.set("cache.location"), facts.set("engine.kv_layout")
    if location is not None and ("," in location or "://" in location):
        facts.lacks("cache.location", "which of several folders, or which object, a page lies in is not foretold")
    model, ranks, pages = _start(facts), _Ranks(facts), page_hashes(facts, request)
    halves = [""]
    if layout in _IN_PLACE:
        facts.assumed.append("the host's memory is aligned as direct I/O needs it")
        halves = ["_k"] if ranks.shared else ["_k", "_v"]
    names = (
        f"{page}_{model}{'' if ranks.shared else f'_{rank}_{ranks.tensor}'}{half}"
        for page in pages
        for rank in range(1 if ranks.shared else ranks.tensor)
        for half in halves
    )
    return facts.predict(f"{_bucket(name)}/{name}" for name in names)


_IN_PLACE = ("page_first", "page_first_direct")  # layouts whose keys and values are transferred from where they lie


def _bucket(name: str) -> str:
    """The folder of a file (sglang 0.5.23, srt/mem_cache/storage/nixl/nixl_routing.py)."""
    return f"{hashlib.blake2b(name.encode(), digest_size=8).digest()[-1]:02x}"


_HASH = r"(?P<hash>[0-9a-f]{64})"
# Caches beside that of keys and values (srt/mem_cache/hicache_storage.py, PoolName).
_POOLS = (
    r"mamba|draft|(?:draft_|auxiliary_)?swa|(?:draft_)?indexer|deepseek_v4_c[0-9]+(?:_(?:indexer|scale|rope|state))*"
)
# A tensor rank is less than the size behind it; a pipeline size is more than the rank behind it.
_RANKED = r"(?P<model>[^_/\x00][^/\x00]*?)(?:_(?P<tp_rank>[0-9]{1,5})_(?P<tp_size>[0-9]{1,5}))?"
_FILE = re.compile(
    rf"{_HASH}(?:\.(?P<pool>{_POOLS}))?_{_RANKED}(?:_(?P<pp_size>[0-9]{{1,5}})_(?P<pp_rank>[0-9]{{1,5}}))?"
    r"(?:_cp(?P<cp_rank>[0-9]+)_(?P<cp_size>[0-9]+))?"
    r"(?:_tp(?P<dcp_tp_size>[0-9]+)_dcp(?P<dcp_rank>[0-9]+)_(?P<dcp_size>[0-9]+)_page(?P<page>[0-9]+))?\.bin"
)
_PIECE = re.compile(rf"(?!.*\.bin$)(?:(?P<bucket>[0-9a-f]{{2}})/)?{_HASH}_{_RANKED}(?:_(?P<half>[kv]))?")
_OBJECT = re.compile(
    rf"(?P<start>[^\x00]+)_{_HASH}_(?P<rank>(?:dcp[0-9]+_cp[0-9]+)?(?:_?[0-9]{{1,5}}){{0,2}})_(?P<half>[kv])"
)
_COUNTED = ("tp_rank", "tp_size", "pp_size", "pp_rank", "cp_rank", "cp_size", "dcp_rank", "dcp_size", "page")


def _parse_file(name: str) -> StoredKey | None:
    return _ranked("sglang-hicache-file", name, _FILE)


def _parse_piece(name: str) -> StoredKey | None:
    return _ranked("sglang-hicache-nixl", name, _PIECE)


def _ranked(connector: str, name: str, form: re.Pattern[str]) -> StoredKey | None:
    """Take a name apart whose ranks stand behind the model's name; a name that ends like ranks is read as ranks."""
    found = form.fullmatch(name)
    if found is None:
        return None
    parts = found.groupdict()
    model = parts["model"]
    ranks = {key: int(value) for key in _COUNTED if (value := parts.get(key)) is not None}
    if "tp_rank" in ranks and ranks["tp_rank"] >= ranks["tp_size"]:
        if "pp_size" in ranks or "pp_size" not in parts:
            return None
        ranks["pp_size"], ranks["pp_rank"] = ranks.pop("tp_rank"), ranks.pop("tp_size")
    if "pp_size" in ranks and ranks["pp_rank"] >= ranks["pp_size"]:
        return None
    fields: dict[str, str | int] = {key: value for key in ("pool", "half") if (value := parts.get(key)) is not None}
    return StoredKey(connector, name, None, model, {**ranks, **fields}, parts["hash"])


def _parse_object(name: str) -> StoredKey | None:
    """Take a key apart. The backend's tag and the model's name are joined so that nothing tells where one ends."""
    found = _OBJECT.fullmatch(name)
    if found is None:
        return None
    fields: dict[str, str | int] = {"half": found["half"], **({"rank": found["rank"]} if found["rank"] else {})}
    return StoredKey("sglang-hicache-mooncake", name, found["start"], None, fields, found["hash"])


_WITHIN = frozenset({"tp_rank", "pp_rank", "cp_rank", "dcp_rank", "rank", "half", "pool"})
_UNSAID = {**UNSAID, "precision.kv_cache": "pages are bytes without a format, and no name says it"}
FILES = Scheme("sglang-hicache-file", _parse_file, _files, _model, _UNSAID, _WITHIN)
PIECES = Scheme("sglang-hicache-nixl", _parse_piece, _nixl, _model, _UNSAID, _WITHIN)
OBJECTS = Scheme("sglang-hicache-mooncake", _parse_object, _mooncake, _model, _UNSAID, _WITHIN)
