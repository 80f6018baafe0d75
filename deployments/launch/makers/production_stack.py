"""Values of vLLM's production stack (the chart ``vllm-stack``), to the pods of its models.

Source: helm/templates/deployment-vllm-multi.yaml, _helpers.tpl, configmap.yaml and values.yaml, in the versions of
``data/charts.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.deployments.launch.makers.chart import ChartVersion, chart
from kvgate.deployments.launch.makers.values import FILLED_IN, Values
from kvgate.deployments.launch.objects import KubernetesObject
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.document import parse_foreign_documents
from kvgate.rules.errors import InputError

STACK = chart("vllm-stack")
_RELEASE = FILLED_IN  # the release's name is in no value
# Flags of vllmConfig by key, in the order of the template.
_FLAGS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
# Variables of lmcacheConfig by key, and how the template writes them.
_LMCACHE_ALWAYS = {
    "enableController": "LMCACHE_ENABLE_CONTROLLER",
    "workerPorts": "LMCACHE_LMCACHE_WORKER_PORTS",
    "p2pHost": "LMCACHE_P2P_HOST",
    "p2pInitPorts": "LMCACHE_P2P_INIT_PORTS",
    "workerHeartbeatTime": "LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME",
}
_LMCACHE_APART = {
    "enableNixl": "LMCACHE_ENABLE_NIXL",
    "nixlRole": "LMCACHE_NIXL_ROLE",
    "nixlPeerHost": "LMCACHE_NIXL_RECEIVER_HOST",
    "nixlPeerPort": "LMCACHE_NIXL_RECEIVER_PORT",
    "nixlBufferSize": "LMCACHE_NIXL_BUFFER_SIZE",
    "nixlBufferDevice": "LMCACHE_NIXL_BUFFER_DEVICE",
    "nixlEnableGc": "LMCACHE_NIXL_ENABLE_GC",
}
_SWITCHES = frozenset({"enableController", "enableNixl", "nixlEnableGc"})
_CONFIGS = "the values' configs"


def stack_objects(values: Values, version: ChartVersion) -> list[KubernetesObject]:
    """Return a pod for each model of the stack, and the ConfigMaps that the chart makes for them.

    Args:
        values: the values.
        version: the chart in the version that is deployed.

    Raises:
        InputError: a value of another kind than the chart takes, or models that only a Ray cluster starts.
    """
    engines = values.inside("servingEngineSpec")
    strangers = (*values.strangers(STACK.known("values")), *engines.strangers(STACK.known("servingEngineSpec")))
    models = [one for one in engines.each("modelSpec") if one.on("enabled", default=True)]
    if not engines.on("enableEngine", default=True):
        models = []
    plain = [one for one in models if not one.inside("raySpec").on("enabled")]
    rays = [one.where for one in models if one.inside("raySpec").on("enabled")]
    if models and not plain:
        raise InputError(
            "the chart starts it as a Ray cluster, which kvgate does not read",
            where=models[0].where,
            hint="give the line that the head's process runs with",
        )
    notes = tuple(f"{where} is started as a Ray cluster, and was not read" for where in rays)
    objects = [_Model(values, engines, one, version, strangers).objects(notes) for one in plain]
    if configs := engines.inside("configs").data:
        objects.append([_config_map(_CONFIGS, dict(configs), engines.at("configs"))])
    return [*(one for found in objects for one in found), *values.objects("extraObjects")]


def _config_map(name: str, data: dict[str, Any], where: str) -> KubernetesObject:
    return KubernetesObject("ConfigMap", name, "", {"data": data}, where)


class _Model:
    def __init__(
        self, values: Values, engines: Values, spec: Values, version: ChartVersion, strangers: tuple[str, ...]
    ) -> None:
        self._values = values
        self._engines = engines
        self._spec = spec
        self._version = version
        self._vllm = spec.inside("vllmConfig")
        self._lmcache = spec.inside("lmcacheConfig")
        self._name = spec.word("name")
        self._strangers = (
            *strangers,
            *spec.strangers(STACK.known("modelSpec")),
            *self._vllm.strangers(STACK.known("vllmConfig")),
            *self._lmcache.strangers(STACK.known("lmcacheConfig")),
        )

    def objects(self, notes: tuple[str, ...]) -> list[KubernetesObject]:
        spec = self._spec
        container = {
            "name": "vllm",
            "image": f"{self._needed(spec, 'repository')}:{self._needed(spec, 'tag')}",
            "command": ["vllm", "serve", self._needed(spec, "modelURL"), *self._arguments()],
            "env": [{"name": name, "value": value} for name, value in self._before()]
            + [*self._engines.sequence("env"), *spec.sequence("env")]
            + [{"name": name, "value": value} for name, value in self._after()],
            "envFrom": self._env_from(),
            "volumeMounts": [*self._mounts(), *spec.sequence("extraVolumeMounts")],
            "resources": {"limits": {spec.word("requestGPUType", "nvidia.com/gpu"): spec.word("requestGPU", "1")}},
        }
        pod = {
            "containers": [container],
            "initContainers": list(self._before_the_engine()),
            "volumes": [*self._volumes(), *spec.sequence("extraVolumes")],
            "affinity": self._affinity(),
        }
        made = self._version.made(self._strangers)
        made = replace(made, notes=(*made.notes, *notes))
        objects = [KubernetesObject("modelSpec", self._name, "", {"spec": pod}, self._spec.where, made)]
        if (template := self._template_map()) is not None:
            objects.append(template)
        return objects

    def _before_the_engine(self) -> Iterator[dict[str, Any]]:
        """Yield what else runs in the pod on the engine's files: what comes first, and what fetches adapters."""
        fetching = self._engines.inside("sidecar")
        if fetching.data and self._spec.on("enableLoRA") and "pvcStorage" in self._spec:
            run = {key: fetching.data.get(key) for key in ("image", "command", "args", "env")}
            yield {"name": "sidecar", **run, "volumeMounts": [{"name": f"{_RELEASE}-storage", "mountPath": "/data"}]}
        own = self._spec.inside("initContainer")
        if own.data:
            stored = own.on("mountPvcStorage") and "pvcStorage" in self._spec
            mounts = [{"name": f"{_RELEASE}-storage", "mountPath": "/data"}] if stored else []
            run = {key: own.data.get(key) for key in ("name", "image", "command", "args", "env")}
            yield {**run, "volumeMounts": [*mounts, *own.sequence("extraVolumeMounts")]}

    def _affinity(self) -> dict[str, Any]:
        """Return what is asked of the node; a node that is named is taken whatever else is asked."""
        if self._spec.word("nodeName"):
            return {}
        terms = self._spec.sequence("nodeSelectorTerms")
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return {**self._spec.inside("affinity").data, **({"nodeAffinity": required} if terms else {})}

    @staticmethod
    def _needed(values: Values, key: str) -> str:
        word = values.word(key)
        if not word:
            raise InputError("is left out, and the chart starts nothing without it", where=values.at(key))
        return word

    def _arguments(self) -> Iterator[str]:
        spec, vllm = self._spec, self._vllm
        yield from ("--host", "0.0.0.0", "--port", self._engines.word("containerPort", "8000"))  # noqa: S104 - the chart's
        if spec.on("enableLoRA"):
            yield "--enable-lora"
        if spec.on("enableTool"):
            yield "--enable-auto-tool-choice"
        if spec.on("toolCallParser"):
            yield from ("--tool-call-parser", spec.word("toolCallParser"))
        if vllm.data:
            if "enableChunkedPrefill" in vllm:
                yield "--enable-chunked-prefill" if vllm.on("enableChunkedPrefill") else "--no-enable-chunked-prefill"
            yield "--enable-prefix-caching" if vllm.on("enablePrefixCaching") else "--no-enable-prefix-caching"
            for key, flag in _FLAGS.items():
                if key in vllm:
                    yield from (flag, vllm.word(key))
            yield from vllm.words("extraArgs")
        if spec.on("modelRevision"):
            # Charts before 0.1.12 have no such value, and leave the model at its branch.
            if self._version.since("0.1.12"):
                yield from ("--revision", spec.word("modelRevision"))
            elif not self._version.known:
                yield from ("--revision", FILLED_IN)
        yield from self._connector()
        if spec.on("chatTemplate"):
            name = spec.word("chatTemplate")
            inline = "{" in name or "\n" in name  # a text, as charts before 0.1.2 took it
            yield from ("--chat-template", FILLED_IN if inline else f"/templates/{name}")

    def _connector(self) -> Iterator[str]:
        if not self._lmcache.on("enabled"):
            return
        config: dict[str, Any] = {
            "kv_connector": "LMCacheConnectorV1",
            "kv_role": self._lmcache.word("kvRole") or "kv_both",
        }
        if "enablePD" in self._lmcache:
            port = self._needed(self._lmcache, "nixlRole")
            config["kv_connector_extra_config"] = {"discard_partial_chunks": False, "lmcache_rpc_port": port}
        elif self._before_v1:
            config["kv_connector"] = "LMCacheConnector"
        yield from ("--kv-transfer-config", json.dumps(config))

    @property
    def _before_v1(self) -> bool:
        return self._vllm.word("v0") == "1"

    def _before(self) -> Iterator[tuple[str, str]]:
        """Yield the chart's own variables before those of the values, which win."""
        yield "PYTHONHASHSEED", "123" if self._version.known else FILLED_IN
        if self._before_v1:
            yield "VLLM_USE_V1", "0"
        if self._spec.on("enableLoRA") and self._values.sequence("loraAdapters"):
            # The controller loads them while the engine serves, which that must be told to allow.
            yield "VLLM_ALLOW_RUNTIME_LORA_UPDATING", FILLED_IN

    def _after(self) -> Iterator[tuple[str, str]]:
        """Yield the chart's own variables behind those of the values, over which they win."""
        lmcache = self._lmcache
        if not lmcache.data:
            return
        if lmcache.on("enabled"):
            yield from (("LMCACHE_USE_EXPERIMENTAL", "True"), ("VLLM_RPC_TIMEOUT", "1000000"))
        if lmcache.on("enablePD"):
            yield from (("LMCACHE_LOCAL_CPU", "False"), ("LMCACHE_REMOTE_SERDE", "NULL"))
            yield from self._written(_LMCACHE_APART)
        if lmcache.word("cpuOffloadingBufferSize") not in ("", "0"):
            yield "LMCACHE_LOCAL_CPU", "True"
        yield from self._remote()
        yield from self._written(_LMCACHE_ALWAYS)
        for key, name in (("controllerPort", "PULL"), ("controllerReplyPort", "REPLY")):
            if key in lmcache:
                yield f"LMCACHE_CONTROLLER_{name}_URL", f"{_RELEASE}-router-service:{lmcache.word(key)}"

    def _written(self, variables: dict[str, str]) -> Iterator[tuple[str, str]]:
        for key, name in variables.items():
            if key in self._lmcache:
                yield name, str(self._lmcache.on(key)) if key in _SWITCHES else self._lmcache.word(key)

    def _remote(self) -> Iterator[tuple[str, str]]:
        store = self._values.inside("cacheserverSpec")
        if not store.on("enabled"):
            if store.data and not self._version.known:  # before 0.1.11 there was no such switch
                yield "LMCACHE_REMOTE_URL", FILLED_IN
            return
        yield "LMCACHE_REMOTE_URL", f"lm://{_RELEASE}-cache-server-service:{store.word('servicePort', '80')}"
        if store.on("serde"):
            yield "LMCACHE_REMOTE_SERDE", store.word("serde")

    def _env_from(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if self._engines.inside("configs").data:
            found.append({"configMapRef": {"name": _CONFIGS}})
        if secret := self._spec.inside("envFromSecret").data:
            found.append({"secretRef": dict(secret)})
        return found

    def _mounts(self) -> Iterator[dict[str, Any]]:
        if "pvcStorage" in self._spec:
            yield {"name": f"{_RELEASE}-storage", "mountPath": "/data"}
        if "tensorParallelSize" in self._vllm:
            yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the chart's
        if self._spec.on("chatTemplate"):
            yield {"name": "chat-templates", "mountPath": "/templates"}
        if self._values.inside("sharedPvcStorage").on("enabled"):
            yield {"name": f"{_RELEASE}-shared-pvc-storage", "mountPath": "/data/shared-pvc-storage"}

    def _volumes(self) -> Iterator[dict[str, Any]]:
        spec = self._spec
        if "pvcStorage" in spec:
            storage = spec.data["pvcStorage"]
            ends = isinstance(storage, Mapping) and "emptyDir" in storage
            claim = f"{_RELEASE}-{self._name}-storage-claim"
            source = {"emptyDir": {}} if ends else {"persistentVolumeClaim": {"claimName": claim}}
            yield {"name": f"{_RELEASE}-storage", **source}
        if self._values.inside("sharedPvcStorage").on("enabled"):
            claim = f"{_RELEASE}-shared-pvc-storage-claim"
            yield {"name": f"{_RELEASE}-shared-pvc-storage", "persistentVolumeClaim": {"claimName": claim}}
        if "tensorParallelSize" in self._vllm:
            yield {"name": "shm", "emptyDir": {}}
        if spec.on("chatTemplate"):
            named = {"configMap": {"name": self._map_name}}
            shared = {"persistentVolumeClaim": {"claimName": "vllm-templates-pvc"}}
            yield {"name": "chat-templates", **(named if "chatTemplateConfigMap" in spec else shared)}

    @property
    def _map_name(self) -> str:
        return f"{self._spec.where}: chat templates"

    def _template_map(self) -> KubernetesObject | None:
        """Return the ConfigMap with the chat template, as the chart's block of YAML is read.

        The chart puts the text on a new line of a literal block, so that the template starts with an empty line.
        """
        spec = self._spec
        if not spec.on("chatTemplate") or "chatTemplateConfigMap" not in spec:
            return None
        text = spec.word("chatTemplateConfigMap")
        where = spec.at("chatTemplateConfigMap")
        block = "text: |-\n\n" + "\n".join(f"    {line}" for line in text.split("\n"))
        ((read, _),) = parse_foreign_documents(block.encode("utf-8", "surrogatepass"), where)
        name = clean_text(spec.word("chatTemplate")) or ""
        return _config_map(self._map_name, {name: read.get("text")}, where)
