"""A model small enough for an engine on the CPU."""

from __future__ import annotations

from pathlib import Path


def tiny_llama(folder: Path, seed: int, *, vocabulary: int, positions: int = 2048, scale: float = 1.0) -> None:
    """Write a checkpoint with drawn weights: two layers, heads of the smallest size that vLLM's CPU attention has.

    Args:
        folder: where to.
        seed: of the weights.
        vocabulary: how many tokens there are.
        positions: how long a prompt may be.
        scale: of the weights; large ones make an answer depend on everything that was attended to.

    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=positions,
        architectures=["LlamaForCausalLM"],
    )
    torch.manual_seed(seed)
    built = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(scale)
    built.to(torch.bfloat16).save_pretrained(folder)
