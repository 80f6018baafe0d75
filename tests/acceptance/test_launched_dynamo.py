"""Rollouts of Dynamo's graphs and of TensorRT-LLM's server, from the files that were deployed to the verdict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvgate
from tests.acceptance.conftest import Capture

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
IMAGE = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime@sha256:"
SETTINGS = {"tensor_parallel_size": 2, "kv_cache_config": {"dtype": "auto", "tokens_per_block": 32}}
BUCKET = {"DYN_KVBM_OBJECT_ENABLED": "1", "DYN_KVBM_OBJECT_BUCKET": "kv", "DYN_KVBM_OBJECT_ENDPOINT": "http://s3:9000"}
DECLARED = {"cache.version": "1.6.1", "engine.version": "1.3.0rc29"}
Graph = tuple[dict[str, Any], dict[str, Any]]


def graph() -> Graph:
    """A frontend and a TensorRT-LLM worker that stores its blocks in a bucket, and the settings that it is told."""

    def component(name: str, kind: str, build: str, *words: str, **more: Any) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": IMAGE + build * 64,
            "command": ["python3", "-m"],
            "args": [*words],
            **more,
        }
        volumes = [{"name": "engine", "configMap": {"name": "engine"}}]
        return {"name": name, "type": kind, "podTemplate": {"spec": {"containers": [container], "volumes": volumes}}}

    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "engine"},
        "data": {"agg.yaml": yaml.safe_dump(SETTINGS)},
    }
    worker = component(
        *("Worker", "worker", "a", "dynamo.trtllm", "--model", "/models/support", "--connector", "kvbm"),
        *("--extra-engine-args", "/etc/engine/agg.yaml"),
        env=[{"name": name, "value": value} for name, value in BUCKET.items()],
        volumeMounts=[{"name": "engine", "mountPath": "/etc/engine"}],
    )
    deployment = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "support", "namespace": "serving"},
        "spec": {"components": [component("Frontend", "frontend", "b", "dynamo.frontend"), worker]},
    }
    return deployment, settings


def _container(found: Graph, component: int) -> dict[str, Any]:
    spec = found[0]["spec"]["components"][component]["podTemplate"]["spec"]
    container: dict[str, Any] = spec["containers"][0]
    return container


def _settings(**changes: Any) -> Callable[[Graph], None]:
    def change(found: Graph) -> None:
        found[1]["data"]["agg.yaml"] = yaml.safe_dump({**SETTINGS, **changes})

    return change


def _as_it_is(_: Graph) -> None:
    pass


def _front(found: Graph) -> None:
    _container(found, 0)["image"] = IMAGE + "c" * 64


def _replicas(found: Graph) -> None:
    found[0]["spec"]["components"][1]["replicas"] = 7


def _other_bucket(found: Graph) -> None:
    _container(found, 1)["env"][1]["value"] = "other"


CASES: dict[str, tuple[Callable[[Graph], None], str, int, set[str]]] = {
    "replicas": (_replicas, REUSE, 0, set()),
    "batches": (_settings(max_batch_size=64, enable_iter_perf_stats=True), REUSE, 0, set()),
    "the frontend's build": (_front, NEW, 10, {"rendering-options-changed"}),
    "ranks": (_settings(tensor_parallel_size=4), NEW, 10, {"rank-layout-changed"}),
    "the cache's type": (_settings(kv_cache_config={"dtype": "fp8"}), NEW, 10, {"kv-dtype-changed"}),
    "a setting nobody has read": (_settings(made_up=1), NEW, 10, {"flag-unclassified"}),
}


@pytest.fixture(scope="session")
def deployed(capture: Capture, base: Path) -> Callable[[Callable[[Graph], None]], Path]:
    def make(change: Callable[[Graph], None]) -> Path:
        found = copy.deepcopy(graph())
        change(found)
        return capture(base, {"graph.yaml": yaml.safe_dump_all(found)}, sets=DECLARED)

    return make


@pytest.mark.parametrize("case", CASES)
def test_a_rollout_of_a_graph(case: str, deployed: Callable[[Callable[[Graph], None]], Path]) -> None:
    change, verdict, code, rules = CASES[case]
    checked = kvgate.check(deployed(_as_it_is), deployed(change))
    found = {finding.rule for finding in checked.decision.findings}
    assert (checked.verdict, checked.decision.exit_code) == (verdict, code)
    assert rules <= found
