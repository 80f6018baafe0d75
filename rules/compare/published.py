"""Weights by what a hub publishes of them, where no digest was taken: a pinned commit, or the files' own digests."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured, same
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import UNKNOWN, Field, Known

_CHECKPOINT = "weights.checkpoint"
_FILES = "weights.hub.files"
_TENSORS = ".safetensors"
_INDEX = ".index.json"
_ONE_FILE = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
# What loads *.safetensors wherever there are any (vllm 0.33.0, model_executor/model_loader/default_loader.py; sglang
# 0.5.23, srt/model_loader/loader.py); unset is auto.
_SAFETENSORS_FIRST = (None, "auto", "hf", "safetensors", "fastsafetensors", "runai_streamer")


def compare_published(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare by what the hub says (kind: ``unverified``; what differs there says nothing of the tensors).

    Files whose published SHA-256 are equal are equal, and so is what loaders make of them. Files that differ can still
    hold the same tensors, and so can two commits. A digest is of the bytes that lay on a machine, whatever a hub
    publishes under their name: what is published never stands for it.
    """
    old, new = (_commit(side.value("weights.hub")) for side in (sides.old, sides.new))
    null = sides.both_null(_CHECKPOINT)
    if not _one_set(sides):
        detail = "a repository may hold several sets of weights, and the two sides may load others of them"
        return [sides.unverified(dimension, _CHECKPOINT, detail)]
    if null and old is not None and old == new:
        if all(measured(side.get("weights.hub")) for side in (sides.old, sides.new)):
            return []
        detail = "equal, but only declared: the launch lines do not both load that commit by its 40 digits"
        return [sides.unverified(dimension, "weights.hub", detail)]
    if not sides.old.knows(_CHECKPOINT) or not sides.new.knows(_CHECKPOINT):
        return [sides.unverified(dimension, _CHECKPOINT, sides.unknown_sides(_CHECKPOINT))]
    if not null:
        detail = "a digest was taken on one side only, and what a hub publishes is not what was hashed"
        return [sides.unverified(dimension, _CHECKPOINT, detail + floating(sides))]
    files = [_weight_files(side.value(_FILES)) for side in (sides.old, sides.new)]
    if files[0] is None or files[1] is None:
        if old is not None and new is not None:
            return [sides.unverified(dimension, "weights.hub", "another commit, and no digests to compare")]
        return [sides.unverified(dimension, _CHECKPOINT, "no digest and no pinned hub commit" + floating(sides))]
    if not all(_loads_safetensors(side) for side in (sides.old, sides.new)):
        detail = "safetensors are not known to be what is loaded, and only they are compared by published digests"
        return [sides.unverified(dimension, _FILES, detail)]
    if files[0] != files[1]:
        names = sorted(name for name in files[0].keys() | files[1].keys() if files[0].get(name) != files[1].get(name))
        detail = f"{names[0]} and {len(names) - 1} more files" if len(names) > 1 else names[0]
        return [sides.unverified(dimension, _FILES, f"{detail} differ; only the tensors in them say what that means")]
    if not measured(sides.old.get(_FILES)) or not measured(sides.new.get(_FILES)):
        return [sides.unverified(dimension, _FILES, "equal, but only declared: nobody asked the hub")]
    return []


def floating(sides: Sides) -> str:
    """Say that the revision is a name that can move, where both sides have the same one; else nothing."""
    revision = "model.revision"
    if same(sides.old.get(revision), sides.new.get(revision)) and isinstance(sides.new.value(revision), str):
        value = sides.new.value(revision)
        if len(value) != 40:
            return f"; the revision {value!r} on both sides is a name that can move, not evidence"
    return ""


def names_a_part(side: Manifest) -> bool:
    """Whether the model's name is that of one file, or of one set of several: ``org/model:Q4_K_M``."""
    name = str(side.value("model.id")).lower()
    return ":" in name.rpartition("://")[2] or name.endswith(_ONE_FILE)


def _one_set(sides: Sides) -> bool:
    """Whether both sides load the same of what a repository holds."""
    ids = [side.value("model.id") for side in (sides.old, sides.new)]
    if ids[0] != ids[1] and (names_a_part(sides.old) or names_a_part(sides.new)):
        return False
    return same(_load_format(sides.old), _load_format(sides.new)) is True


def _load_format(side: Manifest) -> Field:
    args = side.get("engine.args")
    if not isinstance(args, Known):
        return UNKNOWN
    named = (args.value or {}).get("load-format")
    return Known(None if named in _SAFETENSORS_FIRST else named)


def _loads_safetensors(side: Manifest) -> bool:
    """Whether an engine takes tensors from all safetensors of the repository, and from nothing else."""
    return not names_a_part(side) and _load_format(side) == Known(None)


def _weight_files(files: object) -> dict[str, str] | None:
    """Return the published digests of the files that a loader takes tensors from; ``None``: they do not say enough.

    A file outside Git LFS is known by its SHA-1 alone: enough for an index, as for a commit, and not for tensors.
    """
    if not isinstance(files, Mapping):
        return None
    found = {name: str(digest) for name, digest in files.items() if name.endswith((_TENSORS, _INDEX))}
    tensors = [digest for name, digest in found.items() if name.endswith(_TENSORS)]
    return found if tensors and all(digest.startswith("sha256:") for digest in tensors) else None


def _commit(hub: object) -> tuple[str, str] | None:
    if not isinstance(hub, Mapping) or not isinstance(hub.get("repo"), str) or not isinstance(hub.get("commit"), str):
        return None
    return hub["repo"], hub["commit"]
