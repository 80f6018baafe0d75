"""What a pod asks of its node: the GPU in it is held against the one that is declared."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.deployments.contradictions import refuse_contradictions
from kvgate.deployments.launch import LaunchFacts
from kvgate.rules.errors import UsageError
from tests.deployments import made
from tests.deployments.made import model_spec, modelservice, stack, workload
from tests.deployments.test_launch_kubernetes import deployment, pod, reason
from tests.deployments.test_launch_kubernetes import read as read_objects

PRODUCT, GKE, MACHINE = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "node.kubernetes.io/instance-type"
PATH = "engine.accelerator"


def read(**spec: Any) -> LaunchFacts:
    return read_objects(deployment(pod(**spec)))


def term(label: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"matchExpressions": [{"key": label, "operator": operator, "values": list(values)}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {PRODUCT: "NVIDIA-H200"}},
        {"nodeSelector": {GKE: "NVIDIA-H200", MACHINE: "a3"}},
        {"nodeSelector": {GKE: "other", PRODUCT: "NVIDIA-H200"}},
        {"affinity": required(term(PRODUCT, "NVIDIA-H200"))},
        {"affinity": required(term(PRODUCT, "NVIDIA-H200"), term(PRODUCT, "NVIDIA-H200"))},
        {"affinity": required(term(PRODUCT, "A100", "NVIDIA-H200")), "nodeSelector": {PRODUCT: "NVIDIA-H200"}},
    ],
)
def test_the_gpu_that_a_pod_asks_for_is_its_accelerator(spec: dict[str, Any]) -> None:
    facts = read(**spec)
    assert facts.values[PATH] == "NVIDIA-H200"
    assert facts.values["engine.args"] == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": required(term(PRODUCT, "NVIDIA-H200", operator="NotIn"))},
        {"affinity": required(term(PRODUCT, "NVIDIA-H200"), term("zone", "a"))},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": {}}]}}},
        {"affinity": "x", "nodeSelector": {PRODUCT: 1}},
    ],
)
def test_what_need_not_hold_says_nothing(spec: dict[str, Any]) -> None:
    facts = read(**spec)
    assert PATH not in facts.values
    assert PATH not in dict(facts.unknown)
    assert facts.values["engine.args"] == {}


def test_several_gpus_leave_it_open_and_count() -> None:
    facts = read(affinity=required(term(PRODUCT, "NVIDIA-H200"), term(PRODUCT, "NVIDIA-A100")))
    assert reason(facts, PATH) == "the file lets it run on NVIDIA-A100 or NVIDIA-H200"
    assert facts.values["engine.args"] == {f"node.{PRODUCT}": ["NVIDIA-A100", "NVIDIA-H200"]}


def test_a_device_that_is_no_whole_gpu_counts() -> None:
    def asks(device: str) -> Any:
        container = {"resources": {"limits": {device: 1, "cpu": 4, "memory": "1Gi"}}}
        return read_objects(deployment(pod(container, nodeSelector={PRODUCT: "A100"}))).values["engine.args"]

    assert asks("nvidia.com/gpu") == {}
    assert asks("nvidia.com/mig-4g.71gb") == {"node.resources": ["nvidia.com/mig-4g.71gb"]}
    values = made.read(stack(model_spec(requestGPUType="nvidia.com/mig-4g.71gb"))).values
    assert values["engine.args"]["node.resources"] == ["nvidia.com/mig-4g.71gb"]


def test_a_kind_of_machine_counts_where_no_gpu_is_named() -> None:
    facts = read(nodeSelector={MACHINE: "p5.48xlarge"})
    assert facts.values["engine.args"] == {f"node.{MACHINE}": ["p5.48xlarge"]}


@pytest.mark.parametrize(
    ("declared", "label", "alike"),
    [
        ("H200", "NVIDIA-H200", True),
        ("8xH200", "NVIDIA-H200", True),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb", True),
        ("a100", "NVIDIA-A100-SXM4-80GB", True),
        ("MI300X", "AMD_Instinct_MI300X", True),
        ("H200", "NVIDIA-A100-SXM4-80GB", False),
        ("A100", "NVIDIA-A10", False),
        ("A10", "NVIDIA-A100-PCIE-40GB", False),
        ("L40", "NVIDIA-L40S", False),
        ("GH200", "NVIDIA-H200", False),
    ],
)
def test_a_declared_gpu_is_refused_where_the_file_asks_for_another(declared: str, label: str, alike: bool) -> None:
    facts = read(nodeSelector={PRODUCT: label})
    if alike:
        refuse_contradictions({PATH: declared}, facts)
    else:
        with pytest.raises(UsageError, match="the launch line says"):
            refuse_contradictions({PATH: declared}, facts)


def test_charts_hand_on_what_is_asked_of_the_node() -> None:
    asked = term(PRODUCT, "NVIDIA-H200")
    assert made.read(stack(model_spec(nodeSelectorTerms=[asked]))).values[PATH] == "NVIDIA-H200"
    assert PATH not in made.read(stack(model_spec(nodeSelectorTerms=[asked], nodeName="node-1"))).values
    types = {"labelKey": PRODUCT, "labelValues": ["NVIDIA-H200"]}
    for section in ({"acceleratorTypes": types}, {"nodeSelector": {PRODUCT: "NVIDIA-H200"}}):
        assert made.read(modelservice({**workload(), **section})).values[PATH] == "NVIDIA-H200"


def test_charts_hand_on_what_runs_before_the_engine_on_its_files() -> None:
    def beside(image: str) -> tuple[Any, Any]:
        first = {"name": "fetch", "image": image, "mountPvcStorage": True}
        of_stack = made.read(stack(model_spec(initContainer=first, pvcStorage="1Gi")))
        mounts = [{"name": "kv", "mountPath": "/kv"}]
        pool = workload(
            container={"volumeMounts": mounts},
            volumes=[{"name": "kv", "emptyDir": {}}],
            initContainers=[{"name": "fetch", "image": image, "volumeMounts": mounts}],
        )
        found = (of_stack, made.read(modelservice(pool)))
        first_args, second_args = (one.values["engine.args"]["beside.fetch"] for one in found)
        return first_args, second_args

    assert all(one != other for one, other in zip(beside("a"), beside("b"), strict=True))
    assert beside("a") == beside("a")
