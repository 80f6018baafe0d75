"""BLAKE3 of tensors where they are: batches of launches, 32 bytes per tensor come back.

A batch is any number of segments with up to ``Limits.batch`` chunks: one launch hashes the chunks, one per
level joins them. So thousands of small tensors cost the launches of one, and a tensor of any size takes
bounded memory beside it. Everything goes to the current stream; the only wait is for the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from kvgate.weights.device.kernels import hash_chunks, join_pairs
from kvgate.weights.device.memory import copy_in_order, host_bytes, lies_in_order
from kvgate.weights.device.tree import (
    CHUNK,
    LIMITS,
    Limits,
    Segment,
    chunks_of,
    levels_of,
    offsets,
    pieces_of,
    table_of,
    table_of_nodes,
)

_WORDS = 8  # of a node: 32 bytes


class _Batch(NamedTuple):
    segments: list[Segment]
    copies: list[torch.Tensor]  # what the addresses of strided tensors point into


def hash_resident(tensors: Sequence[torch.Tensor], told: Callable[[int], None], limits: Limits = LIMITS) -> list[bytes]:
    """Return the 32-byte BLAKE3 of each tensor's content.

    Args:
        tensors: all on one device that Triton compiles for (or the CPU, in Triton's interpreter).
        told: called with the bytes of each batch that was handed to the device.
        limits: what bounds the memory.
    """
    if not tensors:
        return []
    chunks = [chunks_of(tensor.nbytes) for tensor in tensors]
    counts = [-(-each // limits.piece) for each in chunks]
    slots = sum(chunks)
    device = tensors[0].device
    chains = torch.empty((min(slots, limits.batch), _WORDS), dtype=torch.int32, device=device)
    nodes = torch.empty((sum(counts), _WORDS), dtype=torch.int32, device=device)
    done = 0
    for batch in _batches(tensors, limits):
        rows = table_of(batch.segments)
        table = _upload(rows, device)
        slots = rows[0][-1]
        hash_chunks[(-(-slots // limits.lanes),)](
            table, table.shape[1], len(batch.segments), slots, chains, LANES=limits.lanes
        )
        _join(table, rows[0], chains, limits)
        torch.index_select(chains, 0, table[0, :-1], out=nodes[done : done + len(batch.segments)])
        done += len(batch.segments)
        told(sum(segment.size for segment in batch.segments))
    if max(counts) > 1:
        table = _upload(table_of_nodes(counts), device)
        _join(table, offsets(counts), nodes, limits)
        nodes = torch.index_select(nodes, 0, table[0, :-1])
    digests = bytes(host_bytes(nodes.cpu()))
    return [digests[at : at + 32] for at in range(0, len(digests), 32)]


def _batches(tensors: Sequence[torch.Tensor], limits: Limits) -> Iterator[_Batch]:
    batch, slots, staged = _Batch([], []), 0, 0
    for tensor in tensors:
        in_order = lies_in_order(tensor)
        for begin, end in pieces_of(tensor.nbytes, limits.piece):
            chunks, copied = chunks_of(end - begin), 0 if in_order else end - begin
            if batch.segments and (slots + chunks > limits.batch or staged + copied > limits.staging):
                yield batch
                batch, slots, staged = _Batch([], []), 0, 0
            address = tensor.data_ptr() + begin
            if copied:
                batch.copies.append(copy_in_order(tensor, begin, end, tensor.device))
                address = batch.copies[-1].data_ptr()
            whole = end - begin == tensor.nbytes
            batch.segments.append(Segment(address, end - begin, begin // CHUNK, root=whole))
            slots, staged = slots + chunks, staged + copied
    yield batch


def _upload(rows: list[list[int]], device: torch.device) -> torch.Tensor:
    """Return a table on the device; from pinned memory, so that the launches before it are not waited for."""
    table = torch.tensor(rows, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)


def _join(table: torch.Tensor, first: Sequence[int], chains: torch.Tensor, limits: Limits) -> None:
    """Join the nodes of each segment until its first slot holds the one that is left."""
    segments = len(first) - 1
    for level in range(levels_of(first)):
        lanes = (first[-1] >> (level + 1)) + segments
        join_pairs[(-(-lanes // limits.lanes),)](
            table, table.shape[1], segments, level, lanes, chains, LANES=limits.lanes
        )
