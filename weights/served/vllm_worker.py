"""vLLM's worker extension: every rank fingerprints the weights it serves with, where they are.

Start the engine with ``--worker-extension-cls kvgate.weights.served.vllm_worker.FingerprintExtension``. Then
``LLM.collective_rpc("kvgate_weights")`` returns one report per rank, and so does the server, under
``/collective_rpc``, where its development mode is on (``VLLM_SERVER_DEV_MODE=1``).

vLLM adds the class to the bases of its worker class (0.32.0, ``v1/worker/worker_base.py``), which must not
have any of its names already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvgate.rules.errors import InputError
from kvgate.weights.device.module import entries_of
from kvgate.weights.served.report import SCHEMA
from kvgate.weights.served.vllm_layers import Piece, pieces_of

if TYPE_CHECKING:
    import torch


class FingerprintExtension:
    """What a vLLM worker can do beyond serving."""

    def kvgate_weights(self: Any) -> dict[str, Any]:
        """Return this rank's report (:class:`kvgate.weights.served.report.ServedRank`) as JSON values.

        No weights may be loaded meanwhile, and the engine must not be asleep: its weights are not there.

        Raises:
            InputError: when a tensor cannot be hashed.
        """
        from vllm import __version__
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group, get_world_group

        model = self.get_model()
        report = {
            "schema": SCHEMA,
            "form": "served",
            "engine": "vllm",
            "engine_version": __version__,
            "architecture": type(model).__name__,
            "world": _place(get_world_group()),
            "tensor_parallel": _place(get_tp_group()),
            "pipeline_parallel": _place(get_pp_group()),
        }
        return report | describe_model(model)


def _place(group: Any) -> dict[str, int]:
    return {"rank": group.rank_in_group, "size": group.world_size}


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
