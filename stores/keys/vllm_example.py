"""The names of vLLM's example connector (ExampleConnector; SharedStorageConnector before).

Source: vllm 0.32.0 wheel, distributed/kv_transfer/kv_connector/v1/example_connector.py (``ReqMeta.make_meta``,
``_generate_foldername_debug``, ``_generate_filename_debug``), utils/hashing.py (``safe_hash``).
"""

from __future__ import annotations

import hashlib
import re
import struct

from kvgate.rules.manifest import Manifest
from kvgate.rules.offload_layout import one_group
from kvgate.stores.keys.facts import Facts
from kvgate.stores.keys.models import nameless
from kvgate.stores.keys.stored import Prediction, Request, Scheme, StoredKey
from kvgate.stores.keys.vllm_blocks import UNSAID
from kvgate.stores.keys.vllm_layers import attention_layers

_ID = "vllm-example"
_FILE = re.compile(r"(?P<hash>[0-9a-f]{32})/(?P<layer>[^/\x00]{1,200})\.safetensors")


def parse(name: str) -> StoredKey | None:
    """Take a file's path in the connector's folder apart."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    return StoredKey(_ID, name, None, None, {"layer": found["layer"]}, found["hash"])


def predict(manifest: Manifest, request: Request) -> Prediction:
    """Say which files the connector writes of a prompt: one for each layer, of all whole blocks together.

    The last token of a prompt is never stored, so a prompt of whole blocks loses one. What is looked for may be a block
    less than what was stored, where the prompt is one token longer than whole blocks.
    """
    facts = Facts(manifest, _ID)
    block = facts.set("engine.block_size")
    layers = attention_layers(manifest)
    if layers is None:
        facts.lacks("model.config", "what vLLM calls the layers of this model is not known")
    if not one_group(manifest):
        facts.lacks("model.config", "which blocks are stored of this model's layers is not known")
    if not manifest.unset("engine.speculative"):
        facts.lacks("engine.speculative", "a draft adds layers whose names are not known")
    if request.embeds is not None:
        facts.lacks("request_features", "prompts that are given as embeddings all share one name")
    if facts.unknown or layers is None or block is None:
        return facts.predict(None)
    facts.assumed.append("the machine allows MD5, and is little-endian")
    kept = (len(request.token_ids) - 1) // block * block
    hashed = hashlib.md5(struct.pack(f"<{kept}q", *request.token_ids[:kept]), usedforsecurity=False)
    hashed.update("-".join(media.identifier for media in request.media).encode())
    return facts.predict(f"{hashed.hexdigest()}/{layer}.safetensors" for layer in layers)


SCHEME = Scheme(
    _ID,
    parse,
    predict,
    nameless,
    {
        **UNSAID,
        "model.id": "no name holds the model: the layers' names are those of its whole family",
        "adapters": "no name holds an adapter",
        "precision.kv_cache": "no name holds the number format",
        "parallelism": "every rank writes the same files",
        "cache.tenancy": "no name holds a salt",
    },
    within=frozenset({"layer"}),
)
