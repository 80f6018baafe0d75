"""Kubernetes files: the container that runs the engine, with what its pod and the ConfigMaps put into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgate.deployments.launch.containers import ContainerRun, completed_elsewhere, read_image
from kvgate.deployments.launch.filled import container_word, filled_word
from kvgate.deployments.launch.invocation import Invocation, servers_in_container
from kvgate.deployments.launch.makers.dynamo_graph import MAIN, dynamo_objects
from kvgate.deployments.launch.makers.kserve import kserve_objects
from kvgate.deployments.launch.nodes import asked_of_nodes
from kvgate.deployments.launch.objects import (
    KubernetesObject,
    mapping,
    mappings,
    pod_specs,
    read_objects,
    short_text,
    text,
)
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.deployments.launch.servers import Server
from kvgate.deployments.launch.shell import MAX_FILLED, Word, too_much_to_fill_in
from kvgate.deployments.launch.volumes import mounted
from kvgate.rules.canonical import digest
from kvgate.rules.errors import InputError

_MAX_SERVERS = 500  # each is read in milliseconds; a fleet is a few objects with replicas
_FEWER = "give the objects of one deployment"
_SCRATCH = frozenset({"/dev/shm", "/tmp", "/run", "/var/run", "/var/log"})  # noqa: S108 - where nobody reads a model from
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class _Given:
    """The objects that pods refer to, by namespace and name."""

    objects: Sequence[KubernetesObject]

    def find(self, kind: str, name: object, namespace: str) -> KubernetesObject | None:
        """Return the object that is meant; ``None`` where none was given, or which of several is not known."""
        named = [one for one in self.objects if one.kind == kind and one.name == name]
        exact = [one for one in named if one.namespace == namespace]
        # A file that names no namespace is applied to the one of the others.
        meant = exact or [one for one in named if not namespace or not one.namespace]
        return meant[0] if len(meant) == 1 else None

    def texts(self, name: object, namespace: str) -> Mapping[str, str] | None:
        """Return the texts of a ConfigMap; ``None`` where it was not given."""
        found = self.find("ConfigMap", name, namespace)
        if found is None:
            return None
        data = found.data.get("data")
        return {key: text(value, f"{found.where}: data.{key}") for key, value in mapping(data).items()}


def kubernetes_servers(files: Sequence[tuple[str, bytes]], made: Sequence[KubernetesObject] = ()) -> list[Server]:
    """Find every container in the files that starts an engine.

    Args:
        files: name and content of each file; they are one deployment, and refer to each other.
        made: objects of that deployment that a chart makes.

    Raises:
        InputError: a file that is not well-formed, a container that is none, an image of one pod group that
            another pod of it has in another build.
    """
    objects = [*made, *dynamo_objects(kserve_objects(read_objects(files)))]
    given = _Given(objects)
    found = []
    fronts: dict[str, ContainerRun | None] = {}
    behind: list[tuple[str, Invocation]] = []
    for one in objects:
        images: dict[str, tuple[str, str, str]] = {}
        known = len(behind)
        for path, spec in pod_specs(one):
            for container in _containers(spec):
                name = short_text(container.get("name") or "", f"{one.where}: {path}")
                source = f"{one.where}: {one.shown}, container {clean_text(name) or '...'}"
                run = _container_run(container, spec, one, given, source)
                servers = [] if one.made.frontend else servers_in_container(run, source)
                if len(servers) > 1:
                    raise InputError("starts more than one server", where=source)
                _refuse_other_build(run.image, path, source, images)
                part = path.rpartition(".")[0].rpartition(".")[2]
                names = frozenset({name, one.name, one.shown, one.made.pool, part} - {""})
                pool = clean_text(one.made.pool or one.name or name) or "..."
                found += [Server(names, pool, source, server) for server in servers]
                if len(found) > _MAX_SERVERS:
                    raise InputError(f"more than {_MAX_SERVERS} start a server", where=one.where, hint=_FEWER)
                behind += [(one.made.graph, server) for server in servers]
                if one.made.frontend and name == MAIN:
                    same = fronts.setdefault(one.made.graph, run) == run
                    fronts[one.made.graph] = run if same else None
        if one.made.worker and not any(graph == one.made.graph for graph, _ in behind[known:]):
            raise InputError(
                "is a worker, and its command is none that kvgate reads",
                where=one.where,
                hint="give the pods that the operator makes of it (`kubectl get pods -o yaml`)",
            )
    for graph, server in behind:
        server.frontend = fronts.get(graph)
    return found


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the containers that stay: an init container that is restarted always is one of them."""
    yield from mappings(spec.get("containers"))
    yield from (one for one in mappings(spec.get("initContainers")) if one.get("restartPolicy") == "Always")


def _refuse_other_build(image: Word, path: str, source: str, seen: dict[str, tuple[str, str, str]]) -> None:
    """Leader and workers of one group compute together: they cannot be two builds of one image."""
    if image.expansions:
        return
    name = read_image(image.text).name
    reference, pod, other = seen.setdefault(name, (image.text, path, source))
    if reference != image.text and pod != path:
        raise InputError(
            f"runs another build of {clean_text(name) or 'the image'} than its own group does ({other})",
            where=source,
            hint="give every pod of a group the same image",
        )


