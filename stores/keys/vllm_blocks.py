"""vLLM's block hashes: what its prefix cache is keyed by, and what other connectors make their names of.

Source: vllm 0.31.0 to 0.33.0 wheels, vllm/v1/core/kv_cache_utils.py (``init_none_hash``,
``generate_block_hash_extra_keys``, ``hash_block_tokens``, ``resolve_kv_cache_block_sizes``) and vllm/utils/hashing.py.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable, Mapping

from kvgate.rules.manifest import Manifest
from kvgate.rules.offload_layout import one_group
from kvgate.stores.keys.cbor import cbor
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.models import nameless
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.xxh3 import xxh3_128

_DEFAULT_SEED = "vllm-none-hash"  # since 0.29, where the hash is a cryptographic one
_DEFAULT_ALGORITHM = "sha256"  # vllm/config/cache.py, prefix_caching_hash_algo
_PICKLE = 5  # the highest protocol of Python 3.8 to 3.14


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=_PICKLE)


_HASHES: Mapping[str, Callable[[object], bytes]] = {
    "sha256": lambda value: hashlib.sha256(_pickled(value)).digest(),
    "sha256_cbor": lambda value: hashlib.sha256(cbor(value)).digest(),
    "xxhash": lambda value: xxh3_128(_pickled(value)),
    "xxhash_cbor": lambda value: xxh3_128(cbor(value)),
}


def none_hash(algorithm: str, seed: str | None) -> bytes | None:
    """Return what stands for the parent of a prompt's first block.

    Args:
        algorithm: of ``--prefix-caching-hash-algo``.
        seed: ``PYTHONHASHSEED``; ``None`` where it is not set.

    Returns:
        ``None`` where each process draws its own, or where the algorithm is none that vLLM has.

    """
    if algorithm not in _HASHES:
        return None
    if seed is None:
        return _HASHES[algorithm](_DEFAULT_SEED) if algorithm.startswith("sha256") else None
    return _HASHES[algorithm](seed)


def tokens_per_hash(facts: Facts) -> int | None:
    """Return how many tokens a block hash covers: the block size, over all ranks of decode context parallelism.

    Of a model whose layers are of several kinds, vLLM takes a size of its own making.
    """
    size, context = facts.set("engine.block_size"), facts.set("parallelism.decode_context")
    if not one_group(facts.manifest):
        facts.lacks("model.config", "whether the layers all cache alike is not known of this model")
    if not facts.manifest.unset("engine.speculative"):
        facts.lacks("engine.speculative", "a draft adds layers, and tokens to come may be in the hashes (0.33)")
    return None if size is None or context is None else size * context


def block_hashes(facts: Facts, request: Request) -> tuple[bytes, ...]:
    """Return the hash of every whole block of a prompt, in order; none where what they depend on is not known."""
    algorithm = facts.set_or("engine.prefix_hash.algorithm", _DEFAULT_ALGORITHM)
    seed = facts.set_or("engine.prefix_hash.seed", None)
    size = tokens_per_hash(facts)
    parent = None if algorithm is None else none_hash(algorithm, seed)
    if algorithm is not None and parent is None:
        drawn = algorithm in _HASHES
        facts.lacks(
            "engine.prefix_hash.seed" if drawn else "engine.prefix_hash.algorithm",
            f"each process draws its own for {algorithm}" if drawn else f"vLLM has no {algorithm!r}",
        )
    adapter = _adapter(facts, request)
    if facts.unknown or algorithm is None or parent is None or size is None:
        return ()
    found = []
    for start in range(0, len(request.token_ids) - size + 1, size):
        extra = (*adapter, *_others(request, start, start + size))
        parent = _HASHES[algorithm]((parent, tuple(request.token_ids[start : start + size]), extra or None))
        found.append(parent)
    return tuple(found)


def _adapter(facts: Facts, request: Request) -> tuple[tuple[str, str, str], ...]:
    """The adapter of a request, which is in every block's hash by name and path."""
    if request.adapter is None:
        return ()
    known = facts.manifest.value("adapters") or {}
    path = known.get(request.adapter, {}).get("path")
    if path is None:
        facts.lacks("adapters", f"the path of {request.adapter!r} is not known")
        return ()
    return (("lora", request.adapter, path),)


def _others(request: Request, start: int, end: int) -> list[tuple[str | bytes | int, ...]]:
    """What else of a request enters the hash of the block from ``start`` to ``end``, in vLLM's order."""
    found: list[tuple[str | bytes | int, ...]] = [
        ("mm", media.identifier, media.offset - start)
        for media in request.media
        if media.offset < end and start < media.offset + media.length
    ]
    if start == 0 and request.salt:
        found.append(("cache_salt", request.salt))
    if request.embeds is not None:
        row = len(request.embeds) // len(request.token_ids)
        found.append(("prompt_embeds", hashlib.sha256(request.embeds[start * row : end * row]).digest()))
    return found


_HEX = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}")


def _parse(name: str) -> StoredKey | None:
    if _HEX.fullmatch(name) is None:
        return None
    return StoredKey("vllm-apc", name, namespace=None, model=None, fields={}, hash=name)


def _predict(manifest: Manifest, request: Request) -> Prediction:
    facts = Facts(manifest, "vllm-apc")
    return facts.predict(one.hex() for one in block_hashes(facts, request))


UNSAID: Mapping[str, str] = {
    "weights.checkpoint": "no name holds a digest of the weights",
    "model.revision": "no name holds the revision",
    "model.config": "no name holds the config: other RoPE factors, the same names",
    "adapters": "a hash holds an adapter's name and path, never its content",
}
SCHEME = Scheme(
    "vllm-apc",
    _parse,
    _predict,
    nameless,
    {**UNSAID, "model.id": "the hashes hold no model"},
    lies_in_stores=False,  # and any SHA-256 has this form
)
