"""Values of llm-d's chart ``llm-d-modelservice``, to the pods of its prefill and decode pools.

Source: charts/llm-d-modelservice/templates/_helpers.tpl, decode-deployment.yaml and values.yaml, in the versions of
``data/charts.yaml``, whose templates of a container are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvgate.deployments.launch.makers.chart import ChartVersion, chart
from kvgate.deployments.launch.makers.values import Values
from kvgate.deployments.launch.objects import KubernetesObject
from kvgate.rules.errors import InputError

MODELSERVICE = chart("llm-d-modelservice")
_ROLES = ("decode", "prefill")
_NAME = re.compile(r"\{\{-?\s*\.Values\.modelArtifacts\.name\s*-?\}\}")
_QUOTED = re.compile(r"(['\"])(.*)\1")
# values.yaml: what the chart sets for a kind of accelerator.
_ACCELERATORS = {
    "intel-i915": {"VLLM_USE_V1": "1", "TORCH_LLM_ALLREDUCE": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    "intel-xe": {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
}


def modelservice_objects(values: Values, version: ChartVersion) -> list[KubernetesObject]:
    """Return a pod for each pool that the values give containers for.

    A pool of no replicas is one too: it may be scaled up at any time, and reads what was stored before.

    Args:
        values: the values.
        version: the chart in the version that is deployed.

    Raises:
        InputError: a value of another kind than the chart takes, or that the chart refuses.
    """
    objects = []
    for role in _ROLES:
        section = values.inside(role)
        if section.on("create", default=True) and section.sequence("containers"):
            objects.append(_Pool(values, role, version).object())
    return [*objects, *values.objects("extraObjects")]


class _Pool:
    def __init__(self, values: Values, role: str, version: ChartVersion) -> None:
        self._values = values
        self._role = role
        self._version = version
        self._section = values.inside(role)
        self._artifacts = values.inside("modelArtifacts")
        self._parallelism = self._section.inside("parallelism")

    def object(self) -> KubernetesObject:
        containers = self._section.each("containers")
        pod: dict[str, Any] = {
            **self._section.inside("extraConfig").data,
            "containers": [self._container(one) for one in containers],
            "volumes": [*self._section.sequence("volumes"), *self._model_volume(containers)],
            **self._placement(),
        }
        if first := self._section.sequence("initContainers"):
            pod["initContainers"] = first
        strangers = [
            *self._values.strangers(MODELSERVICE.known("values")),
            *self._artifacts.strangers(MODELSERVICE.known("modelArtifacts")),
            *self._section.strangers(MODELSERVICE.known("pool")),
            *self._parallelism.strangers(MODELSERVICE.known("parallelism")),
            *(reason for one in containers for reason in one.strangers(MODELSERVICE.known("container"))),
        ]
        others = ("with requester.enable another controller starts the pods, and it may set this",)
        made = self._version.made(strangers, others if self._values.inside("requester").on("enable") else ())
        return KubernetesObject("pool", self._role, "", {"spec": pod}, self._section.where, made)

    def _placement(self) -> dict[str, Any]:
        """Return what is asked of the node, where the values say it beside ``extraConfig``."""
        found: dict[str, Any] = {}
        if selector := self._section.inside("nodeSelector").data:
            found["nodeSelector"] = selector
        if affinity := self._section.inside("affinity").data:
            found["affinity"] = affinity
        types = self._section.inside("acceleratorTypes")
        if label := types.word("labelKey"):
            asked = {"key": label, "operator": "In", "values": types.sequence("labelValues")}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [asked]}]}
            found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        return found

    def _container(self, container: Values) -> dict[str, Any]:
        mounts = container.sequence("volumeMounts")
        if container.on("mountModelVolume"):
            mounts = [*mounts, {"name": "model-storage", "mountPath": self._mount_path}]
        return {
            **container.inside("extraConfig").data,
            "workingDir": container.data.get("workingDir"),
            "name": container.word("name", "vllm"),
            "image": container.word("image"),
            **self._command(container),
            "env": [
                *container.sequence("env"),
                *({"name": name, "value": value} for name, value in self._env(container)),
            ],
            "volumeMounts": mounts,
        }

    def _command(self, container: Values) -> dict[str, list[str]]:
        kind = container.word("modelCommand", "custom")
        own = container.words("args")
        if kind == "custom":
            if not container.sequence("command"):
                raise InputError("the chart needs a command where modelCommand is custom", where=container.where)
            return {"command": container.words("command"), "args": own}
        if kind not in ("vllmServe", "imageDefault"):
            hint = "vllmServe, imageDefault or custom"
            raise InputError(
                "is no kind of command that the chart takes", where=container.at("modelCommand"), hint=hint
            )
        arguments = [*(["--model"] if kind == "imageDefault" else []), self._model(), *self._arguments(), *own]
        return {"command": ["vllm", "serve"], "args": arguments} if kind == "vllmServe" else {"args": arguments}

    def _arguments(self) -> Iterator[str]:
        routing = self._values.inside("routing")
        proxy = routing.inside("proxy")
        behind = self._role == "decode" and proxy.on("enabled", default=True)
        port = proxy.word("targetPort", "8200") if behind else routing.word("servicePort", "8000")
        yield from ("--port", port)
        tensor, data, local = self._sizes()
        for flag, size in (("tensor", tensor), ("data", data)):
            if size > 1:
                yield from (f"--{flag}-parallel-size", str(size))
        if local > 1:
            yield from ("--data-parallel-size-local", str(local))
        yield from ("--served-model-name", self._artifacts.word("name"))
        tracing = self._values.inside("tracing")
        if tracing.on("enabled"):
            yield from ("--otlp-traces-endpoint", tracing.word("otlpEndpoint", "http://otel-collector:4317"))
            yield from ("--collect-detailed-traces", tracing.inside("vllm").word("collectDetailedTraces", "all"))

    def _sizes(self) -> tuple[int, int, int]:
        """Return the tensor size, the data size and the data size of one worker, as the chart's helpers do.

        A size that is not given is 1, by the chart's values; one of 0 follows from the others.
        """
        tensor, data, local, workers = (self._size(name) for name in ("tensor", "data", "dataLocal", "workers"))
        return tensor or 1, data or local * (workers or 1) or 1, local or data // (workers or 1) or 1

    def _size(self, name: str) -> int:
        text = self._parallelism.word(name, "1")
        if not text.isdigit() or len(text) > 6:
            raise InputError("is no number of ranks", where=self._parallelism.at(name))
        return int(text)

    @property
    def _mount_path(self) -> str:
        return self._artifacts.word("mountPath", "/model-cache")

    def _uri(self) -> tuple[str, str]:
        """Return the scheme and the rest, which may name the model as the chart's default does."""
        uri = self._artifacts.word("uri", "hf://{{ .Values.modelArtifacts.name }}")
        scheme, _, rest = uri.partition("://")
        return scheme, rest.rpartition("://")[2]

    def _model(self) -> str:
        scheme, rest = self._uri()
        parts = rest.split("/")
        if scheme == "hf":
            name = self._artifacts.word("name")
            named = _NAME.sub(lambda _: name, rest)
            quoted = _QUOTED.fullmatch(named)  # the chart writes it into YAML as it stands
            return quoted[2] if quoted else named
        if scheme == "pvc" and len(parts) > 1:
            return f"{self._mount_path}/{'/'.join(parts[1:])}"
        if scheme == "pvc+hf" and len(parts) > 2:
            return "/".join(parts[-2:])
        hint = "hf://org/name, pvc://claim/path or pvc+hf://claim/path/org/name"
        raise InputError("is no model that the chart can serve", where=self._artifacts.at("uri"), hint=hint)

    def _model_volume(self, containers: list[Values]) -> Iterator[dict[str, Any]]:
        if not any(one.on("mountModelVolume") for one in containers):
            return
        scheme, rest = self._uri()
        claim = {"persistentVolumeClaim": {"claimName": rest.split("/")[0]}}
        yield {"name": "model-storage", **(claim if scheme.startswith("pvc") else {"emptyDir": {}})}

    def _env(self, container: Values) -> Iterator[tuple[str, str]]:
        tensor, data, local = self._sizes()
        yield from (("DP_SIZE", str(data)), ("TP_SIZE", str(tensor)), ("DP_SIZE_LOCAL", str(local)))
        scheme, rest = self._uri()
        if container.on("mountModelVolume") and scheme == "hf":
            yield "HF_HOME", self._mount_path
        elif container.on("mountModelVolume") and scheme == "pvc+hf":
            yield "HF_HUB_CACHE", f"/model-cache/{'/'.join(rest.split('/')[1:-2])}"
        accelerator = self._values.inside("accelerator")
        kind = self._section.inside("accelerator").word("type") or accelerator.word("type", "nvidia")
        given = accelerator.inside("env")
        if kind == "cpu":
            return
        if kind in given:
            yield from ((one.word("name"), one.word("value")) for one in given.each(kind))
        else:
            yield from _ACCELERATORS.get(kind, {}).items()
