"""The tensor maps beside a manifest, and that they are the manifest's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.inputs import sidecar_path
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest

if TYPE_CHECKING:
    from kvgate.weights.tensor_map import TensorMap

_CHECKPOINT = "weights.checkpoint"
_SERVED = "weights.served"


def tensor_map(manifest: Manifest) -> TensorMap | None:
    """Return the map of a manifest's checkpoint, ``None`` where it names none.

    It is read whether or not anything is compared with it: a digest that its own tensors contradict says nothing.

    Raises:
        InputError: a map is missing, exchanged, or not that of the digests that the manifest has.
    """
    for rank in manifest.value(_SERVED) or ():
        _read(manifest, f"{_SERVED}.{rank}")
    found = _read(manifest, _CHECKPOINT)
    if found is not None:
        _require_kv_digest(manifest, found)
    return found


def _read(manifest: Manifest, section: str) -> TensorMap | None:
    field, path = f"{section}.map", f"{section}.digest"
    if manifest.value(field) is None:
        return None
    from kvgate.weights.tensor_map import MAX_BYTES, read_map

    named = sidecar_path(manifest, field, MAX_BYTES)
    if named is None:
        return None
    found = read_map(*named)
    if manifest.value(path) != found.digest:
        raise InputError(
            f"{path} is not that of the tensor map beside it",
            where=manifest.where(path),
            hint="one of them was edited, or is of another capture; capture again",
        )
    return found


def _require_kv_digest(manifest: Manifest, found: TensorMap) -> None:
    from kvgate.weights.opaque import RULE
    from kvgate.weights.tensor_map import kv_digest_of

    path, config = f"{_CHECKPOINT}.kv_digest", manifest.value("model.config")
    claimed = manifest.value(path), manifest.value(f"{_CHECKPOINT}.kv_rule")
    if config is None or None in claimed or claimed[1] == RULE:
        return
    digest, rule = kv_digest_of(found, config)
    version = rule.partition("/")[0]
    if claimed[1].partition("/")[0] != version:
        raise InputError(
            f"kv_rule {claimed[1]} is of a list that this kvgate does not have, so kv_digest cannot be checked",
            where=manifest.where(path),
            hint="capture again with this version, or check with the one that captured it",
        )
    if claimed not in ((digest, rule), (found.digest, f"{version}/all-tensors")):
        raise InputError(
            f"{path} is not that of the tensor map beside it",
            where=manifest.where(path),
            hint="one of them, kv_rule or model.config was edited; capture again",
        )
