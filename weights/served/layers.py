"""How layers of vLLM and SGLang hold checkpoint tensors: which rows and columns of which tensor lie where.

From vLLM 0.32.0, ``model_executor/layers/linear.py`` and ``vocab_parallel_embedding.py`` (the weight loaders
of the classes below), and from SGLang 0.5.23, ``srt/layers/linear.py`` and ``vocab_parallel_embedding.py``, whose
classes were adapted from vLLM's. Layers are recognised by their exact class: a subclass may load differently. A
quantized layer is not taken apart: its tensors may have been packed anew after loading.

What is taken from SGLang is certain of nothing: no SGLang ran where this was tested. Bytes that equal the
checkpoint's are equal whoever claims it; others are not known to be different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_UNQUANTIZED = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})
_UNCHANGED = frozenset({"RMSNorm", "GemmaRMSNorm", "LayerNorm"})  # hold a tensor whole, as it is stored
_LINEAR = frozenset(
    {"QKVParallelLinear", "MergedColumnParallelLinear", "ColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear"}
)
_VOCABULARY = frozenset({"VocabParallelEmbedding", "ParallelLMHead"})
# What SGLang's models are fused from where they do not say it: their load_weights() do.
_USUAL = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Piece(NamedTuple):
    """A stretch of a checkpoint tensor inside a served tensor.

    Attributes:
        name: the checkpoint tensor.
        tensor: the view of the served tensor that holds it.
        stretch: (dimension, begin, end, size in the checkpoint), ``None`` for all of it.
        certain: whether the layer is known to hold the stored bytes unchanged.
    """

    name: str
    tensor: torch.Tensor
    stretch: tuple[int, int, int, int] | None
    certain: bool


def pieces_of(
    name: str, tensor: torch.Tensor, layer: torch.nn.Module, packed: Mapping[str, Sequence[str]]
) -> list[Piece]:
    """Return what of the checkpoint a served tensor holds, nothing where that is not known exactly.

    Args:
        name: the tensor's name in the engine; LoRA's wrapping (``base_layer``) is looked through.
        tensor: the tensor.
        layer: the module it is a parameter or buffer of.
        packed: the model's ``packed_modules_mapping``: fused layer → the layers in it.
    """
    name = name.replace(".base_layer.", ".")
    prefix, _, own = name.rpartition(".")
    module = type(layer).__module__
    kind = type(layer).__name__ if module.startswith(("vllm.", "sglang.", "torch.nn.")) else ""
    if module.startswith("sglang."):
        pieces = _pieces(name, prefix, own, kind, tensor, layer, packed or _USUAL)
        return [piece._replace(certain=False) for piece in pieces]
    return _pieces(name, prefix, own, kind, tensor, layer, packed)


def _pieces(
    name: str,
    prefix: str,
    own: str,
    kind: str,
    tensor: torch.Tensor,
    layer: torch.nn.Module,
    packed: Mapping[str, Sequence[str]],
) -> list[Piece]:
    if kind in _LINEAR | _VOCABULARY:
        if type(getattr(layer, "quant_method", None)).__name__ not in _UNQUANTIZED or own not in ("weight", "bias"):
            return []
        if kind in _VOCABULARY:
            return _vocabulary(name, tensor, layer)
        return _linear(kind, prefix, own, tensor, layer, packed)
    return [Piece(name, tensor, None, certain=kind in _UNCHANGED)]


def _linear(
    kind: str, prefix: str, own: str, tensor: torch.Tensor, layer: Any, packed: Mapping[str, Sequence[str]]
) -> list[Piece]:
    name, (rank, size) = f"{prefix}.{own}", _place(layer, "tp")
    if kind == "ReplicatedLinear" or (kind == "RowParallelLinear" and own == "bias"):
        return [Piece(name, tensor, None, certain=True)]
    if kind == "RowParallelLinear":
        return [_cut(name, tensor, 1, rank, size)]
    if kind == "ColumnParallelLinear":
        return [_cut(name, tensor, 0, rank, size)]
    above, _, fused = prefix.rpartition(".")
    names = [f"{above}.{each}.{own}" if above else f"{each}.{own}" for each in packed.get(fused, ())]
    if len(names) == 1 and size == 1:  # the checkpoint holds the layer fused, too
        return [Piece(names[0], tensor, None, certain=True)]
    if kind == "QKVParallelLinear":
        rows = [layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size]
        rows.append(layer.num_kv_heads * layer.v_head_size)
        kv_rank, kv_size = _place(layer, "kv_tp")
        copied = layer.num_kv_head_replicas
        places = [(rank, size), *[(kv_rank // copied, kv_size // copied)] * 2]
    else:
        rows = [whole // size for whole in layer.output_sizes]
        places = [(rank, size)] * len(rows)
    if len(names) != len(rows) or sum(rows) != tensor.shape[0]:
        return []
    pieces, at = [], 0
    for each, count, (nth, of) in zip(names, rows, places, strict=True):
        pieces.append(_cut(each, tensor.narrow(0, at, count), 0, nth, of))
        at += count
    return pieces


def _place(layer: Any, which: str) -> tuple[int, int]:
    """Return the rank and size of the group that a layer is sharded over.

    vLLM's layers have numbers. SGLang's have groups, ``None`` for no sharding, and one of their own for keys and
    values (``srt/distributed/utils.py``, ``get_group_rank_size``).
    """
    if hasattr(layer, "tp_group"):
        group = getattr(layer, f"{which}_group", layer.tp_group)
        return (0, 1) if group is None else (group.rank_in_group, group.world_size)
    return layer.tp_rank, layer.tp_size


def _cut(name: str, tensor: torch.Tensor, dimension: int, rank: int, size: int) -> Piece:
    """Return the piece that is the ``rank``-th of ``size`` equal stretches of a checkpoint tensor."""
    count = tensor.shape[dimension]
    stretch = None if size == 1 else (dimension, rank * count, (rank + 1) * count, size * count)
    return Piece(name, tensor, stretch, certain=True)


def _vocabulary(name: str, tensor: torch.Tensor, layer: Any) -> list[Piece]:
    """Return the rows of the stored vocabulary; the padding behind them is the engine's."""
    indices = layer.shard_indices
    if indices.num_added_elements:
        return []
    begin, end, whole = indices.org_vocab_start_index, indices.org_vocab_end_index, layer.org_vocab_size
    rows = tensor.narrow(0, 0, end - begin)
    return [Piece(name, rows, None if end - begin == whole else (0, begin, end, whole), certain=True)]
