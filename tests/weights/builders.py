"""Checkpoints written byte by byte, so that tests decide about order, padding, shards and lies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Tensor(NamedTuple):
    """A tensor as a test hands it in."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, Tensor]


def sized(header: bytes, data: bytes = b"") -> bytes:
    """Return a file of a raw header and data."""
    return len(header).to_bytes(8, "little") + header + data


def encode(
    tensors: Mapping[str, Tensor],
    order: Sequence[str] | None = None,
    metadata: Mapping[str, str] | None = None,
    padding: int = 0,
) -> bytes:
    """Return a safetensors file with the tensors' bytes in ``order``."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    data = b""
    for name in order or list(tensors):
        dtype, shape, content = tensors[name]
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    return sized(json.dumps(header).encode() + b" " * padding, data)


def write(folder: Path, tensors: Mapping[str, Tensor], **how: Any) -> Path:
    """Write ``model.safetensors`` into ``folder`` and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(encode(tensors, **how))
    return folder


def write_shards(folder: Path, tensors: Mapping[str, Tensor], shards: Sequence[Sequence[str]]) -> Path:
    """Write a sharded checkpoint with its index and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / file).write_bytes(encode({name: tensors[name] for name in names}))
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def words(*values: int) -> bytes:
    """Return 16-bit little-endian words: the bytes of a BF16 or F16 tensor."""
    return b"".join(value.to_bytes(2, "little") for value in values)


def llama(layers: int = 2) -> Tensors:
    """Return the tensors of a Llama with two-element tensors, every one different."""
    suffixes = [
        *(f"self_attn.{kind}_proj.weight" for kind in "qkvo"),
        *(f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    names = [f"model.layers.{layer}.{suffix}" for layer in range(layers) for suffix in suffixes]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    return {name: Tensor("BF16", (2,), words(number, number + 1)) for number, name in enumerate(names)}


def llama_config(layers: int = 2, **over: Any) -> dict[str, Any]:
    """Return the effective configuration of :func:`llama`."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers}
    return {**config, "tie_word_embeddings": False, **over}
