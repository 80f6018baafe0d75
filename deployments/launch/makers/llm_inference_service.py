"""KServe's LLMInferenceService, to the pods of its one pool, or of its decode and prefill pools.

What starts the engine stands in a LLMInferenceServiceConfig of the cluster, which holds a script in a template
language: neither is run here. Where the preset is given and is one that was read (``data/kserve_presets.yaml``), the
line that it makes is known; else what the service itself says is read as flags, and what a preset sets is not known.

Source: kserve/kserve v0.20.0, pkg/apis/serving/v1alpha2/llm_inference_service_types.go,
pkg/controller/v1alpha2/llmisvc/config_merge.go, workload_lora.go, workload_kvcache.go, config/llmisvcconfig.
The other form of kvCacheOffloading (``fileSystem`` with a path): docs/samples/llmisvc/kv-cache-offloading at 446ef49.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvgate.deployments.launch.makers.chart import unread
from kvgate.deployments.launch.makers.kserve_presets import Preset, preset_of
from kvgate.deployments.launch.makers.merging import strategic_merge
from kvgate.deployments.launch.makers.values import FILLED_IN, Values, filled
from kvgate.deployments.launch.objects import KubernetesObject, Made, mapping, mappings
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.shell import split_script
from kvgate.rules.errors import InputError

CONFIG = "LLMInferenceServiceConfig"
MODEL_AT = "/mnt/models"
_ADAPTERS_AT = "/mnt/lora"
_MAIN = "main"
_GET = "`kubectl get llminferenceserviceconfig -A -o yaml` prints it: give that as one more --from"
_MORE = "VLLM_ADDITIONAL_ARGS"
_WORKLOAD = frozenset(
    {"replicas", "scaling", "parallelism", "labels", "annotations", "template", "worker", "kvCacheOffloading"}
    | {"rolloutStrategy"}
)
_SPEC = _WORKLOAD | {"model", "storageInitializer", "router", "prefill", "tracing", "baseRefs"}
_MODEL = frozenset({"uri", "name", "lora", "confidential"})
_LORA = frozenset({"adapters", "maxRank", "maxAdapters", "maxCpuAdapters"})
_NO_PATH = re.compile(r"[^a-zA-Z0-9._-]")
_TRANSFER = ("--kv-transfer-config", "--kv_transfer_config")
_TEMPLATE = (
    "KServe's own template fills in the rest of the command, and kvgate runs no template; the line that the process "
    "runs with (/proc/1/cmdline) would say it"
)


def service_objects(one: KubernetesObject, configs: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """Return the pods of a service.

    Args:
        one: the service.
        configs: the LLMInferenceServiceConfigs that were given with it.

    Raises:
        InputError: a field of another kind than the resource has, arguments that are no words of one command.
    """
    return list(_Service(one, configs).objects())


class _Service:
    def __init__(self, one: KubernetesObject, configs: Sequence[KubernetesObject]) -> None:
        self._one = one
        own = Values(mapping(one.data.get("spec")), f"{one.where}: spec")
        below = [*self._presets(own), *(Values(ref.data, ref.where).word("name") for ref in own.each("baseRefs"))]
        spec: Mapping[str, Any] = {}
        self._missing: list[str] = []
        for name in below:
            found = _config(name, configs)
            if found is None:
                shown = clean_text(name) or "..."
                self._missing.append(f"the {CONFIG} {shown} was not given, and it may set this ({_GET})")
            else:
                spec = strategic_merge(spec, mapping(found.data.get("spec")), found.where)
        self._spec = Values(strategic_merge(spec, own.data, one.where), own.where)
        self._model = self._spec.inside("model")
        self._name = self._model.word("name", one.name)

    @staticmethod
    def _presets(own: Values) -> list[str]:
        """Return the names of the presets that the controller lays below a service of this form."""

        def preset(role: str, workload: Values) -> str:
            parallel = "worker-data-parallel" if workload.inside("worker").data else "template"
            return f"kserve-config-llm-{role}{parallel}"

        if not own.inside("prefill").data:
            return [preset("", own)]
        return [preset("prefill-", own.inside("prefill")), preset("decode-", own)]

    def objects(self) -> Iterator[KubernetesObject]:
        prefill = self._spec.inside("prefill")
        pools = {"decode": self._spec, "prefill": prefill} if prefill.data else {"": self._spec}
        for pool, workload in pools.items():
            yield self._pool(pool, workload)

    def _pool(self, pool: str, workload: Values) -> KubernetesObject:
        names = {
            ".Spec.Model.Name": self._name,
            ".ObjectMeta.Name": self._one.name,
            ".ObjectMeta.Namespace": self._one.namespace,
        }
        template = Values(filled(workload.inside("template").data, names), workload.at("template"))
        containers = template.each("containers")
        main = next((one for one in containers if one.data.get("name") == _MAIN), None)
        main = main or Values({"name": _MAIN}, template.at(f"containers[{_MAIN}]"))
        strangers = [unread(place) for place in self._strangers(workload)]
        command = next(
            (one for one in workload.inside("template").each("containers") if one.data.get("name") == _MAIN), main
        )
        line = self._own_line(main) or self._preset_line(main, workload, preset_of(command.words("command")))
        settled = "command" in main and "args" in main and not line.hidden
        container = {**main.data, **line.data, "volumeMounts": [*main.sequence("volumeMounts"), *line.mounts]}
        pod = {
            **template.data,
            "containers": [container, *(one.data for one in containers if one.data.get("name") != _MAIN)],
            "volumes": [*template.sequence("volumes"), *line.volumes],
        }
        made = Made(
            pool=pool,
            hidden=tuple(strangers if settled else [*strangers, *self._missing, *line.hidden]),
            undisclosed=(*strangers, *self._missing),
            notes=tuple(self._notes()),
        )
        return replace(self._one, data={"spec": pod}, made=made)

    def _strangers(self, workload: Values) -> Iterator[str]:
        yield from self._spec.strangers(_SPEC)
        yield from self._model.strangers(_MODEL)
        yield from self._model.inside("lora").strangers(_LORA)
        if workload is not self._spec:
            yield from workload.strangers(_WORKLOAD)

    def _notes(self) -> Iterator[str]:
        uri = clean_text(self._model.word("uri"))
        if uri and self._spec.inside("storageInitializer").on("enabled", default=True):
            yield f"KServe puts the files of {uri} at {MODEL_AT}, and starts the engine with that path"

    def _own_line(self, main: Values) -> _Line | None:
        """Return the command that the service, or a config given with it, spells out; ``None``: a preset's script."""
        if "command" not in main or any("eval " in word for word in (*main.words("command"), *main.words("args"))):
            return None
        arguments = [*self._adapters(), *main.words("args")]
        return _Line({"command": main.words("command"), "args": arguments})

    def _preset_line(self, main: Values, workload: Values, preset: Preset | None) -> _Line:
        hidden: list[str] = [_TEMPLATE] if preset is None else []
        more = list(_words(main, hidden))
        offload = workload.inside("kvCacheOffloading")
        left_out = preset is not None and not preset.offload
        given = any(word.split("=")[0] in _TRANSFER for word in more)
        tiers = _Offload(offload, preset) if offload.data and not given and not left_out else None
        arguments = ["serve", MODEL_AT, "--served-model-name", self._name, "--port", "8000"]
        arguments += self._sizes(workload, preset) if preset is not None else []
        arguments += ["--kv-transfer-config", tiers.config()] if tiers is not None else []
        arguments += [*self._adapters(), *more]
        mounts, volumes = (tiers.mounts(), tiers.volumes()) if tiers is not None else ([], [])
        env = [one for one in main.sequence("env") if mapping(one).get("name") != _MORE]
        return _Line({"command": ["vllm"], "args": arguments, "env": env}, hidden, mounts, volumes)

    @staticmethod
    def _sizes(workload: Values, preset: Preset) -> Iterator[str]:
        """Yield the sizes that a preset passes on: those of older releases leave them out."""
        parallelism = workload.inside("parallelism")
        if preset.tensor and "tensor" in parallelism:
            yield from ("--tensor-parallel-size", parallelism.word("tensor"))
        if preset.data:
            yield from ("--data-parallel-size", parallelism.word("data", "1"))
            if parallelism.on("expert"):
                yield "--enable-expert-parallel"

    def _adapters(self) -> Iterator[str]:
        lora = self._model.inside("lora")
        adapters = lora.each("adapters")
        if not adapters:
            return
        yield "--enable-lora"
        if "maxRank" in lora:
            yield from ("--max-lora-rank", lora.word("maxRank"))
        yield "--lora-modules"
        if any("disabled" in one for one in adapters):
            yield FILLED_IN  # a KServe that does not know the switch loads it
            return
        for one in sorted(adapters, key=lambda one: one.word("name")):
            part = _NO_PATH.sub("-", one.word("name"))
            part = part if part not in ("", ".", "..") else "adapter"
            yield json.dumps({"name": one.word("name"), "path": f"{_ADAPTERS_AT}/{part}"})


