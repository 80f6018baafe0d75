"""Values of llm-d's chart and what it renders: the facts in both are those of the same pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.rules.errors import InputError
from tests.deployments.made import IMAGE, NIXL, modelservice, pod, read, reason, said, workload

FS = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "SharedStorageOffloadingSpec",
        "spec_module_path": "llmd_fs_backend.spec",
        "shared_storage_path": "/mnt/files-storage/kv-cache/",
        "block_size": 256,
        "threads_per_gpu": 64,
    },
}
CLAIM = [{"name": "files", "persistentVolumeClaim": {"claimName": "kv-claim"}}]
MOUNT = [{"name": "files", "mountPath": "/mnt/files-storage"}]
SIZES = [{"name": name, "value": "1"} for name in ("DP_SIZE", "TP_SIZE", "DP_SIZE_LOCAL")]


def serve(*flags: str, model: str = "org/m", **more: Any) -> dict[str, Any]:
    """The container that the chart writes for modelCommand vllmServe, in the words of its template."""
    return {"command": ["vllm", "serve"], "args": [model, *flags], "env": SIZES, **more}


NAMED = ("--port", "8200", "--served-model-name", "org/m")
# The decode pool, values beside it, and the pod that they stand for.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "flags of the container": (
        workload("--max-model-len=4096", "--kv-transfer-config", NIXL),
        {},
        pod(serve(*NAMED, "--max-model-len=4096", "--kv-transfer-config", NIXL)),
    ),
    "ranks": (
        workload(parallelism={"tensor": 4, "data": 2, "dataLocal": 2}),
        {},
        pod(serve("--tensor-parallel-size", "4", "--data-parallel-size", "2", "--data-parallel-size-local=2", *NAMED)),
    ),
    "ranks that follow from others": (
        workload(parallelism={"data": 0, "dataLocal": 2, "workers": 4}),
        {},
        pod(serve("--data-parallel-size", "8", "--data-parallel-size-local=2", *NAMED)),
    ),
    "the model of the chart's own default": (
        workload(),
        {"artifacts": {"uri": "hf://{{ .Values.modelArtifacts.name }}"}},
        pod(serve(*NAMED)),
    ),
    "that in quotes": (
        workload(),
        {"artifacts": {"uri": 'hf://"{{ .Values.modelArtifacts.name }}"'}},
        pod(serve(*NAMED)),
    ),
    "a model on a claim": (
        workload(container={"mountModelVolume": True}),
        {"artifacts": {"uri": "pvc://models/llama/m", "mountPath": "/models"}},
        pod(serve(*NAMED, model="/models/llama/m")),
    ),
    "a hub's folder on a claim": (
        workload(container={"mountModelVolume": True}),
        {"artifacts": {"uri": "pvc+hf://models/hub/org/m"}},
        pod(serve(*NAMED)),
    ),
    "the image's own command": (
        workload("--dtype=half", container={"modelCommand": "imageDefault"}),
        {},
        pod({"args": ["--model", "org/m", *NAMED, "--dtype=half"], "env": SIZES}),
    ),
    "a script of its own": (
        workload(
            "exec vllm serve org/m --tensor-parallel-size $TP_SIZE --kv-transfer-config '" + NIXL + "'",
            container={"modelCommand": "custom", "command": ["bash", "-c"]},
            parallelism={"tensor": 2},
        ),
        {},
        pod(serve("--tensor-parallel-size", "2", "--kv-transfer-config", NIXL)),
    ),
    "a store on a claim": (
        workload("--kv-transfer-config", json.dumps(FS), container={"volumeMounts": MOUNT}, volumes=CLAIM),
        {},
        pod(serve(*NAMED, "--kv-transfer-config", json.dumps(FS), volumeMounts=MOUNT), volumes=CLAIM),
    ),
    "another accelerator": (
        workload(accelerator={"type": "intel-i915"}),
        {"accelerator": {"type": "nvidia"}, "tracing": {"enabled": True}, "multinode": True},
        pod(serve(*NAMED) | {"env": [*SIZES, {"name": "VLLM_USE_V1", "value": "1"}]}),
    ),
    "fields that pass through": (
        workload(container={"extraConfig": {"lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}}),
        {},
        pod(serve(*NAMED, lifecycle={"postStart": {"exec": {"command": ["x"]}}})),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_say_what_the_pod_of_the_chart_says(name: str) -> None:
    decode, values, expected = CASES[name]
    assert said(read(modelservice(decode, **values))) == said(read({"pod.yaml": expected}))


@pytest.mark.parametrize("name", CASES)
def test_without_the_version_of_the_chart_nothing_is_said_that_is_not_so(name: str) -> None:
    decode, values, _ = CASES[name]
    known, guessed = (read(modelservice(decode, version=version, **values)) for version in ("v0.4.7", None))
    assert {path: known.values[path] for path in guessed.values} == guessed.values
    assert "version of the chart llm-d-modelservice" in reason(guessed, "model.revision")


def test_blocks_of_llm_d_s_own_connector_have_its_profile() -> None:
    facts = read(
        modelservice(
            *(workload("--kv-transfer-config", json.dumps(FS), container={"volumeMounts": MOUNT}, volumes=CLAIM),)
        )
    )
    found = {path: value for path, value in facts.values.items() if path.startswith("cache.")}
    assert found == {
        "cache.connector": "llm-d-fs",
        "cache.location": "volume:kv-claim/kv-cache",
        "cache.namespace": None,
        "cache.chunk_size": 256,
        "cache.serde": None,
    }
    assert facts.values["engine.args"] == {}


@pytest.mark.parametrize(
    ("change", "connector"),
    [
        ({"spec_module_path": "other.spec"}, "OffloadingConnector"),
        ({"spec_module_path": None}, "OffloadingConnector"),
        ({"backend": "OBJ"}, "OffloadingConnector"),
        ({"backend": "POSIX"}, "llm-d-fs"),
    ],
)
def test_what_its_profile_does_not_describe_is_kept_by_its_name(change: dict[str, Any], connector: str) -> None:
    config = {**FS, "kv_connector_extra_config": {**FS["kv_connector_extra_config"], **change}}  # type: ignore[dict-item]
    facts = read(modelservice(workload("--kv-transfer-config", json.dumps(config))))
    assert facts.values["cache.connector"] == connector
    kept = facts.values["engine.args"].get("kv-transfer-config", {})
    assert bool(kept) == (connector == "OffloadingConnector")


def test_a_default_that_differs_by_release_is_not_known() -> None:
    extra = {key: value for key, value in FS["kv_connector_extra_config"].items() if key != "block_size"}  # type: ignore[attr-defined]
    facts = read(modelservice(workload("--kv-transfer-config", json.dumps({**FS, "kv_connector_extra_config": extra}))))
    assert "differs by release" in reason(facts, "cache.chunk_size")


def test_prefill_and_decode_are_pools() -> None:
    prefill = workload("--kv-transfer-config", NIXL, parallelism={"tensor": 1}, replicas=0)
    decode = workload("--kv-transfer-config", NIXL, parallelism={"tensor": 4})
    facts = read(modelservice(decode, prefill))
    assert {role["name"]: role["set"] for role in facts.values["roles"]} == {
        "decode": {"parallelism.tensor": 4},
        "prefill": {"parallelism.tensor": 1},
    }
    assert read(modelservice(decode, prefill), only="prefill").values["parallelism.tensor"] == 1
    assert read(modelservice(decode, {**prefill, "create": False})).values["roles"] is None


def test_what_the_chart_renders_says_the_same() -> None:
    def rendered(role: str, tensor: str) -> dict[str, Any]:
        port = "8200" if role == "decode" else "8000"
        flags = ["--port", port, "--tensor-parallel-size", tensor, "--served-model-name", "org/m"]
        one = pod(serve(*flags, "--kv-transfer-config", NIXL), name=role)
        labels = {"llm-d.ai/role": role}
        note = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(pod(serve("--dtype=half")))}
        return {**one, "metadata": {"name": role, "labels": labels, "annotations": note}}

    sizes = {"decode": "4", "prefill": "2"}
    decode, prefill = (
        workload("--kv-transfer-config", NIXL, parallelism={"tensor": int(size)}) for size in sizes.values()
    )
    facts = read({"rendered.yaml": [rendered(role, size) for role, size in sizes.items()]})
    assert said(facts) == said(read(modelservice(decode, prefill)))
    assert [role["name"] for role in facts.values["roles"]] == ["decode", "prefill"]


def test_pods_that_another_controller_starts_may_have_any_flag() -> None:
    facts = read(modelservice(workload(), requester={"enable": True}))
    assert "requester" in reason(facts, "engine.args")


def test_a_value_that_nobody_has_read_is_named() -> None:
    decode = workload(container={"kvCacheDtype": "fp8"}, parallelism={"context": 2}, engineArgs={})
    names = {"kvCacheDtype", "context", "engineArgs"}
    facts = read(modelservice(decode))
    assert names == {name for name in names for note in facts.notes if name in note and "leaves it out" in note}
    guessed = read(modelservice(decode, version="0.5.0"))
    assert "is no key that kvgate knows" in reason(guessed, "engine.args")


def test_pieces_of_kustomize_are_told_to_be_put_together() -> None:
    pieces = {"kustomization.yaml": {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}}
    with pytest.raises(InputError, match="kubectl kustomize"):
        read(pieces)
    base, patch = pod(serve("--dtype=half")), pod({"args": ["--dtype=bfloat16"]})
    with pytest.raises(InputError, match=r"defined twice.*kubectl kustomize"):
        read({"base.yaml": base, "patch.yaml": patch})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (modelservice(workload(), artifacts={"uri": "oci://registry/m"}), "uri: is no model that the chart can serve"),
        (modelservice(workload(), artifacts={"uri": "pvc://claim"}), "uri: is no model that the chart can serve"),
        (modelservice(workload(container={"modelCommand": "custom"})), "needs a command"),
        (modelservice(workload(container={"modelCommand": "shell"})), "no kind of command"),
        (modelservice(workload(parallelism={"tensor": "many"})), "tensor: is no number of ranks"),
        (modelservice({"create": True, "containers": {}}), "containers: is no list"),
        (modelservice({"create": True, "containers": [1]}), r"containers\[0\]: is no mapping"),
        (modelservice({"create": True}), "no container starts a server"),
    ],
)
def test_what_the_chart_refuses_is_refused_naming_its_place(files: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(files)


def test_the_image_is_that_of_the_container() -> None:
    assert read(modelservice(workload())).values["engine.image"] == "sha256:" + IMAGE.rpartition(":")[2]
