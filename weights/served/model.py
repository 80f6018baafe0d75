"""What a model in an engine holds: its tensors as they are, and the checkpoint tensors in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvgate.rules.errors import InputError
from kvgate.weights.device.module import entries_of
from kvgate.weights.served.layers import Piece, pieces_of

if TYPE_CHECKING:
    import torch


def describe_model(model: torch.nn.Module) -> dict[str, Any]:
    """Return the fields ``tensors``, ``parts`` and ``unreadable`` of a report.

    Raises:
        InputError: when a tensor cannot be hashed.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    packed = getattr(model, "packed_modules_mapping", None) or {}
    held = dict(model.state_dict(keep_vars=True))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    unreadable = sorted(_unreadable(modules))
    pieces = [
        (name, piece)
        for name, tensor in held.items()
        if tensor.numel()
        for piece in pieces_of(name, tensor, modules[name.rpartition(".")[0]], packed)
    ]
    wanted: dict[str, object] = {f"held {name}": tensor for name, tensor in held.items()}
    wanted |= {f"part {number}": piece.tensor for number, (_, piece) in enumerate(pieces)}
    if not wanted:
        raise InputError("the model holds no tensor")
    entries = {entry.name: entry for entry in entries_of(wanted)}

    def described(key: str) -> dict[str, Any]:
        entry = entries[key]
        return {"dtype": entry.dtype, "shape": list(entry.shape), "content": entry.content}

    return {
        "tensors": [
            {"name": name, "buffer": name not in parameters, **described(f"held {name}")} for name in sorted(held)
        ],
        "parts": [
            {"held": name, **_labels(piece), **described(f"part {number}")}
            for number, (name, piece) in enumerate(pieces)
        ],
        "unreadable": unreadable,
    }


def _labels(piece: Piece) -> dict[str, Any]:
    stretch = piece.stretch and dict(zip(("dimension", "begin", "end", "of"), piece.stretch, strict=True))
    return {"name": piece.name, "stretch": stretch, "certain": piece.certain}


def _unreadable(modules: dict[str, torch.nn.Module]) -> Iterator[str]:
    """Yield the layers whose weights are, or may be, somewhere else than in their parameters.

    vLLM's CPU build packs a linear layer into an object of oneDNN and leaves a parameter without elements
    behind (0.32.0, ``model_executor/layers/utils.py``, ``dispatch_cpu_unquantized_gemm``); other backends
    may keep packed tensors as plain attributes. Layers with weights have a ``quant_method``; so has attention,
    whose plain attributes are the KV cache.
    """
    import torch

    for name, module in modules.items():
        own = dict(module.named_parameters(recurse=False))
        weighty = getattr(module, "quant_method", None) is not None and not hasattr(module, "kv_cache")
        beside = any(isinstance(value, torch.Tensor) for value in vars(module).values())
        if any(not parameter.numel() for parameter in own.values()) or (weighty and (beside or not own)):
            yield name
