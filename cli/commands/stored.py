"""``kvgate fingerprint PATH``: weights in files, and what differs between two sets of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.rules.errors import InputError
    from kvgate.rules.progress import Progress
    from kvgate.weights.fingerprint import CheckpointFingerprint
    from kvgate.weights.kept_hashes import KeptHashes
    from kvgate.weights.tensor_map import MapDifference, TensorMap

_MAP = ".jsonl"
_MANIFESTS = (".yaml", ".yml")
_Kv = tuple[str, str]  # kv_digest and kv_rule
_SHOWN = ("digest", "kv_digest", "kv_rule", "layout", "tensors", "bytes")


class Stored:
    """Reads one side or both, with one file of kept hashes."""

    def __init__(self, hash_cache: Path | None, opaque: bool, progress: Progress) -> None:
        from kvgate.weights.kept_hashes import KeptHashes

        self._kept: KeptHashes | None = None if hash_cache is None else KeptHashes(hash_cache, not_kept)
        self._opaque = opaque
        self._progress = progress

    def one(self, path: Path, map_to: Path | None) -> dict[str, Any]:
        """Return what is to be shown of one, and write its map where that is wanted.

        Raises:
            InputError: it cannot be read, or the map not be written.
            UsageError: there is no map to be had of it, or it would be written over an input.
        """
        from kvgate.cli.output import refuse_overwriting
        from kvgate.rules.errors import UsageError
        from kvgate.weights.checkpoint import list_folder
        from kvgate.weights.files import require_writable
        from kvgate.weights.kv_scales import kv_scales_digest
        from kvgate.weights.tensor_map import write_map

        adapter, mapped = _is_adapter(path), map_of(path)
        if map_to is not None:
            if adapter or mapped is not None:
                what = "an adapter has no map of its own" if adapter else "it is had from a map already"
                raise UsageError(what, where=f"-o map={map_to}")
            refuse_overwriting([map_to], [path / name for name in list_folder(path)] if path.is_dir() else [path])
            if map_to.suffix != _MAP:
                raise UsageError(f"a map is known by its name: {map_to.stem}{_MAP}", where=f"-o map={map_to}")
            require_writable(map_to)
        if adapter:
            return _adapter(path)
        if mapped is not None:
            return {"digest": mapped.digest, "tensors": len(mapped.entries)}
        print_ = self.checkpoint(path)
        if map_to is not None:
            write_map(print_, map_to)
        facts = {name: getattr(print_, name) for name in _SHOWN}
        if (scales := kv_scales_digest(print_.entries)) is not None:
            facts["kv_scales"] = scales
        if print_.metadata_digest is not None:
            facts |= {"metadata_digest": print_.metadata_digest, "metadata": dict(print_.metadata or {})}
        if self._kept is not None:
            facts["files_not_read_again"] = print_.kept
        return facts

    def both(self, old: Path, new: Path) -> dict[str, Any]:
        """Return what differs between two.

        Raises:
            InputError: one cannot be read, or they do not compare.
        """
        from kvgate.rules.errors import InputError
        from kvgate.weights.dtypes import GGUF, OPAQUE
        from kvgate.weights.tensor_map import compare_maps

        adapters = [_is_adapter(side) for side in (old, new)]
        if all(adapters):
            return _adapters(old, new)
        if any(adapters):
            where = str((old, new)[adapters[1]])
            raise InputError("an adapter does not compare with a model", where=where, hint="compare like with like")
        (before, old_facts, old_kv), (after, new_facts, new_kv) = self._side(old), self._side(new)
        opaque = [any(entry.dtype == OPAQUE for entry in side.entries) for side in (before, after)]
        if opaque[0] != opaque[1]:
            where = str((old, new)[opaque[1]])
            raise InputError("opaque files do not compare with tensors", where=where, hint="compare like with like")
        found = compare_maps(before, after)
        facts: dict[str, Any] = {
            "state": "equal",
            "old": before.digest,
            "new": after.digest,
            "same": found.equal,
            "added": list(found.added),
            "removed": list(found.removed),
            "changed": list(found.changed),
            "renamed": [{"from": source, "to": target} for source, target in found.renamed],
        }
        if before.digest != after.digest:
            facts["state"] = "undecided" if opaque[0] else "different"  # other files may hold the same tensors
        elif old_facts is None or new_facts is None:  # a map of GGUF tensors does not say what else the file says
            if any(entry.dtype.startswith(GGUF) for entry in before.entries):
                facts["state"] = "undecided"
        elif old_facts != new_facts:
            facts["state"] = "different"
        facts |= _kv(facts["state"], old_kv, new_kv)
        if old_facts is not None and new_facts is not None:
            keys = sorted(old_facts.keys() | new_facts.keys())
            facts["metadata"] = [key for key in keys if old_facts.get(key) != new_facts.get(key)]
        if (why := _untied(found, old, new)) is not None:
            facts["note"] = why
        return facts

    def _side(self, path: Path) -> tuple[TensorMap, dict[str, Any] | None, _Kv | None]:
        """Return the tensors at ``path``, what GGUF says beside them, and what of them KV depends on."""
        from kvgate.weights.tensor_map import TensorMap

        if (mapped := _mapped(path)) is not None:
            return mapped[0], None, mapped[1]
        found = self.checkpoint(path)
        facts = None if found.metadata is None else {**found.metadata, "digest of all": found.metadata_digest}
        return TensorMap(found.digest, found.entries), facts, (found.kv_digest, found.kv_rule)

    def checkpoint(self, path: Path) -> CheckpointFingerprint:
        """Hash what lies at ``path``.

        Raises:
            InputError: it cannot be read.
        """
        from kvgate.deployments.config import effective_config, read_config
        from kvgate.weights.fingerprint import fingerprint_checkpoint

        if path.is_dir() and (real := os.path.realpath(path)) != str(path.absolute()):
            path = Path(real)  # once: a link that is turned meanwhile would give one side's config with other tensors
        config = effective_config(read_config(path)).config if os.path.exists(path / "config.json") else None  # noqa: PTH110
        return fingerprint_checkpoint(path, config, self._progress, kept=self._kept, opaque_pickle=self._opaque)


def _kv(state: str, old: _Kv | None, new: _Kv | None) -> dict[str, str]:
    """Say whether those tensors are equal that persisted KV depends on, and how they were chosen.

    Two digests say it only where one rule chose the tensors of both; a map alone does not say of which model it is.
    """
    rules = {"not known" if one is None else one[1] for one in (old, new)}
    rule = {"kv_rule": " and ".join(sorted(rules))}
    if state != "different":
        return {"kv_tensors": state} | rule
    if old is None or new is None or len(rules) > 1:
        return {"kv_tensors": "not known"} | rule
    return {"kv_tensors": "equal" if old[0] == new[0] else "different"} | rule


def _untied(found: MapDifference, old: Path, new: Path) -> str | None:
    """Say that a head may be tied, where it is all that differs and a side has no configuration that would say so."""
    from kvgate.weights.tables import tied_heads

    bare = [side for side in (old, new) if side.is_dir() and not (side / "config.json").exists()]
    alone = [*found.added, *found.removed]
    if found.changed or found.renamed or len(alone) != 1 or not bare:
        return None
    if alone[0] not in {pair.head for pair in tied_heads().pairs}:
        return None
    return f"{bare[0]} has no config.json, so nothing says that {alone[0]} is tied to the embedding"


def not_kept(error: InputError) -> None:
    """Say that a file of kept hashes could not be written; the digests are there."""
    from kvgate.cli import console

    console.say(f"the hashes are not kept: {error}")


def map_of(path: Path) -> TensorMap | None:
    """Return a tensor map, or the one beside the manifest of a captured release; ``None`` for what has to be hashed.

    Raises:
        InputError: it cannot be read, contradicts its manifest, or a release names none.
    """
    mapped = _mapped(path)
    return None if mapped is None else mapped[0]


def _mapped(path: Path) -> tuple[TensorMap, _Kv | None] | None:
    """Return a map as :func:`map_of` does, with what its manifest says of the tensors that KV depends on."""
    from kvgate.inputs import load_manifest
    from kvgate.rules.errors import InputError
    from kvgate.weight_maps import tensor_map
    from kvgate.weights.checkpoint import list_folder
    from kvgate.weights.tensor_map import read_map

    if path.suffix == _MAP:
        return read_map(path, None), None
    if path.suffix not in _MANIFESTS:
        names = list_folder(path) if path.is_dir() else []
        if "manifest.yaml" not in names or any(name.endswith((".safetensors", ".gguf")) for name in names):
            return None
    release = load_manifest(path)
    found = tensor_map(release)
    if found is None:
        hint = "give the checkpoint's folder, or capture it again"
        raise InputError("the manifest names no tensor map", where=release.source, hint=hint)
    digest, rule = (release.value(f"weights.checkpoint.{name}") for name in ("kv_digest", "kv_rule"))
    return found, None if digest is None or rule is None else (digest, rule)


def _is_adapter(path: Path) -> bool:
    return os.path.lexists(path / "adapter_config.json")  # whatever it is: reading it says what is wrong with it


def _adapters(old: Path, new: Path) -> dict[str, Any]:
    before, after = _adapter(old), _adapter(new)
    facts = {"state": "equal" if before["digest"] == after["digest"] else "different"}
    facts |= {"old": before.pop("digest"), "new": after.pop("digest")}
    return facts | {
        "changed": [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    }


def _adapter(folder: Path) -> dict[str, Any]:
    from kvgate.weights.adapters import fingerprint_adapter

    found = fingerprint_adapter(folder)
    return {name: getattr(found, name) for name in ("digest", "rank", "alpha", "tensors", "bytes")}
