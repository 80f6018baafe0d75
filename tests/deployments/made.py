"""Small files of values and custom resources, in the shapes that people deploy, and the pods that they stand for.

Shapes after vllm-project/production-stack vllm-stack-0.1.12 (tutorials/assets, tests/assets), llm-d-incubation/
llm-d-modelservice v0.4.12 (examples) and kserve/kserve v0.20.0 (docs/samples/llmisvc).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch

IMAGE = "vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64
NIXL = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
Files = Mapping[str, Any]


def read(files: Files, only: str | None = None) -> LaunchFacts:
    """The facts in the files, by name: a text, a document, or a list of documents."""
    found: list[LaunchFile] = []
    for name, content in files.items():
        text = content
        if isinstance(content, list):
            text = yaml.safe_dump_all(json.loads(json.dumps(content)))
        elif not isinstance(content, str):
            text = yaml.safe_dump(json.loads(json.dumps(content)))
        found.append(LaunchFile(name, text.encode(), {}, None if found else only))
    (facts,) = read_launch(found)
    return facts


def said(facts: LaunchFacts) -> tuple[Any, ...]:
    """Everything that two ways to say the same have to agree in."""
    return (
        facts.model,
        facts.values,
        dict(facts.unknown),
        facts.pending,
        facts.overrides,
        facts.adapters,
        facts.tokenizer,
        facts.chat_template,
        facts.remote_code,
    )


def reason(facts: LaunchFacts, path: str) -> str:
    """Why a path is unknown."""
    assert path not in facts.values
    return dict(facts.unknown)[path]


def pod(container: Mapping[str, Any], *, name: str = "engine", **spec: Any) -> dict[str, Any]:
    """A Deployment of one engine."""
    engine = {"name": "engine", "image": IMAGE, **container}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [engine], **spec}}},
    }


def config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(data)}


def chart(name: str, version: str) -> str:
    """What ``helm show chart`` prints."""
    return f'apiVersion: v2\nname: {name}\ndescription: a chart\nversion: "{version}"\n'


def write_adapter(folder: Path, content: bytes = b"abcd") -> Path:
    """Write a LoRA adapter of one tensor, which holds these four bytes."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header = json.dumps({"a.lora_A.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content)
    return folder


# -- vLLM's production stack


def model_spec(**changes: Any) -> dict[str, Any]:
    """One entry of modelSpec; ``None`` drops a key."""
    image, _, tag = IMAGE.partition(":")
    spec = {
        "name": "support",
        "repository": image,
        "tag": tag,
        "modelURL": "org/m",
        "replicaCount": 1,
        "requestCPU": 6,
        "requestMemory": "16Gi",
        "requestGPU": 1,
        "vllmConfig": {"enablePrefixCaching": True},
        **changes,
    }
    return {key: value for key, value in spec.items() if value is not None}


def stack(*models: Mapping[str, Any], version: str | None = "0.1.12", **values: Any) -> dict[str, Any]:
    """Files of values for models; without a version nobody says which chart it is."""
    engines = {"runtimeClassName": "", "modelSpec": list(models), **values.pop("engines", {})}
    files: dict[str, Any] = {"values.yaml": {"servingEngineSpec": engines, **values}}
    return {**files, "Chart.yaml": chart("vllm-stack", version)} if version else files


# -- llm-d's chart


def workload(*arguments: str, **changes: Any) -> dict[str, Any]:
    """One pool of the chart."""
    container = {"name": "vllm", "image": IMAGE, "modelCommand": "vllmServe", "args": list(arguments)}
    return {"create": True, "replicas": 1, "containers": [{**container, **changes.pop("container", {})}], **changes}


def modelservice(
    decode: Mapping[str, Any],
    prefill: Mapping[str, Any] | None = None,
    *,
    version: str | None = "v0.4.12",
    artifacts: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Files of values for one or two pools."""
    named = {"name": "org/m", "uri": "hf://org/m", **(artifacts or {})}
    content = {"modelArtifacts": named, "decode": decode, **values}
    if prefill is not None:
        content["prefill"] = prefill
    files: dict[str, Any] = {"values.yaml": content}
    return {**files, "Chart.yaml": chart("llm-d-modelservice", version)} if version else files


# -- KServe


def service(container: Mapping[str, Any] | None = None, *, name: str = "support", **spec: Any) -> dict[str, Any]:
    """An LLMInferenceService."""
    template = {"containers": [{"name": "main", **(container or {})}], **spec.pop("pod", {})}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "hf://org/m", "name": "org/m", **spec.pop("model", {})},
            "router": {"scheduler": {}, "route": {}, "gateway": {}},
            "template": template,
            **spec,
        },
    }


def service_config(name: str, **spec: Any) -> dict[str, Any]:
    """An LLMInferenceServiceConfig."""
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceServiceConfig",
        "metadata": {"name": name},
        "spec": spec,
    }


def runtime(container: Mapping[str, Any], *, name: str = "engine-runtime", **spec: Any) -> dict[str, Any]:
    """A ServingRuntime that starts vLLM."""
    command = ["python", "-m", "vllm.entrypoints.openai.api_server"]
    engine = {"name": "kserve-container", "image": IMAGE, "command": command, **container}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": name},
        "spec": {"supportedModelFormats": [{"name": "vLLM"}], "containers": [engine], **spec},
    }


def predictor(**model: Any) -> dict[str, Any]:
    """An InferenceService whose predictor takes a runtime."""
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "support"},
        "spec": {"predictor": {"model": {"modelFormat": {"name": "vLLM"}, "storageUri": "hf://org/m", **model}}},
    }