def _container_run(
    container: Mapping[str, Any], spec: Mapping[str, Any], one: KubernetesObject, given: _Given, source: str
) -> ContainerRun:
    environment, undisclosed = _environment(container, one.namespace, given, source)
    words = {
        key: [_filled(item, environment, f"{source}: {key}") for item in _list(container.get(key))]
        for key in ("command", "args")
    }
    image = container.get("image")
    mounts, files = mounted(container, spec, one, lambda name: given.texts(name, one.namespace), source)
    hooks = mapping(container.get("lifecycle"))
    command = words["command"]
    run = ContainerRun(
        image=filled_word(short_text(image, f"{source}: image")),
        entrypoint=command[0] if command else None,
        arguments=(*command[1:], *words["args"]),
        environment=tuple(environment.items()),
        undisclosed=(*one.made.undisclosed, *undisclosed),
        mounts=mounts,
        altered=("a postStart hook runs in the container, and what it changes is not known",)
        if hooks.get("postStart")
        else (),
        workdir=_filled(workdir, environment, f"{source}: workingDir")
        if (workdir := container.get("workingDir"))
        else None,
        files=files,
        hidden=one.made.hidden,
        notes=one.made.notes,
        writers=_writers(container, spec),
        nodes=asked_of_nodes(spec, container),
    )
    return run if image else completed_elsewhere(run)


def _writers(container: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the other containers of a pod that may write to what this one mounts, each by a digest of what it runs.

    An init container that fetches the model is ordinary. That it is another one than before is a difference.
    """
    read = {
        mount.get("name")
        for mount in mappings(container.get("volumeMounts"))
        if str(mount.get("mountPath")).rstrip("/") not in _SCRATCH
    }
    found = {}
    for other in (*mappings(spec.get("initContainers")), *mappings(spec.get("containers"))):
        mounts = mappings(other.get("volumeMounts"))
        if other is container or not any(one.get("name") in read and one.get("readOnly") is not True for one in mounts):
            continue
        runs = {
            key: other.get(key) for key in ("image", "command", "args", "workingDir", "env", "envFrom", "lifecycle")
        }
        name = clean_text(str(other.get("name")))
        found[name or "..."] = digest(clean(runs)[0])
    return found


def _filled(value: Any, environment: Mapping[str, Word | None], where: str) -> Word:
    return container_word(short_text(value, where), environment, where)


def _environment(
    container: Mapping[str, Any], namespace: str, given: _Given, source: str
) -> tuple[dict[str, Word | None], list[str]]:
    """Return the variables as the kubelet makes them, and why there may be more.

    A value from a Secret or from the pod itself is ``None``: it is set, and not known.
    Source: kubernetes/kubernetes pkg/kubelet/kubelet_pods.go at df5f024, makeEnvironmentVariables: ``env`` wins over
    ``envFrom``, and a value may refer to what is set before it.
    """
    found: dict[str, Word | None] = {}
    undisclosed: list[str] = []
    added = False
    for entry in mappings(container.get("envFrom")):
        prefix = text(entry.get("prefix") or "", f"{source}: envFrom")
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if key not in entry:
                continue
            name = mapping(entry[key]).get("name")
            one = given.find(kind, name, namespace)
            if one is None:
                shown = clean_text(str(name)) or "..."
                undisclosed.append(f"the {kind} {shown} was not given, and it may set any variable")
                found = dict.fromkeys(found) if added else found  # those of the entries before it among them
                added = False
                continue
            added = True
            texts = given.texts(name, namespace) if kind == "ConfigMap" else None
            for variable in filter(_VARIABLE.fullmatch, _names(one)):  # other keys are skipped
                found[prefix + variable] = None if texts is None else filled_word(texts.get(variable, ""))
    for entry in mappings(container.get("env")):
        name = short_text(entry.get("name") or "", f"{source}: env")
        where = f"{source}: env {clean_text(name) or '...'}"
        reference = mapping(mapping(entry.get("valueFrom")).get("configMapKeyRef"))
        value: Word | None = None
        if reference:
            texts = given.texts(reference.get("name"), namespace) or {}
            key = str(reference.get("key"))
            value = filled_word(texts[key]) if key in texts else None
        elif not entry.get("valueFrom"):
            value = _filled(entry.get("value", ""), found, where)
        found[name] = value
    for name, word in found.items():
        if word is not None and len(word.expansions) > MAX_FILLED:
            raise too_much_to_fill_in(f"{source}: env {clean_text(name) or '...'}")
    return found, undisclosed


def _names(one: KubernetesObject) -> list[str]:
    """Return the keys of a ConfigMap or Secret; what a Secret holds under them is never looked at."""
    return [key for part in ("data", "stringData") for key in mapping(one.data.get(part))]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
