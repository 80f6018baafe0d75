"""What a pod mounts into a container: stores, folders of the host, and files whose content ConfigMaps give."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from kvgate.deployments.launch.containers import Mount
from kvgate.deployments.launch.filled import filled_word
from kvgate.deployments.launch.objects import KubernetesObject, mapping, mappings
from kvgate.deployments.launch.surroundings import over_code
from kvgate.rules.errors import InputError

_SUB_PATH = "a sub-path that the pod fills in"
# Volumes that end with the pod, or that Kubernetes makes itself.
_OWN = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected"})


def mounted(
    container: Mapping[str, Any],
    spec: Mapping[str, Any],
    one: KubernetesObject,
    texts: Callable[[object], Mapping[str, str] | None],
    source: str,
) -> tuple[tuple[Mount, ...], dict[str, bytes]]:
    """Return a container's mounts, and the content of the files in them that is known, by path.

    Args:
        container: the container.
        spec: its pod's spec.
        one: the object the pod belongs to.
        texts: the content of a ConfigMap by its name; ``None``: it was not given.
        source: what to call the container in errors.

    Raises:
        InputError: a mount of a volume that the pod does not have.
    """
    volumes = {str(volume.get("name")): volume for volume in mappings(spec.get("volumes"))}
    templates = mappings(mapping(one.data.get("spec")).get("volumeClaimTemplates"))
    claims = {str(mapping(template.get("metadata")).get("name")) for template in templates}
    mounts: list[Mount] = []
    files: dict[str, tuple[int, bytes]] = {}  # with how deep their mount is
    for mount in mappings(container.get("volumeMounts")):
        name, target = mount.get("name"), mount.get("mountPath")
        if not isinstance(target, str) or not isinstance(name, str):
            raise InputError("a mount without a name or a path", where=f"{source}: volumeMounts")
        if name in volumes:
            volume = volumes[name]
        elif name in claims:  # a claim for every replica
            volume = {"persistentVolumeClaim": {"claimName": f"{name}-{one.name}"}}
        else:
            volume = {"another file's": {}}
        given = _given_files(volume, mount, target, texts)
        # The deeper of two mounts lies over the other, of two at one place the later; what is not known covers too.
        depth = len(PurePosixPath(target).parts)
        files = {path: file for path, file in files.items() if not (file[0] <= depth and _is_below(path, target))}
        covered = [one.target for one in mounts if len(PurePosixPath(one.target).parts) > depth]
        files |= {
            path: (depth, data) for path, data in given.items() if not any(_is_below(path, one) for one in covered)
        }
        found = _mount(volume, mount, target, one.namespace)
        if not (given and _is_script_alone(target)):
            mounts.append(found)
    return tuple(mounts), {path: data for path, (_, data) in files.items()}


def _is_below(path: str, target: str) -> bool:
    return PurePosixPath(path).is_relative_to(target)


def _is_script_alone(target: str) -> bool:
    """Whether a script is mounted by itself where no software lies: what it does is read where it is run."""
    return target.endswith(".sh") and over_code(Mount(None, posixpath.dirname(target)), ()) is None


def _mount(volume: Mapping[str, Any], mount: Mapping[str, Any], target: str, namespace: str) -> Mount:
    where = filled_word(target)
    source, labels, named = _source(volume, namespace)
    expansions = (*where.expansions, *labels)
    if mount.get("subPathExpr"):
        expansions = (*expansions, _SUB_PATH)
    elif isinstance(sub := mount.get("subPath"), str) and sub and source is not None:
        part = filled_word(sub)
        source, expansions = f"{source.rstrip('/')}/{part.text}", (*expansions, *part.expansions)
    return Mount(source, target, expansions, named)


def _source(volume: Mapping[str, Any], namespace: str) -> tuple[str | None, tuple[str, ...], bool]:
    """Return what is mounted, what of it is not known, and whether it is a volume and no folder of the host."""
    kind = next((key for key in volume if key != "name"), "emptyDir")
    body = mapping(volume.get(kind))
    if kind in _OWN:
        return None, (), False
    path = {"hostPath": "path", "persistentVolumeClaim": "claimName", "image": "reference"}.get(kind)
    if path is not None and isinstance(value := body.get(path), str) and value:
        word = filled_word(value)
        if kind == "hostPath":
            return word.text, word.expansions, False
        prefix = f"{namespace}/" if namespace and kind == "persistentVolumeClaim" else ""
        return prefix + word.text, word.expansions, True
    if kind == "nfs" and isinstance(body.get("server"), str) and isinstance(body.get("path"), str):
        word = filled_word(f"{body['server']}{body['path']}")
        return word.text, word.expansions, True
    return "", (f"{kind} says what it is",), False


def _given_files(
    volume: Mapping[str, Any],
    mount: Mapping[str, Any],
    target: str,
    texts: Callable[[object], Mapping[str, str] | None],
) -> dict[str, bytes]:
    """Return the files that ConfigMaps put into a volume, where they were given, by their path in the container."""
    content: dict[str, str] = {}
    parts = [volume, *mappings(mapping(volume.get("projected")).get("sources"))]
    for part in parts:
        body = mapping(part.get("configMap"))
        found = texts(body.get("name")) if body else None
        items = list(_items(body))
        if found is not None:
            content |= {path: found[key] for key, path in items if key in found} if items else found
        elif part is not volume:  # of several sources the last counts, and this one is not known
            written = _written_by(part)
            content = {} if written is None else {path: one for path, one in content.items() if path not in written}
    sub = mount.get("subPath")
    if sub:
        return {target: content[sub].encode()} if isinstance(sub, str) and sub in content else {}
    root = target.rstrip("/")
    inside = {path: one for path, one in content.items() if ".." not in path.split("/")}
    return {f"{root}/{path}": one.encode() for path, one in inside.items()}


def _written_by(source: Mapping[str, Any]) -> set[str] | None:
    """Return the paths that a source of a projected volume writes; ``None``: it may write any."""
    if token := mapping(source.get("serviceAccountToken")):
        return {str(token.get("path"))}
    kind = next((key for key in ("configMap", "secret", "downwardAPI") if key in source), None)
    items = mappings(mapping(source.get(kind or "")).get("items"))
    return {str(item.get("path")) for item in items} if items else None


def _items(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for item in mappings(body.get("items")):
        if isinstance(item.get("key"), str) and isinstance(item.get("path"), str):
            yield item["key"], item["path"]