@dataclass(frozen=True)
class _Line:
    """How the engine is started: fields of the container, what else may be set, what is mounted for it."""

    data: Mapping[str, Any]
    hidden: Sequence[str] = ()
    mounts: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Mapping[str, Any]] = ()


def _config(name: str, configs: Sequence[KubernetesObject]) -> KubernetesObject | None:
    """Return a config by its name; a preset may bear its release's version before it, and of several none is known."""
    same = [one for one in configs if one.name == name]
    if not same and name.startswith("kserve-config-llm-"):
        same = [one for one in configs if one.name.endswith(f"-{name}")]
    return same[0] if len(same) == 1 else None


def _words(main: Values, hidden: list[str]) -> Iterator[str]:
    """Yield the arguments of a container that a preset's script evaluates behind its own.

    Source: config/llmisvcconfig/config-llm-template.yaml, ``eval "exec vllm serve ... ${VLLM_ADDITIONAL_ARGS} $@"``.
    """
    entry = next((one for one in mappings(main.data.get("env")) if one.get("name") == _MORE), {})
    if entry.get("valueFrom"):
        hidden.append(f"{_MORE} is set from outside the file, and it may hold any flag")
        entry = {}
    where = f"{main.where}: {_MORE} and args"
    text = " ".join([Values(entry, where).word("value"), *main.words("args")])
    if "$(" in text or "`" in text:
        hidden.append(f"a command that {_MORE} or args run may give any flag")
        return
    commands = split_script(text, where).commands
    if len(commands) > 1 or any(command.writes for command in commands):
        raise InputError("is more than the arguments of one command", where=where)
    for word in (word for command in commands for word in command.words):
        if word.text in word.expansions:
            hidden.append(f"the shell fills in {word.text}, which may hold any flag")
        found = word.text
        for label in word.expansions:
            found = found.replace(label, FILLED_IN)
        yield found


