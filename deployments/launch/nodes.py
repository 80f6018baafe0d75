"""Which nodes a pod may be put on, as far as that says what GPU computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.deployments.launch.objects import mapping, mappings

# Labels that name the GPU: of NVIDIA's and AMD's own discovery, GKE, Karpenter, EKS and CoreWeave.
GPU_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
)
"""Labels of a node whose value is the name of its GPU, the most exact first."""
_MACHINE_LABELS = ("nvidia.com/gpu.family", "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
RESOURCES = "resources"
"""Under which name the devices stand that a container asks for by their kind."""

_USUAL_DEVICE = "nvidia.com/gpu"
_DEVICE = re.compile(r"[a-z0-9.-]+/(?:gpu|mig-|tpu|neuron|gaudi|xpu|npu|i915|xe)", re.IGNORECASE)
_WORDS = re.compile(r"[a-z0-9]+")
# Words of a GPU's name that say no model: maker, brand, slot, memory and its size, and a slice of it.
_NO_MODEL = re.compile(r"[a-z]+|sxm\d*|pcie\d*|hbm\d+e?|nvl\d*|\d+gb|\d+g|\d")


def asked_of_nodes(spec: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return what a pod asks of the node that it is put on, by label: the values of which the node has one.

    Only what must hold is read (``nodeSelector``, and node affinity that is required). Of several terms one is enough,
    so that a label counts where each of them has it. Devices other than NVIDIA's whole GPUs stand under ``resources``.

    Source: kubernetes/api core/v1, ``PodSpec.nodeSelector``, ``NodeSelectorTerm``.

    Args:
        spec: the pod spec.
        container: the container in it that asks for devices.
    """
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = mapping(mapping(mapping(spec.get("affinity")).get("nodeAffinity")).get(required))
    terms = [dict(_expressions(term)) for term in mappings(affinity.get("nodeSelectorTerms"))]
    selected = mapping(spec.get("nodeSelector"))
    found: dict[str, tuple[str, ...]] = {}
    for label in (*GPU_LABELS, *_MACHINE_LABELS):
        if isinstance(value := selected.get(label), str):
            found[label] = (value,)
        elif terms and all(label in term for term in terms):
            found[label] = tuple(sorted({value for term in terms for value in term[label]}))
    limits = mapping(mapping(container.get("resources")).get("limits"))
    devices = tuple(sorted(name for name in limits if _DEVICE.match(name) and name != _USUAL_DEVICE))
    return {**found, RESOURCES: devices} if devices else found


def _expressions(term: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for one in mappings(term.get("matchExpressions")):
        values = one.get("values")
        if one.get("operator") == "In" and isinstance(values, list) and isinstance(one.get("key"), str):
            yield one["key"], [value for value in values if isinstance(value, str)]


def may_be_one_gpu(declared: str, label: str) -> bool:
    """Whether a name that somebody wrote down (``H200``) may be of the GPU that a label names (``NVIDIA-H200-141GB``).

    The label says more than people write: slot, memory. The words that name the model must stand in what was written.
    """
    written = declared.lower()
    models = [word for word in _WORDS.findall(label.lower()) if not _NO_MODEL.fullmatch(word)]
    return all(re.search(rf"(?:(?<![a-z0-9])|(?<=\dx)){re.escape(model)}(?![a-z0-9])", written) for model in models)
