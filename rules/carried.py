"""What requests carry: what a deployment says of them, and what follows from what it serves."""

from __future__ import annotations

from typing import get_args

from kvgate.rules.manifest import Manifest
from kvgate.rules.schema import Feature
from kvgate.rules.values import Known


def carries(manifest: Manifest, feature: str) -> bool | None:
    """Whether requests to a deployment carry a feature; ``None`` where that is not known.

    Adapters that are served, or that can be loaded, are asked for; what carries a boundary between tenants is carried.
    """
    features, adapters, tenancy = (manifest.get(path) for path in ("request_features", "adapters", "cache.tenancy"))
    said = {"lora" if one == "lora_hot_load" else one for one in manifest.value("request_features") or ()}
    if feature in said or (manifest.value("cache.tenancy") or {}).get("carried_by") == feature:
        return True
    deciding = [features, tenancy]
    if feature == "lora":
        if any(entry.get("removed") is not True for entry in (manifest.value("adapters") or {}).values()):
            return True
        deciding.append(adapters)
    return False if all(isinstance(field, Known) for field in deciding) else None


def text_only(manifest: Manifest) -> bool:
    """Whether requests are known to carry nothing but text."""
    return all(carries(manifest, feature) is False for feature in get_args(Feature))
