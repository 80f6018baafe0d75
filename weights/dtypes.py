"""The names of types in a digest, and how many bytes a tensor of one has.

Three kinds that no one name shares: safetensors' own (``BF16``), GGUF's behind ``GGUF:`` (``GGUF:Q4_K``; its rows are
blocks, so that ``GGUF:F16`` is not ``F16`` either), and ``OPAQUE`` for a file whose content is not looked into.
"""

from __future__ import annotations

import functools
import math
import re

from kvgate.weights.gguf_types import block_sizes
from kvgate.weights.safetensors import DTYPE_BITS

GGUF = "GGUF:"
OPAQUE = "OPAQUE"
_GGUF_NAME = re.compile(r"GGUF:[A-Z0-9_]{1,16}")


def is_dtype(name: str) -> bool:
    """Say whether a digest can hold a type of this name; GGUF's grow with its library and go by their form."""
    return name in DTYPE_BITS or name == OPAQUE or _GGUF_NAME.fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)  # few shapes, many tensors
def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return how many bytes a tensor has.

    Raises:
        InputError: a GGUF type, and the package that knows them is not installed.
        KeyError: an unknown type.
    """
    count = math.prod(shape)
    if dtype == OPAQUE:
        return count
    if dtype.startswith(GGUF):
        block, size = block_sizes()[dtype.removeprefix(GGUF)]
        return count // block * size
    return DTYPE_BITS[dtype] * count // 8
