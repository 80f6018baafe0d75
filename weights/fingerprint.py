"""The fingerprint of a set of tensors, and of a checkpoint folder whatever files they lie in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvgate.rules.progress import Progress, silent
from kvgate.weights.checkpoint import ASIDE, list_folder, open_weights
from kvgate.weights.digest import TensorEntry, field, printed, root_digest, tensor_entries
from kvgate.weights.dtypes import tensor_bytes
from kvgate.weights.hashing import hash_files
from kvgate.weights.kept_hashes import KeptHashes
from kvgate.weights.opaque import RULE, open_opaque, whole_file
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
        kept: how many files were not read, because what was kept of them counts.
        metadata: what a GGUF model says beside its tensors (:class:`kvgate.weights.gguf.GgufModel`); ``None``: it is
            none.
        metadata_digest: ``blake3:<64 hex>`` over it.
    """

    layout: str
    kept: int = 0
    metadata: Mapping[str, Any] | None = None
    metadata_digest: str | None = None


def fingerprint_checkpoint(
    path: Path,
    config: Mapping[str, Any] | None,
    progress: Progress = silent,
    *,
    kept: KeptHashes | None = None,
    opaque_pickle: bool = False,
) -> CheckpointFingerprint:
    """Hash the weights at ``path``.

    Args:
        path: a checkpoint folder or a GGUF file; see :mod:`kvgate.weights.checkpoint` for which files count.
        config: the model's effective configuration (class defaults filled in, ``architectures`` and
            ``model_type`` kept); ``None`` where it is not known: every tensor counts, a tied head too. So it is
            with GGUF and opaque files whatever is given.
        progress: told of every stretch of bytes, from the hashing threads, one call at a time.
        kept: hashes of files that need not be read again, where that is wanted.
        opaque_pickle: hash pickle files as files that nothing looks into, where there is nothing else.

    Raises:
        InputError: when the files are not a sound checkpoint, hold pickle only, or change meanwhile.
    """
    weights = open_weights(path, opaque_pickle=opaque_pickle)
    before = kept.used if kept is not None else 0
    entries = hash_files(weights.files, progress, kept)
    if weights.aside:
        named = [entry._replace(name=ASIDE + entry.name) if entry.name in weights.aside else entry for entry in entries]
        entries = tensor_entries(named, [entry.content_hash for entry in named])
    found = fingerprint_entries(entries, config if weights.form == "safetensors" else None)
    if weights.form == "opaque":
        found = replace(found, kv_rule=RULE)
    return CheckpointFingerprint(
        **vars(found),
        layout=_layout(weights.files),
        kept=kept.used - before if kept is not None else 0,
        metadata=weights.gguf.metadata if weights.gguf is not None else None,
        metadata_digest=weights.gguf.metadata_digest if weights.gguf is not None else None,
    )


def pickle_beside(folder: Path, progress: Progress = silent) -> str | None:
    """Return the root over the pickle files in a folder, as files that nothing looks into; ``None``: there are none.

    Loaders take the safetensors beside them, but a model's class may read one of them by its name.

    Raises:
        InputError: one cannot be read, or changes meanwhile.
    """
    files = open_opaque(folder, list_folder(folder)) if folder.is_dir() else ()
    return root_digest(hash_files(files, progress)) if files else None


def file_digests(folder: Path, names: Iterable[str], progress: Progress = silent) -> dict[str, str]:
    """Return the digest of each of these files of a folder, as a file that nothing looks into.

    Raises:
        InputError: one cannot be read, or changes meanwhile.
    """
    files = [whole_file(folder / name, name) for name in sorted(names)]
    return {entry.name: entry.content for entry in hash_files(files, progress)} if files else {}


def fingerprint_entries(entries: Iterable[TensorEntry], config: Mapping[str, Any] | None) -> Fingerprint:
    """Return the fingerprint of tensors that were hashed.

    Args:
        entries: each name once.
        config: as :func:`fingerprint_checkpoint` takes it.
    """
    entries = sorted(entries, key=_NAME)
    alias = tied_alias(entries, config)
    counted = tuple(entries if alias is None else [entry for entry in entries if entry.name != alias])
    root = root_digest(counted)
    kv, rule = kv_digest(counted, config, root)
    return Fingerprint(
        digest=root,
        kv_digest=kv,
        kv_rule=rule,
        tensors=len(counted),
        bytes=sum(tensor_bytes(entry.dtype, entry.shape) for entry in counted),
        entries=counted,
    )


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
    return printed(hasher.digest())
