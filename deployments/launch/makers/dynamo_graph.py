"""Dynamo's graph deployments, to the pods of their components: workers, and the frontend in front of them.

Two forms: ``services`` with ``extraPodSpec.mainContainer`` (nvidia.com/v1alpha1) and ``components`` with a
``podTemplate`` (v1beta1). The operator adds variables by which workers find each other, ports and probes; of several
nodes it also sets how they join. A component that it may start with more than the file shows says so.

Source: ai-dynamo/dynamo, deploy/operator/api/v1alpha1/dynamocomponentdeployment_types.go at 1d26d92,
dynamographdeployment_types.go at 0fddc01, deploy/operator/api/dynamo/v1beta1/dynamocomponentdeployment_types.go at
ef2e633 and deploy/operator/api/v1beta1/dynamographdeployment_types.go at 0fddc01.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvgate.deployments.launch.makers.values import Values
from kvgate.deployments.launch.objects import KubernetesObject, Made
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.errors import InputError

_GROUP = "nvidia.com/"
_GRAPH, _COMPONENT = "DynamoGraphDeployment", "DynamoComponentDeployment"
MAIN = "main"  # the container of a component that is Dynamo's
_FRONTENDS = frozenset({"frontend", "main"})
_WORKERS = frozenset({"worker", "prefill", "decode"})
# What of a component changes neither its command nor its variables.
_READ = frozenset(
    {"annotations", "autoscaling", "backendFramework", "compilationCache", "componentType", "dynamoNamespace", "env"}
    | {"envFromSecret", "envs", "eppConfig", "extraPodMetadata", "extraPodSpec", "globalDynamoNamespace", "ingress"}
    | {"labels", "livenessProbe", "minAvailable", "modelRef", "multinode", "name", "podTemplate", "readinessProbe"}
    | {"replicas", "resources", "scalingAdapter", "serviceName", "sharedMemory", "sharedMemorySize", "subComponentType"}
    | {"topologyConstraint", "type", "volumeMounts"}
)


def dynamo_objects(objects: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """Return the objects with Dynamo's graphs as the pods of their components.

    Args:
        objects: the objects of one deployment.

    Raises:
        InputError: a field of another kind than the resource has.
    """
    found: list[KubernetesObject] = []
    for one in objects:
        own = str(one.data.get("apiVersion", "")).startswith(_GROUP)
        found += _components(one) if own and one.kind in (_GRAPH, _COMPONENT) else [one]
    return found


def _components(one: KubernetesObject) -> Iterator[KubernetesObject]:
    spec = Values(one.data.get("spec") or {}, f"{one.where}: spec")
    if not isinstance(spec.data, Mapping):
        raise InputError("is no mapping", where=spec.where)
    services = spec.inside("services")
    parts = [(str(name), services.inside(name)) for name in services.data]
    parts += [(part.word("name"), part) for part in spec.each("components")]
    if one.kind == _COMPONENT:
        parts = [(spec.word("serviceName") or spec.word("name") or one.name, spec)]
    shared = [] if one.kind == _COMPONENT else [*spec.each("envs"), *spec.each("env")]
    claims = frozenset(claim.word("name") for claim in spec.each("pvcs"))
    for name, part in parts:
        kind = (part.word("componentType") or part.word("type")).lower()
        made = Made(
            pool=name,
            undisclosed=tuple(f"{place} was not read, and it may set any variable" for place in part.strangers(_READ)),
            graph=f"{one.namespace}/{one.name}" if kind in _FRONTENDS | _WORKERS else "",
            frontend=kind in _FRONTENDS,
            worker=kind in _WORKERS,
        )
        yield replace(one, data={"spec": _pod(part, shared, claims)}, where=f"{one.where}: {_shown(name)}", made=made)


def _pod(part: Values, shared: Sequence[Values], claims: frozenset[str]) -> dict[str, Any]:
    """Return the spec of a component's pod, of either form."""
    template = part.inside("podTemplate").inside("spec")
    if template.data:
        containers = [dict(one.data) for one in template.each("containers")]
        for container in containers:
            if container.get("name") == MAIN:
                container["env"] = _merged(shared, Values(container, part.where).each("env"), certain=True)
        return {**template.data, "containers": containers}
    extra = part.inside("extraPodSpec")
    main = extra.inside("mainContainer")
    container = {"name": MAIN, **main.data}
    container["env"] = _merged([*shared, *part.each("envs")], main.each("env"), certain=False)
    if secret := part.word("envFromSecret"):
        given = [dict(one.data) for one in main.each("envFrom")]
        container["envFrom"] = [*given, {"secretRef": {"name": secret}}]
    mounts = [one for one in part.each("volumeMounts") if one.word("mountPoint")]
    container["volumeMounts"] = [
        *(dict(one.data) for one in main.each("volumeMounts")),
        *({"name": one.word("name"), "mountPath": one.word("mountPoint")} for one in mounts),
    ]
    volumes = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in dict.fromkeys(one.word("name") for one in mounts)
        if name in claims
    ]
    rest = {key: value for key, value in extra.data.items() if key != "mainContainer"}
    return {
        **rest,
        "containers": [container, *(dict(one.data) for one in extra.each("containers"))],
        "volumes": [*(dict(one.data) for one in extra.each("volumes")), *volumes],
    }


def _merged(before: Sequence[Values], after: Sequence[Values], *, certain: bool) -> list[dict[str, Any]]:
    """Return variables in their order; of one name the last counts, or nobody knows which where that was not read."""
    found: dict[str, dict[str, Any]] = {}
    inner = {one.word("name") for one in after}
    for one in (*before, *after):
        name = one.word("name")
        entry = dict(one.data)
        if not certain and name in found and name in inner and found[name] != entry:
            entry = {"name": name, "valueFrom": {"of two": {}}}
        found.pop(name, None)
        found[name] = entry
    return list(found.values())


def _shown(name: str) -> str:
    return clean_text(name) or "..."
