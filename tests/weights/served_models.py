"""A model as vLLM would hold it on each of several ranks: layers of its classes' names and attributes, without it.

What the real classes do is tested in ``tests/engines``; here the arithmetic is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

HEADS, KV_HEADS, HEAD, HIDDEN, INNER, VOCABULARY = 8, 2, 4, 32, 24, 50


def checkpoint() -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint of one layer, every one different."""
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        "model.layers.0.self_attn.q_proj.bias": (HEADS * HEAD,),
        "model.layers.0.self_attn.k_proj.bias": (KV_HEADS * HEAD,),
        "model.layers.0.self_attn.v_proj.bias": (KV_HEADS * HEAD,),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        "model.layers.0.self_attn.o_proj.bias": (HIDDEN,),
        "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "model.layers.0.mlp.router.weight": (4, HIDDEN),
        "model.layers.0.mlp.column.weight": (INNER, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=random).to(torch.bfloat16) for name, shape in shapes.items()}


def _layer(kind: str, tensors: dict[str, torch.Tensor], method: str, **attributes: Any) -> nn.Module:
    layer: nn.Module = type(kind, (nn.Module,), {"__module__": "vllm.layers"})()
    for name, tensor in tensors.items():
        setattr(layer, name, nn.Parameter(tensor.clone(), requires_grad=False))
    if method:
        layer.quant_method = type(method, (), {})()
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def served(stored: dict[str, torch.Tensor], rank: int = 0, size: int = 1, tied: bool = False) -> nn.Module:
    """Return what a rank of ``size`` holds of a checkpoint, loaded as vLLM's layers load."""
    linear, group = "UnquantizedLinearMethod", {"tp_rank": rank, "tp_size": size}
    attention, mlp = "model.layers.0.self_attn.", "model.layers.0.mlp."

    def rows(name: str, at: int = rank, of: int = size) -> torch.Tensor:
        return stored[name].chunk(of)[at]

    def columns(name: str) -> torch.Tensor:
        return stored[name].chunk(size, dim=1)[rank]

    copies = max(1, size // KV_HEADS)

    def fused(own: str) -> torch.Tensor:
        keys = [rows(f"{attention}{each}_proj.{own}", rank // copies, size // copies) for each in "kv"]
        return torch.cat([rows(f"{attention}q_proj.{own}"), *keys])

    def vocabulary(kind: str, name: str) -> nn.Module:
        padded = torch.cat([stored[name], torch.zeros(64 - VOCABULARY, HIDDEN, dtype=torch.bfloat16)])
        begin, end = (min(64 // size * each, VOCABULARY) for each in (rank, rank + 1))
        indices = SimpleNamespace(org_vocab_start_index=begin, org_vocab_end_index=end, num_added_elements=0)
        method, extra = "UnquantizedEmbeddingMethod", {"shard_indices": indices, "org_vocab_size": VOCABULARY}
        return _layer(kind, {"weight": padded.chunk(size)[rank]}, method, **extra, **group)

    model = type("LlamaForCausalLM", (nn.Module,), {})()
    model.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    model.model = nn.Module()
    model.model.embed_tokens = vocabulary("VocabParallelEmbedding", "model.embed_tokens.weight")
    model.lm_head = model.model.embed_tokens if tied else vocabulary("ParallelLMHead", "lm_head.weight")
    block = nn.Module()
    model.model.layers = nn.ModuleList([block])
    block.self_attn, block.mlp = nn.Module(), nn.Module()
    heads = {
        "num_heads": HEADS // size,
        "num_kv_heads": max(1, KV_HEADS // size),
        "head_size": HEAD,
        "v_head_size": HEAD,
    }
    block.self_attn.qkv_proj = _layer(
        "QKVParallelLinear",
        {"weight": fused("weight"), "bias": fused("bias")},
        linear,
        num_kv_head_replicas=copies,
        **heads,
        **group,
    )
    o_proj = {"weight": columns(f"{attention}o_proj.weight"), "bias": stored[f"{attention}o_proj.bias"]}
    block.self_attn.o_proj = _layer("RowParallelLinear", o_proj, linear, **group)
    block.self_attn.attn = nn.Module()
    block.self_attn.attn.register_buffer("_k_scale", torch.tensor(1.0))
    block.self_attn.attn.kv_cache = [torch.zeros(2)]
    gate_up = torch.cat([rows(f"{mlp}gate_proj.weight"), rows(f"{mlp}up_proj.weight")])
    block.mlp.gate_up_proj = _layer(
        "MergedColumnParallelLinear", {"weight": gate_up}, linear, output_sizes=[INNER, INNER], **group
    )
    block.mlp.down_proj = _layer("RowParallelLinear", {"weight": columns(f"{mlp}down_proj.weight")}, linear, **group)
    block.mlp.column = _layer("ColumnParallelLinear", {"weight": rows(f"{mlp}column.weight")}, linear, **group)
    router = {"weight": stored[f"{mlp}router.weight"]}
    block.mlp.router = _layer("ReplicatedLinear", router, linear, **group)
    model.model.norm = _layer("RMSNorm", {"weight": stored["model.norm.weight"]}, "")
    return model
