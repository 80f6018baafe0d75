"""The fingerprint of a set of tensors, and of a checkpoint folder whatever files they lie in."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvgate.rules.progress import Progress, silent
from kvgate.weights.checkpoint import open_checkpoint
from kvgate.weights.digest import PREFIX, TensorEntry, field, root_digest
from kvgate.weights.hashing import hash_files
from kvgate.weights.safetensors import DTYPE_BITS
from kvgate.weights.tail import kv_digest, tied_alias
from kvgate.weights.tensor_file import TensorFile

_LAYOUT = b"kvgate/layout/v1"
_NAME = itemgetter(0)


@dataclass(frozen=True)
class Fingerprint:
    """What a model's weights are, wherever they lie.

    Attributes:
        digest: the root over every tensor, ``blake3:<64 hex>``.
        kv_digest: the root over the tensors that persisted state depends on.
        kv_rule: how those were chosen: ``1/llama``, ``1/all-tensors``; only digests of one rule compare.
        tensors: how many tensors there are, an alias of a tied head not counted.
        bytes: how many bytes they have together.
        entries: the tensors, sorted by name.
    """

    digest: str
    kv_digest: str
    kv_rule: str
    tensors: int
    bytes: int
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True)
class CheckpointFingerprint(Fingerprint):
    """What the weights of a checkpoint are.

    Attributes:
        layout: ``blake3:<64 hex>`` over the files: their names and sizes, and where which tensor lies.
    """

    layout: str


def fingerprint_checkpoint(
    folder: Path, config: Mapping[str, Any] | None, progress: Progress = silent
) -> CheckpointFingerprint:
    """Hash the weights in ``folder``.

    Args:
        folder: the checkpoint; see :mod:`kvgate.weights.checkpoint` for which of its files count.
        config: the model's effective configuration (class defaults filled in, ``architectures`` and
            ``model_type`` kept); ``None`` where it is not known: every tensor counts, a tied head too.
        progress: told of every stretch of bytes, from the hashing threads, one call at a time.

    Raises:
        InputError: when the files are not a sound checkpoint, hold pickle only, or change meanwhile.
    """
    files = open_checkpoint(folder)
    found = fingerprint_entries(tensor_entries(files, progress), config)
    return CheckpointFingerprint(**vars(found), layout=_layout(files))


def fingerprint_entries(entries: Iterable[TensorEntry], config: Mapping[str, Any] | None) -> Fingerprint:
    """Return the fingerprint of tensors that were hashed.

    Args:
        entries: each name once.
        config: as :func:`fingerprint_checkpoint` takes it.
    """
    entries = sorted(entries, key=_NAME)
    alias = tied_alias({entry.name: entry for entry in entries}, config)
    counted = tuple(entry for entry in entries if entry.name != alias)
    root = root_digest(counted)
    kv, rule = kv_digest(counted, config, root)
    return Fingerprint(
        digest=root,
        kv_digest=kv,
        kv_rule=rule,
        tensors=len(counted),
        bytes=sum(byte_size(entry) for entry in counted),
        entries=counted,
    )


def tensor_entries(files: Sequence[TensorFile], progress: Progress = silent) -> tuple[TensorEntry, ...]:
    """Hash every tensor of ``files`` and return their entries sorted by name.

    Raises:
        InputError: when a file changes meanwhile or cannot be read.
    """
    return tuple(sorted(hash_files(files, progress), key=_NAME))


def byte_size(entry: TensorEntry) -> int:
    """Return how many bytes a tensor has."""
    return _byte_size(entry.dtype, entry.shape)


@functools.lru_cache(maxsize=4096)  # few shapes, many tensors
def _byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    return DTYPE_BITS[dtype] * math.prod(shape) // 8


def _layout(files: Sequence[TensorFile]) -> str:
    """Hash how the tensors are laid out: re-sharding and re-ordering change it and nothing else."""
    hasher = blake3(field(_LAYOUT))
    for file in files:
        parts = [
            field(os.fsencode(file.name)),
            *(size.to_bytes(8, "little") for size in (file.stamp.size, len(file.tensors))),
        ]
        for tensor in file.tensors:
            parts += (field(tensor.name.encode()), tensor.begin.to_bytes(8, "little"))
        hasher.update(b"".join(parts))
    return PREFIX + hasher.hexdigest()