class _Offload:
    """``kvCacheOffloading``: the tiers that the controller writes into ``--kv-transfer-config``."""

    def __init__(self, spec: Values, preset: Preset | None) -> None:
        self._spec = spec
        self._preset = preset
        self._secondary = spec.each("secondary")

    def config(self) -> str:
        tiers = [{"type": "fs", "root_dir": path} for path in (*self._paths(), *self._given_paths())]
        known = {"cpu", "evictionPolicy", "secondary"}
        if self._preset is None:  # no preset that was read knows the other form
            known |= {"mode", "fileSystem"}
        if not set(self._spec.data) <= known or self._spec.data.get("mode", "fs") != "fs":
            return FILLED_IN
        extra: dict[str, Any] = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 0}
        cpu = self._spec.data.get("cpu")
        if isinstance(cpu, Mapping) and "blockSize" in cpu:
            extra["block_size"] = cpu["blockSize"]
        if tiers:
            extra["secondary_tiers"] = tiers
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        return json.dumps(config)

    def _paths(self) -> Iterator[str]:
        for index, one in enumerate(self._secondary):
            if one.inside("fileSystem").data:
                yield f"/mnt/kv-cache-{index}"

    def _given_paths(self) -> Iterator[str]:
        """Yield the paths of the other form, which is one mapping or a list of them."""
        given = self._spec.data.get("fileSystem")
        parts = [self._spec.inside("fileSystem")] if isinstance(given, Mapping) else self._spec.each("fileSystem")
        yield from (part.word("path") for part in parts)

    def mounts(self) -> list[Mapping[str, Any]]:
        return [
            {"name": f"kv-cache-secondary-{index}", "mountPath": f"/mnt/kv-cache-{index}", "subPath": _sub_path(one)}
            for index, one in enumerate(self._secondary)
            if one.inside("fileSystem").data
        ]

    def volumes(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for index, one in enumerate(self._secondary):
            claim = one.inside("fileSystem").inside("pvc").inside("ref")
            kept = {"persistentVolumeClaim": {"claimName": claim.word("name")}} if claim.data else {"emptyDir": {}}
            found.append({"name": f"kv-cache-secondary-{index}", **kept})
        return found


def _sub_path(tier: Values) -> str:
    return tier.inside("fileSystem").inside("pvc").inside("ref").word("path").strip("/")
