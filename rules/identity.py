"""What a deployment is, apart from where its cache lies: the projection behind derived ids and evidence binding.

Harmless parts are left out, so that neither an id moves nor a refutation is shed when only they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.catalogue import Dimension, dimensions
from kvgate.rules.change import measured
from kvgate.rules.compare.maps import counting_args, counting_config
from kvgate.rules.compare.plain import rope_reads_length
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known

_PINNED = "weights.hub"


def identity(manifest: Manifest) -> dict[str, Any]:
    """Return the identity paths that are known, with their values reduced to what counts."""
    found: dict[str, Any] = {}
    for dimension in dimensions():
        if _irrelevant(dimension, manifest):
            continue
        for path in dimension.identity:
            field = manifest.get(path)
            if isinstance(field, Known):
                found[path] = _reduced(path, field.value, manifest)
    if found.get("weights.checkpoint.digest") is None and (pinned := _pin(manifest)) is not None:
        found[_PINNED] = pinned
    return found


def missing_identity(manifest: Manifest) -> list[Dimension]:
    """Return the dimensions whose identity is not known, or only declared where it must be measured; by order."""
    known = identity(manifest)
    missing = []
    for dimension in dimensions():
        if _irrelevant(dimension, manifest):
            continue
        for path in dimension.identity:
            if path == "weights.checkpoint.digest" and known.get(path) is None:
                complete = _PINNED in known
            else:
                field = manifest.get(path)
                complete = path in known and (
                    dimension.needs == "declared" or field == Known(None, manifest.basis(path)) or measured(field)
                )
            if path == "adapters" and complete:
                complete = all("digest" in entry for entry in (manifest.value(path) or {}).values())
            if not complete:
                missing.append(dimension)
                break
    return sorted(missing, key=lambda dimension: dimension.order)


def _irrelevant(dimension: Dimension, manifest: Manifest) -> bool:
    return dimension.only_with is not None and manifest.get(dimension.only_with) == Known(
        None, manifest.basis(dimension.only_with)
    )


def _reduced(path: str, value: Any, manifest: Manifest) -> Any:
    if path == "model.config" and isinstance(value, Mapping):
        return counting_config(value)
    if path == "engine.args":
        return counting_args(value or {}, manifest.value("engine.name"))
    if path == "adapters":
        return {name: entry.get("digest") for name, entry in (value or {}).items() if entry.get("removed") is not True}
    if path == "engine.max_model_len":
        return value if rope_reads_length(manifest) is not False else None
    return value


def _pin(manifest: Manifest) -> dict[str, str] | None:
    hub = manifest.value("weights.hub")
    if manifest.get("weights.checkpoint") == Known(None, manifest.basis("weights.checkpoint")) and isinstance(
        hub, Mapping
    ):
        return {"repo": hub["repo"], "commit": hub["commit"]}
    return None
