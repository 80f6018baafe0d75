"""KServe's resources among Kubernetes objects: each service becomes the pods that its controller makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvgate.deployments.launch.makers.inference_service import RUNTIMES, predictor_objects, takes_runtime
from kvgate.deployments.launch.makers.llm_inference_service import CONFIG, service_objects
from kvgate.deployments.launch.objects import KubernetesObject, Made

_GROUP = "serving.kserve.io/"
_MORE = "the InferenceService was not given, and it may add any flag to its runtime's"


def kserve_objects(objects: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """Return the objects with KServe's services as the pods they become, and without what these are made of.

    A ServingRuntime is a pod of its own only where no service that takes one is given: then it is all that is known.

    Args:
        objects: the objects of one deployment.

    Raises:
        InputError: a field of another kind than the resource has, a runtime that was not given.
    """
    own = [one for one in objects if _is_kserve(one)]
    configs = [one for one in own if one.kind == CONFIG]
    runtimes = [one for one in own if one.kind in RUNTIMES]
    taking = any(one.kind == "InferenceService" and takes_runtime(one) for one in own)
    found = []
    for one in objects:
        if not _is_kserve(one):
            found.append(one)
        elif one.kind == "LLMInferenceService":
            found += service_objects(one, configs)
        elif one.kind == "InferenceService" and takes_runtime(one):
            found += predictor_objects(one, runtimes)
        elif one.kind in RUNTIMES:
            found += [] if taking else [replace(one, made=Made(hidden=(_MORE,)))]
        elif one.kind != CONFIG:
            found.append(one)
    return found


def _is_kserve(one: KubernetesObject) -> bool:
    return str(one.data.get("apiVersion", "")).startswith(_GROUP)
