"""Hashing stretches of the tensors of a checkpoint, where they lie."""

from __future__ import annotations

import math
import os
from pathlib import Path

from blake3 import blake3

from kvgate.rules.errors import InputError
from kvgate.weights.checkpoint import open_weights
from kvgate.weights.digest import printed
from kvgate.weights.files import open_stamped, read_exactly, stamp_of
from kvgate.weights.safetensors import DTYPE_BITS
from kvgate.weights.served.report import Stretch

_WINDOW = 1 << 20  # bytes that are read at a time


class CheckpointStretches:
    """Reads stretches of the tensors in a checkpoint folder.

    Args:
        folder: as :func:`kvgate.weights.checkpoint.open_weights` takes it.

    Raises:
        InputError: when it is not a sound checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._places = {tensor.name: (file, tensor) for file in open_weights(folder).files for tensor in file.tensors}

    def __call__(self, name: str, stretch: Stretch) -> str:
        """Return ``blake3:<64 hex>`` over the stretch's bytes in C order.

        Raises:
            InputError: when there is no such stretch, or the file is no longer what it was.
        """
        file, tensor = self._places[name]
        shape, bits = tensor.shape, DTYPE_BITS[tensor.dtype]
        sizes = shape[stretch.dimension] if stretch.dimension < len(shape) else 0
        below = math.prod(shape[stretch.dimension + 1 :]) * bits
        if sizes != stretch.of or not stretch.begin < stretch.end <= stretch.of or below % 8:
            raise InputError(f"tensor {name[:200]!r} has no such stretch", where=str(file.path))
        row = sizes * below // 8
        begin, end = stretch.begin * below // 8, stretch.end * below // 8
        descriptor, stamp = open_stamped(file.path)
        try:
            if stamp != file.stamp:
                raise InputError("changed since its header was read", where=str(file.path))
            hasher = blake3()
            for at in range(tensor.begin, tensor.end, row):
                for first in range(at + begin, at + end, _WINDOW):
                    hasher.update(read_exactly(descriptor, first, min(first + _WINDOW, at + end)))
            if stamp_of(os.fstat(descriptor)) != file.stamp:
                raise InputError("changed while it was read", where=str(file.path))
        except OSError as error:
            raise InputError(f"cannot be read: {error}", where=str(file.path)) from error
        finally:
            os.close(descriptor)
        return printed(hasher.digest())
