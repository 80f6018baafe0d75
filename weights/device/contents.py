"""The content hash of tensors in memory, by where they are.

=================  =====================================================================================
CPU                where they lie, without a copy
CUDA (ROCm too)    on the device, where Triton is installed: :mod:`kvgate.weights.device.launches`
any other device   on the host, through copies of bounded size
=================  =====================================================================================

All give the same 32 bytes.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blake3 import blake3

from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress
from kvgate.weights.device.memory import copy_in_order, host_bytes, lies_in_order

if TYPE_CHECKING:
    import torch

STAGE = "hashing weights"
_WINDOW = 64 << 20  # bytes that are copied or hashed at a time


def hash_contents(tensors: Sequence[torch.Tensor], progress: Progress) -> list[bytes]:
    """Return the 32-byte BLAKE3 of each tensor's bytes: little-endian, C order, without padding.

    Args:
        tensors: on any devices, of any dtype and strides, that have memory of their own (see
            :mod:`kvgate.weights.device.holding`). Nobody may write to them meanwhile.
        progress: told of the bytes that were hashed, or handed to the device that hashes them.

    Raises:
        InputError: on a machine whose byte order is not that of the digest.
    """
    if sys.byteorder != "little":
        raise InputError("this machine stores numbers big-endian first; the digest is over little-endian bytes")
    tell = _Teller(progress, sum(tensor.nbytes for tensor in tensors))
    hashes: dict[int, bytes] = {}
    resident: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.device.type == "cuda" and _triton_is_here():
            resident.setdefault(tensor.device, []).append(number)
        else:
            hashes[number] = _on_host(tensor, tell)
    for device, numbers in resident.items():
        hashes.update(zip(numbers, _on_device(device, [tensors[number] for number in numbers], tell), strict=True))
    return [hashes[number] for number in range(len(tensors))]


@functools.cache
def _triton_is_here() -> bool:
    return importlib.util.find_spec("triton") is not None


class _Teller:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._progress(STAGE, self._done, self._total, "bytes")


def _on_device(device: torch.device, tensors: list[torch.Tensor], tell: _Teller) -> list[bytes]:
    import torch

    from kvgate.weights.device.launches import hash_resident

    with torch.cuda.device(device):
        return hash_resident(tensors, tell)


def _on_host(tensor: torch.Tensor, tell: _Teller) -> bytes:
    import torch

    host = torch.device("cpu")
    hasher = blake3(max_threads=blake3.AUTO)
    direct = host_bytes(tensor) if tensor.device.type == "cpu" and lies_in_order(tensor) else None
    for begin in range(0, tensor.nbytes, _WINDOW):
        end = min(begin + _WINDOW, tensor.nbytes)
        hasher.update(direct[begin:end] if direct else host_bytes(copy_in_order(tensor, begin, end, host)))
        tell(end - begin)
    return hasher.digest()
