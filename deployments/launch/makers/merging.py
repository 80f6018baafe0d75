"""Kubernetes' strategic merge of pod specs: lists whose entries have a key are merged by it, others are replaced.

Source: the ``patchStrategy`` and ``patchMergeKey`` tags in kubernetes/api core/v1/types.go at kubernetes 1.34.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.rules.errors import InputError

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
}


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a spec with another one over it; what the patch leaves out or sets to nothing stays.

    Args:
        base: the spec below.
        patch: the spec above.
        where: what to call the patch in errors.

    Raises:
        InputError: a directive of the merge (``$patch``), which kvgate does not follow.
    """
    found = dict(base)
    for key, value in patch.items():
        before = found.get(key)
        if key.startswith("$"):
            raise InputError("holds a directive of a strategic merge, which kvgate does not follow", where=where)
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            found[key] = strategic_merge(before, value, where)
        elif key in _KEYS and isinstance(value, list) and isinstance(before, list):
            found[key] = _merged_list(before, value, _KEYS[key], where)
        else:
            found[key] = value
    return found


def _merged_list(base: Sequence[Any], patch: Sequence[Any], key: str, where: str) -> list[Any]:
    found = list(base)
    places = {name: at for at, one in reversed(list(enumerate(found))) if (name := _name(one, key)) is not None}
    for item in patch:
        at = places.get(_name(item, key))
        if at is None:
            found.append(item)
        else:
            found[at] = strategic_merge(found[at], item, where)
    return found


def _name(item: Any, key: str) -> Any:
    name = item.get(key) if isinstance(item, Mapping) else None
    return name if isinstance(name, (str, int)) else None
