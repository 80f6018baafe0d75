"""How a tensor lies in memory, and its elements in C order where they do not lie so."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def lies_in_order(tensor: torch.Tensor) -> bool:
    """Say whether the tensor's memory is its content: one run of bytes in C order, nothing left to apply.

    Views of complex tensors may be marked conjugated or negated while their memory is not.
    """
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def host_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a CPU tensor that lies in order, without a copy.

    Through its address, so that it works for every dtype and without NumPy.
    """
    if not tensor.nbytes:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.keeps = tensor  # who holds the view holds the tensor
    return memoryview(memory).cast("B")


def copy_in_order(tensor: torch.Tensor, begin: int, end: int, device: torch.device) -> torch.Tensor:
    """Return bytes ``begin`` to ``end`` of a tensor's content as a new tensor on ``device`` that lies in order.

    Args:
        tensor: of any strides.
        begin: the first byte, at the boundary of an element.
        end: one past the last.
        device: where the copy goes; memory in the size of the copy is used there, and for the way.
    """
    import torch

    size = tensor.element_size()
    words = tensor.detach()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    if whole is not None and not (tensor.is_conj() or tensor.is_neg()):
        words = words.view(whole)  # an integer is copied bit by bit, and every device can copy it
    copy = torch.empty((end - begin) // size, dtype=words.dtype, device=device)
    _fill(copy, words, begin // size, end // size)
    return copy


def _fill(into: torch.Tensor, tensor: torch.Tensor, begin: int, end: int) -> None:
    """Copy elements ``begin`` to ``end`` in C order: the whole rows at once, what is cut row by row."""
    if tensor.dim() == 0:
        into.copy_(tensor.reshape(1)[begin:end])
        return
    if tensor.dim() == 1:
        into.copy_(tensor[begin:end])
        return
    row = tensor[0].numel()
    first, last = -(-begin // row), end // row
    if first > last:  # inside one row
        _fill(into, tensor[last], begin - last * row, end - last * row)
        return
    ahead = first * row - begin
    if ahead:
        _fill(into[:ahead], tensor[first - 1], row - ahead, row)
    if last > first:
        rows = tensor[first:last]
        into[ahead : ahead + rows.numel()].view(rows.shape).copy_(rows)
    behind = end - last * row
    if behind:
        _fill(into[into.numel() - behind :], tensor[last], 0, behind)
