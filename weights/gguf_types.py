"""GGUF's tensor types, from the ``gguf`` package: they grow with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from kvgate.rules.errors import InputError


@functools.cache
def type_names() -> Mapping[int, str]:
    """Return the name of each tensor type by its number in a file.

    Raises:
        InputError: the ``gguf`` package is not installed.
    """
    return {int(kind): str(kind.name) for kind in _package().GGML_QUANT_SIZES}


@functools.cache
def block_sizes() -> Mapping[str, tuple[int, int]]:
    """Return how many elements a block has, and how many bytes, by the name of the type.

    Raises:
        InputError: the ``gguf`` package is not installed.
    """
    return {str(kind.name): (int(block), int(size)) for kind, (block, size) in _package().GGML_QUANT_SIZES.items()}


def _package() -> Any:
    try:
        from gguf import constants
    except ImportError as error:
        raise InputError("GGUF files need the gguf package", hint="pip install 'kvgate[gguf]'") from error
    return constants
