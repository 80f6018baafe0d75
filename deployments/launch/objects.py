"""Kubernetes objects in the files that deploy them: the live spec, never annotations or status."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.deployments.launch.filled import GO_TEMPLATE
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.shell import MAX_TEXT
from kvgate.rules.document import TwoWays, parse_foreign_documents
from kvgate.rules.errors import InputError

_MAX_DEPTH = 16
_ONE = "give the files of one deployment: of a base and its patches the output of `kubectl kustomize`"


@dataclass(frozen=True)
class Made:
    """What a chart or a controller makes of an object that is none of Kubernetes' own, besides the pods in it.

    Attributes:
        pool: what to call the pods among others of one deployment; empty: by the object's name.
        hidden: why the command may have flags that the object does not show.
        undisclosed: why variables may be set that the object does not show.
        notes: what a reader should know of it, one sentence each.
        graph: what the pods belong to where one of them renders in front of the others; empty: nothing does.
        frontend: the pods are those that render in front of the others.
        worker: the pods serve a model, whether or not their command is one that is read.
    """

    pool: str = ""
    hidden: tuple[str, ...] = ()
    undisclosed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    graph: str = ""
    frontend: bool = False
    worker: bool = False


@dataclass(frozen=True)
class KubernetesObject:
    """One object.

    Attributes:
        kind: its kind, verbatim.
        name: its name; empty where it has none.
        namespace: its namespace; empty where the file leaves that to whoever applies it.
        data: the object without metadata, annotations and status.
        where: file and line, for errors.
        made: how its pods came about, where they stand in no file.
    """

    kind: str
    name: str
    namespace: str
    data: Mapping[str, Any]
    where: str
    made: Made = field(default_factory=Made)

    @property
    def shown(self) -> str:
        """Kind and name, for reasons and errors."""
        return f"{clean_text(self.kind) or '...'}/{clean_text(self.name) or '...'}"


def is_kubernetes(text: str) -> bool:
    """Whether a file holds Kubernetes objects, by its top-level keys; nothing is parsed."""
    if text.lstrip().startswith("{"):
        return '"apiVersion"' in text and '"kind"' in text
    keys = set(re.findall(r"^(apiVersion|kind)[ \t]*:", text, re.MULTILINE))
    return keys == {"apiVersion", "kind"}


def read_objects(files: Sequence[tuple[str, bytes]]) -> list[KubernetesObject]:
    """Read every object of the files, lists taken apart.

    Raises:
        InputError: not well-formed, a document that is no object, or two objects of one name that differ.
    """
    found: dict[tuple[str, str, str], KubernetesObject] = {}
    for source, data in files:
        try:
            documents = parse_foreign_documents(data, source)
        except InputError as error:
            if GO_TEMPLATE.search(data.decode("utf-8", "replace")):
                raise InputError(
                    "holds a template language that kvgate does not run",
                    where=error.where,
                    hint="give what is deployed: the output of `helm template` or of `kubectl get -o yaml`",
                ) from None
            raise
        for document, line in documents:
            if mapping(document).get("kind") == "Kustomization":
                message = "says how others are put together, which kvgate does not do"
                raise InputError(message, where=f"{source}:{line}", hint="give the output of `kubectl kustomize`")
            for one in objects_in(document, f"{source}:{line}"):
                key = (one.kind, one.namespace, one.name)
                if one.name and key in found:
                    if found[key].data != one.data:
                        message = f"{one.shown} is defined twice, and the two differ (first at {found[key].where})"
                        raise InputError(message, where=one.where, hint=_ONE)
                    continue
                found[key if one.name else (*key[:2], one.where)] = one
    return list(found.values())


def objects_in(document: Any, where: str) -> Iterator[KubernetesObject]:
    """Yield the objects of a document, a list taken apart.

    Raises:
        InputError: it is no object.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        raise InputError("a document is no Kubernetes object: it has no kind", where=where)
    items = document.get("items")
    if document["kind"].endswith("List") and isinstance(items, list):
        for index, item in enumerate(items, start=1):
            yield from objects_in(item, f"{where} (item {index})")
        return
    metadata = mapping(document.get("metadata"))
    name, namespace = (metadata.get(key) for key in ("name", "namespace"))
    yield KubernetesObject(
        document["kind"],
        name if isinstance(name, str) else "",
        namespace if isinstance(namespace, str) else "",
        {key: value for key, value in document.items() if key not in ("metadata", "status")},
        where,
    )


def pod_specs(one: KubernetesObject) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the pod specs inside an object with the path to each: whatever has a list of containers.

    So any workload is read whose pods are given as Kubernetes gives them (a Deployment, a StatefulSet, a
    LeaderWorkerSet with its leader and workers), under whatever kind.
    """
    return list(_pod_specs(one.data.get("spec"), "spec", 0))


def _pod_specs(value: Any, path: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _pod_specs(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, Mapping):
        containers = value.get("containers")
        if isinstance(containers, list) and containers and all(isinstance(item, Mapping) for item in containers):
            yield path, value
            return
        for key, item in value.items():
            if key != "metadata":  # of a pod template: labels and annotations
                yield from _pod_specs(item, f"{path}.{key}", depth + 1)


def text(value: Any, where: str) -> str:
    """Return a value that Kubernetes takes for a text.

    Raises:
        InputError: it is none; Kubernetes refuses it as well, or reads it as something else than is meant.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, TwoWays):
        raise InputError("is not a text", where=where, hint="put it in quotes")
    return value


def short_text(value: Any, where: str) -> str:
    """Return a text as :func:`text` does, that is no longer than a launch line may be.

    Raises:
        InputError: it is no text, or longer.
    """
    found = text(value, where)
    if len(found) > MAX_TEXT:
        raise InputError(f"{len(found):,} characters is more than the {MAX_TEXT:,} a launch line may have", where=where)
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping of a foreign document; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list of a foreign document; none for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
