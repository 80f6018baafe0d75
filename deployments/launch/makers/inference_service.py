"""KServe's InferenceService with a ServingRuntime that starts an engine, to the pod of its predictor.

Source: kserve/kserve aaac4e2 (0.20), pkg/controller/v1beta1/inferenceservice/utils/utils.go (MergeRuntimeContainers,
MergePodSpec, ReplacePlaceholders, UpdateImageTag), config/runtimes/kserve-vllmserver.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kvgate.deployments.launch.makers.merging import strategic_merge
from kvgate.deployments.launch.makers.values import Values, filled
from kvgate.deployments.launch.objects import KubernetesObject, Made, mapping
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.errors import InputError

RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
_CONTAINER = "kserve-container"
_WORKERS = "the service starts workers on other nodes as well, and KServe may add any flag for them"
_TAG = re.compile(r":[\w.-]*$")
# Fields of `model` that are no container's.
_OF_THE_MODEL = frozenset({"modelFormat", "runtime", "storageUri", "storage", "protocolVersion", "runtimeVersion"})


def takes_runtime(one: KubernetesObject) -> bool:
    """Whether a service names a model for a runtime, and no containers of its own."""
    return isinstance(mapping(mapping(one.data.get("spec")).get("predictor")).get("model"), Mapping)


def predictor_objects(one: KubernetesObject, runtimes: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """Return the pod of a service's predictor.

    Args:
        one: the service.
        runtimes: the runtimes that were given with it.

    Raises:
        InputError: its runtime was not given, or a field is of another kind than the resource has.
    """
    predictor = Values(mapping(one.data.get("spec")), f"{one.where}: spec").inside("predictor")
    model = predictor.inside("model")
    runtime = _runtime(model, runtimes)
    spec = Values(mapping(runtime.data.get("spec")), f"{runtime.where}: spec")
    base = next((item for item in spec.each("containers") if item.data.get("name") == _CONTAINER), None)
    if base is None:
        raise InputError(f"has no container {_CONTAINER}", where=spec.at("containers"))
    own = {key: value for key, value in model.data.items() if key not in _OF_THE_MODEL}
    container = {
        **strategic_merge(base.data, own, model.where),
        "args": [*base.words("args"), *model.words("args")],
        "name": _CONTAINER,
    }
    if version := model.word("runtimeVersion"):
        image = str(container.get("image", ""))
        container["image"] = image if "@sha256:" in image else f"{_TAG.sub('', image)}:{version}"
    others = [item.data for item in spec.each("containers") if item.data.get("name") != _CONTAINER]
    pod = strategic_merge(
        {"volumes": spec.sequence("volumes")},
        {"volumes": predictor.sequence("volumes"), "containers": predictor.sequence("containers")},
        predictor.where,
    )
    names = {".Name": one.name, ".Namespace": one.namespace}
    pod["containers"] = [filled(container, names), *others, *pod["containers"]]
    made = Made(
        hidden=(_WORKERS,) if "workerSpec" in predictor or "workerSpec" in spec else (),
        notes=tuple(_notes(model)),
    )
    return [replace(one, data={"spec": pod}, made=made)]


def _runtime(model: Values, runtimes: Sequence[KubernetesObject]) -> KubernetesObject:
    """Return the runtime that a service names; where it leaves the choice to KServe, the only one that was given."""
    name = model.word("runtime")
    named = [one for one in runtimes if one.name == name] if name else list(runtimes)
    if len(named) == 1:
        return named[0]
    wanted = f"the ServingRuntime {clean_text(name) or '...'}" if name else "the one ServingRuntime that KServe chooses"
    raise InputError(
        f"{wanted} was not given, and it starts the engine",
        where=model.where,
        hint="give it as well (`kubectl get servingruntime,clusterservingruntime -o yaml`)",
    )


def _notes(model: Values) -> Iterator[str]:
    if uri := clean_text(model.word("storageUri")):
        yield f"KServe puts the files of {uri} at /mnt/models"
