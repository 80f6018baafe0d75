"""Kubernetes files of the shapes that people deploy, to the facts in the container that runs the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.deployments.capture import capture
from kvgate.deployments.launch import LaunchFacts, LaunchFile, parse_vllm, read_launch
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import manifest_from
from kvgate.rules.pools import pools as judged

IMAGE = "vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64
TIERED = json.dumps(
    {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": "/kv/a"}],
        },
    }
)


def pod(container: dict[str, Any] | None = None, *more: dict[str, Any], **spec: Any) -> dict[str, Any]:
    engine = {"name": "engine", "image": IMAGE, "command": ["vllm", "serve", "org/m"], **(container or {})}
    return {"containers": [engine, *more], **spec}


def deployment(spec: dict[str, Any], name: str = "support", kind: str = "Deployment", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": {"spec": spec}, **more},
    }


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def file(*objects: Any, name: str = "deploy.yaml", only: str | None = None) -> LaunchFile:
    return LaunchFile(name, yaml.safe_dump_all(json.loads(json.dumps(objects))).encode(), {}, only)


def read(*objects: Any) -> LaunchFacts:
    (facts,) = read_launch([file(*objects)])
    return facts


def line(text: str) -> LaunchFacts:
    return parse_vllm(f"docker run --entrypoint '' {IMAGE} {text}", source="x")


def said(facts: LaunchFacts) -> tuple[Any, ...]:
    return facts.model, facts.values, dict(facts.unknown), facts.pending, facts.overrides, facts.adapters


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


SAME = {
    "a Deployment": deployment(pod()),
    "a StatefulSet": deployment(pod(), kind="StatefulSet"),
    "a Pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod()},
    "a leader with workers": {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "l"},
        "spec": {
            "leaderWorkerTemplate": {
                "leaderTemplate": {"spec": pod()},
                "workerTemplate": {"spec": pod({"command": ["vllm", "serve", "org/m", "--headless"]})},
            }
        },
    },
    "a list": {"apiVersion": "v1", "kind": "List", "items": [config_map("c", {}), deployment(pod())]},
    "arguments to the image's own command": deployment(pod({"command": None, "args": ["org/m"]})),
    "a script": deployment(pod({"command": ["/bin/bash", "-ec"], "args": ["exec vllm serve org/m"]})),
    "a script's arguments": deployment(pod({"command": ["bash", "-c", 'exec "$@"', "-", "vllm", "serve", "org/m"]})),
    "a sidecar and an init container": deployment(
        pod({}, {"name": "proxy", "image": "x/vllm-router:v1", "args": ["--port", "1"]}, initContainers=[{"name": "i"}])
    ),
    "an annotation that says otherwise": {
        **deployment(pod()),
        "metadata": {"name": "d", "annotations": {"last-applied": "vllm serve other/m --dtype half"}},
        "status": {"spec": pod({"command": ["vllm", "serve", "other/m"]})},
    },
}


@pytest.mark.parametrize("name", SAME)
def test_every_kind_of_pod_says_what_its_command_says(name: str) -> None:
    assert said(read(SAME[name])) == said(line("vllm serve org/m"))


def test_flags_with_json_and_variables() -> None:
    container = {
        "command": ["vllm", "serve"],
        "args": ["$(MODEL)", "--tensor-parallel-size=$(TP)", "--kv-transfer-config", TIERED, "--x", "$$(TP)"],
        "env": [
            {"name": "SIZE", "value": "4"},
            {"name": "TP", "value": "$(SIZE)"},
            {"name": "MODEL", "value": "org/m"},
            {"name": "PYTHONHASHSEED", "value": "42"},
        ],
        "volumeMounts": [{"name": "kv", "mountPath": "/kv"}],
    }
    volumes = [{"name": "kv", "persistentVolumeClaim": {"claimName": "claim"}}]
    facts = read(deployment(pod(container, volumes=volumes)))
    assert facts.model == "org/m"
    assert facts.values["parallelism.tensor"] == 4
    assert facts.values["engine.prefix_hash.seed"] == "42"
    assert facts.values["cache.connector"] == "vllm-offload-fs"
    assert facts.values["cache.location"] == facts.values["cache.namespace"] == "volume:claim/a"
    assert facts.values["engine.args"] == {"x": "$(TP)"}


VOLUMES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "a claim": ({"persistentVolumeClaim": {"claimName": "c"}}, {}, "volume:c/a"),
    "a folder of a claim": ({"persistentVolumeClaim": {"claimName": "c"}}, {"subPath": "s"}, "volume:c/s/a"),
    "a folder of the host": ({"hostPath": {"path": "/mnt/x/"}}, {}, "/mnt/x/a"),
    "an export": ({"nfs": {"server": "h", "path": "/e"}}, {}, "volume:h/e/a"),
    "nothing that stays": ({"emptyDir": {}}, {}, "/kv/a"),
    "a folder that the pod names": ({"persistentVolumeClaim": {"claimName": "c"}}, {"subPathExpr": "$(POD)"}, None),
    "a driver's own": ({"csi": {"driver": "d"}}, {}, None),
    "a claim that is filled in": ({"persistentVolumeClaim": {"claimName": "${CLAIM}"}}, {}, None),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_where_the_store_is_for_everybody(name: str) -> None:
    volume, mount, expected = VOLUMES[name]
    container = {
        "args": ["--kv-transfer-config", TIERED],
        "volumeMounts": [{"name": "kv", "mountPath": "/kv", **mount}],
    }
    facts = read(deployment(pod(container, volumes=[{"name": "kv", **volume}])))
    assert facts.values.get("cache.location") == expected
    if expected is None:
        assert "/kv" in reason(facts, "cache.location")


def test_every_replica_of_a_stateful_set_has_a_claim_of_its_own() -> None:
    container = {"args": ["--kv-transfer-config", TIERED], "volumeMounts": [{"name": "kv", "mountPath": "/kv"}]}
    claims = [{"metadata": {"name": "kv"}, "spec": {}}]
    facts = read(deployment(pod(container), kind="StatefulSet", volumeClaimTemplates=claims))
    assert facts.values["cache.location"] == "volume:kv-support/a"
    other = deployment(pod(container), kind="StatefulSet", name="other", volumeClaimTemplates=claims)
    assert read(other).values["cache.location"] == "volume:kv-other/a"


def test_a_claim_of_another_namespace_is_another_store() -> None:
    volumes = [{"name": "kv", "persistentVolumeClaim": {"claimName": "c"}}]
    container = {"args": ["--kv-transfer-config", TIERED], "volumeMounts": [{"name": "kv", "mountPath": "/kv"}]}
    given = deployment(pod(container, volumes=volumes))
    given["metadata"]["namespace"] = "prod"
    assert read(given).values["cache.location"] == "volume:prod/c/a"


def mounting(name: str, path: str, **container: Any) -> dict[str, Any]:
    mounts = [{"name": "files", "mountPath": path}]
    return deployment(
        pod({"volumeMounts": mounts, **container}, volumes=[{"name": "files", "configMap": {"name": name}}])
    )


def test_a_script_from_a_config_map_is_read_where_it_is_run() -> None:
    script = 'set -eu\nexport PYTHONHASHSEED=7\necho "$1"\nexec vllm serve "$@"\n'
    files = config_map("scripts", {"run.sh": script, "other.sh": "vllm serve other/m"})
    for command in (["/scripts/run.sh"], ["bash", "-e", "/scripts/run.sh"]):
        facts = read(mounting("scripts", "/scripts", command=command, args=["org/m", "-tp", "2"]), files)
        assert said(facts) == said(line("env PYTHONHASHSEED=7 vllm serve org/m -tp 2"))
    shifted = config_map("scripts", {"run.sh": 'shift\nvllm serve "$@"'})
    facts = read(mounting("scripts", "/scripts", command=["/scripts/run.sh"], args=["a", "org/m"]), shifted)
    assert facts.model is None  # what is left of the arguments is not known
    sliced = config_map("scripts", {"run.sh": 'vllm serve "${@:2}"'})
    assert read(mounting("scripts", "/scripts", command=["/scripts/run.sh"], args=["a", "org/m"]), sliced).model is None


def test_a_script_that_was_not_given_starts_nothing_known() -> None:
    with pytest.raises(InputError, match="no container starts a server"):
        read(mounting("scripts", "/scripts", command=["/scripts/run.sh"], args=["org/m"]))


def test_files_from_another_file() -> None:
    config = "tensor-parallel-size: 8\n"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    command = ["vllm", "serve", "org/m", "--config", "/etc/vllm/c.yaml", "--chat-template", "/etc/vllm/t.jinja"]
    workload = file(mounting("files", "/etc/vllm", command=command))
    (without,) = read_launch([workload])
    assert "was not given" in reason(without, "parallelism.tensor")
    (facts,) = read_launch(
        [workload, file(config_map("files", {"c.yaml": config, "t.jinja": template}), name="c.yaml")]
    )
    assert facts.values["parallelism.tensor"] == 8
    assert facts.chat_template == template
    assert facts.values["engine.image"] == "sha256:" + "a" * 64  # the folder holds no software


def test_a_config_map_over_the_engines_own_code_is_other_software() -> None:
    files = config_map("patch", {"sampler.py": "x = 1"})
    facts = read(mounting("patch", "/usr/lib/python3/dist-packages/vllm/extra"), files)
    assert "mounted over" in reason(facts, "engine.image")


def test_variables_from_config_maps_and_secrets() -> None:
    entries = [
        {"configMapRef": {"name": "env"}},
        {"prefix": "VLLM_", "configMapRef": {"name": "prefixed"}},
        {"secretRef": {"name": "s"}},
    ]
    own = [
        {"name": "SIZE", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "SIZE"}}},
        {"name": "PYTHONHASHSEED", "value": "1"},
        {"name": "VLLM_Y", "value": "$(VLLM_USE_X).$(SIZE)"},
    ]
    container = {"envFrom": entries, "env": own, "args": ["-tp", "$(SIZE)"]}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"VLLM_FROM_ELSEWHERE": "hunter2hunter2"},
    }
    maps = [
        config_map("env", {"SIZE": "2", "PYTHONHASHSEED": "0", "notes.txt": "x"}),
        config_map("prefixed", {"USE_X": "1"}),
    ]
    facts = read(deployment(pod(container)), *maps, secret)
    assert facts.values["parallelism.tensor"] == 2
    assert facts.values["engine.prefix_hash.seed"] == "1"  # env wins over envFrom
    assert "VLLM_FROM_ELSEWHERE" in reason(facts, "engine.args")
    assert "hunter2" not in repr(facts)
    facts = read(deployment(pod(container)), *maps)
    assert "the Secret s was not given" in reason(facts, "engine.kv_layout")
    container["envFrom"] = entries[:2]
    assert read(deployment(pod(container)), *maps).values["engine.args"] == {"VLLM_USE_X": "1", "VLLM_Y": "1.2"}


def test_what_was_not_given_may_set_what_was_set_before_it() -> None:
    size = config_map("env", {"SIZE": "2"})

    def tensor(*order: str) -> Any:
        sources = [{"configMapRef": {"name": name}} for name in order]
        return read(deployment(pod({"envFrom": sources, "args": ["-tp", "$(SIZE)"]})), size).values.get(
            "parallelism.tensor"
        )

    assert tensor("env") == tensor("other", "env") == 2
    assert tensor("env", "other") is None


@pytest.mark.parametrize(
    "source",
    [
        {"secretKeyRef": {"name": "s", "key": "k"}},
        {"fieldRef": {"fieldPath": "status.podIP"}},
        {"configMapKeyRef": {"name": "none", "key": "k"}},
    ],
)
def test_a_value_from_outside_is_not_known(source: dict[str, Any]) -> None:
    container = {
        "env": [{"name": "X", "valueFrom": source}, {"name": "PYTHONHASHSEED", "valueFrom": source}],
        "args": ["-tp", "$(X)"],
    }
    facts = read(deployment(pod(container)))
    assert "${X}" in reason(facts, "parallelism.tensor")
    assert "PYTHONHASHSEED" in reason(facts, "engine.prefix_hash.seed")
    script = {
        "command": ["bash", "-c", "vllm serve org/m -tp $(X) --runner '$(X)'"],
        "env": container["env"],
        "args": [],
    }
    facts = read(deployment(pod(script)))
    assert "$X" in reason(facts, "parallelism.tensor")
    assert "${X}" in reason(facts, "engine.args")


def test_a_credential_stays_where_it_is() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    env = [
        {"name": "DB_PASSWORD", "value": secret},
        {"name": "VLLM_X", "value": "a-$(DB_PASSWORD)"},
    ]
    container = {"args": ["--x", "b-$(DB_PASSWORD)"], "env": env}
    script = {"command": ["bash", "-c", "vllm serve org/m --x b-$DB_PASSWORD --y c-$(DB_PASSWORD)"], "env": env}
    for one in (container, script):
        facts = read(deployment(pod(one)))
        assert secret not in repr(facts)
        assert "DB_PASSWORD" in reason(facts, "engine.args")


def test_a_reference_to_nothing_stays_as_it_is_and_a_shell_runs_it() -> None:
    facts = read(deployment(pod({"command": ["bash", "-c", "echo $(date); vllm serve org/m -tp $(nproc)"]})))
    assert "$(...)" in reason(facts, "parallelism.tensor")
    assert facts.values["engine.version"] == "0.33.0"
    assert "$(NONE)" in reason(read(deployment(pod({"args": ["-tp", "$(NONE)"]}))), "parallelism.tensor")


FILLED = ["${TAG}", "{{ .Values.tag }}", '{{- include "chart.tag" . }}', "$TAG"]


@pytest.mark.parametrize("filled", FILLED)
def test_what_is_filled_in_before_it_is_deployed_is_not_known(filled: str) -> None:
    facts = read(deployment(pod({"image": f"vllm/vllm-openai:{filled}", "args": ["--revision", filled]})))
    assert reason(facts, "engine.image")
    assert reason(facts, "engine.version")
    assert reason(facts, "model.revision")


@pytest.mark.parametrize("image", ["vllm/vllm-openai:latest", "vllm/vllm-openai", None])
def test_an_image_that_pins_nothing_is_not_known(image: str | None) -> None:
    facts = read(deployment(pod({"image": image})))
    assert reason(facts, "engine.image")
    assert reason(facts, "engine.version")


def test_what_a_patch_changes_may_have_anything_else() -> None:
    container = {
        "image": None,
        "command": ["bash", "-c", "vllm serve org/m -tp 2 --kv-transfer-config '" + TIERED + "'"],
    }
    facts = read(deployment(pod(container)))
    assert facts.values["parallelism.tensor"] == 2
    for path in ("engine.image", "engine.version", "engine.prefix_hash.seed", "cache.location", "engine.args"):
        assert reason(facts, path)


def test_a_hook_in_the_container_may_change_the_software() -> None:
    hook = {"lifecycle": {"postStart": {"exec": {"command": ["pip", "install", "x"]}}}}
    assert "postStart" in reason(read(deployment(pod(hook))), "engine.version")


def pools(*, model: str = "org/m", **decode: Any) -> list[dict[str, Any]]:
    producer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_producer"})
    consumer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_consumer"})
    first = pod({"args": ["-tp", "2", "--kv-transfer-config", producer]})
    second = pod(
        {"command": ["vllm", "serve", model], "args": ["-tp", "4", "--kv-transfer-config", consumer], **decode}
    )
    return [deployment(first, name="prefill"), deployment(second, name="decode")]


def running(name: str) -> dict[str, Any]:
    """A pod as the cluster shows it: with a token of its own, a status, and what the controller noted."""
    token = f"kube-api-access-{name}"
    container = {"volumeMounts": [{"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": name, "annotations": {"note": name}},
        "spec": pod(container, volumes=[{"name": token, "projected": {"sources": [{"serviceAccountToken": {}}]}}]),
        "status": {"podIP": name},
    }


def test_the_replicas_of_one_server_are_one_deployment() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [running("a"), running("b")]}
    assert said(read(listed)) == said(line("vllm serve org/m"))


def test_two_servers_of_one_model_are_pools() -> None:
    facts = read(*pools())
    assert facts.model == "org/m"
    sets = {role["name"]: role["set"] for role in facts.values["roles"]}
    assert {name: one["parallelism.tensor"] for name, one in sets.items()} == {"prefill": 2, "decode": 4}
    assert sets["decode"]["engine.args"] == {"kv-transfer-config": {"kv_role": "kv_consumer"}}
    assert set(sets["decode"]) == {"parallelism.tensor", "engine.args"}
    (one,) = read_launch([file(*pools(), only="decode")])
    assert one.values["parallelism.tensor"] == 4
    assert "half" in reason(one, "roles")


@pytest.mark.usefixtures("quick")
def test_pools_are_judged_as_pools(make_checkpoint: Any, tmp_path: Path) -> None:
    captured = capture(str(make_checkpoint()), launch=[read(*pools())], snapshot_to=tmp_path / "tokens.jsonl")
    manifest = manifest_from(captured.manifest, "x")
    sizes = {pool.name: pool.manifest.value("parallelism.tensor") for pool in judged(manifest)}
    assert sizes == {"prefill": 2, "decode": 4}


def test_what_one_pool_does_not_tell_is_not_known() -> None:
    facts = read(*pools(image="vllm/vllm-openai:latest"))
    assert reason(facts, "engine.image")
    facts = read(*pools(command=["vllm", "serve", "org/m", "--dtype", "half"]))
    assert "differ" in reason(facts, "precision.compute")
    assert "precision.compute" not in facts.pending


def test_servers_of_two_models_are_not_one_deployment() -> None:
    with pytest.raises(InputError, match=r"differ in their model.*prefill.*decode"):
        read(*pools(model="org/other"))
    (chosen,) = read_launch([file(*pools(model="org/other"), only="decode")])
    assert chosen.model == "org/other"
    with pytest.raises(InputError, match="no server is called 'none'") as caught:
        read_launch([file(*pools(), only="none")])
    assert {"prefill", "decode"} < set(str(caught.value.hint).removeprefix("#NAME is one of: ").split(", "))


def test_a_group_with_two_builds_of_one_image_is_refused_naming_both() -> None:
    group = SAME["a leader with workers"]
    worker = pod({"image": "vllm/vllm-openai:v0.32.0", "command": ["ray", "start"]})
    templates = {**group["spec"]["leaderWorkerTemplate"], "workerTemplate": {"spec": worker}}
    with pytest.raises(InputError, match=r"another build of vllm/vllm-openai.*container engine") as caught:
        read({**group, "spec": {"leaderWorkerTemplate": templates}})
    assert str(caught.value).count("LeaderWorkerSet/l") == 2


REFUSED = {
    "one name twice": ([config_map("c", {"a": "1"}), config_map("c", {"a": "2"}), deployment(pod())], "defined twice"),
    "no server": ([config_map("c", {})], "no container starts a server"),
    "a document of another kind": ([deployment(pod()), {"a": 1}], "no Kubernetes object"),
    "a number for a text": ([deployment(pod({"args": ["--port", 1]}))], "is not a text"),
    "a truth value for a text": ([deployment(pod({"env": [{"name": "X", "value": True}]}))], "is not a text"),
    "an image that is none": ([deployment(pod({"image": ["a"]}))], "is not a text"),
    "a mount without a path": ([deployment(pod({"volumeMounts": [{"name": "x"}]}))], "without a name or a path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_say_two_things_or_nothing_are_refused(name: str) -> None:
    objects, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        read(*objects)
    assert "deploy.yaml" in str(caught.value)


def test_the_same_object_in_two_files_counts_once() -> None:
    both = [file(deployment(pod()), name="a.yaml"), file(deployment(pod()), name="b.yaml")]
    assert len(read_launch(both)) == 1


HEAD = "apiVersion: v1\nkind: Pod\n"
HOSTILE = {
    "a bomb": HEAD + "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "a tag": HEAD + "spec: !!python/object/apply:os.system ['touch /tmp/x']\n",
    "a chart": HEAD + "spec:\n  containers:\n  - image: {{ .Values.image }}\n",
    "depth": HEAD + "spec: " + "[" * 5000 + "]" * 5000,
    "a key twice": HEAD + "kind: Pod\n",
    "no end": HEAD + 'spec: {containers: [{name: "x',
    "a NUL": HEAD + "spec: \0",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_clear_error(name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch([LaunchFile("p.yaml", HOSTILE[name].encode())])
    assert "p.yaml" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in caught.value.message


def test_a_chart_is_told_to_be_rendered() -> None:
    with pytest.raises(InputError) as caught:
        read_launch([LaunchFile("p.yaml", HOSTILE["a chart"].encode())])
    assert "helm template" in str(caught.value.hint)


def test_names_that_leave_their_folder_are_not_followed() -> None:
    escaping = config_map("files", {"x": "--dtype half"})
    workload = mounting("files", "/etc/vllm", command=["vllm", "serve", "org/m", "--config", "/etc/vllm/../../x"])
    workload["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"] = [{"key": "x", "path": "../../x"}]
    assert "was not given" in reason(read(workload, escaping), "precision.compute")


def _sharing(*others: dict[str, Any], path: str = "/models", **spec: Any) -> LaunchFacts:
    mount = {"name": "models", "mountPath": path, "readOnly": True}
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "m"}}]
    return read(deployment(pod({"volumeMounts": [mount]}, *others, volumes=volumes, **spec)))


def _fetch(script: str, **mount: Any) -> dict[str, Any]:
    mounts = [{"name": "models", "mountPath": "/m", **mount}]
    return {"name": "fetch", "image": "busybox", "command": ["sh", "-c", script], "volumeMounts": mounts}


def test_what_else_writes_to_what_the_server_reads_counts() -> None:
    """That the model is fetched before is ordinary; that it is changed on the way, from one release on, is not."""

    def beside(facts: LaunchFacts) -> dict[str, Any]:
        return {name: value for name, value in facts.values["engine.args"].items() if name.startswith("beside.")}

    plain = beside(_sharing(initContainers=[_fetch("cp -r /src /m")]))
    assert list(plain) == ["beside.fetch"]
    assert beside(_sharing(initContainers=[_fetch("cp -r /src /m")])) == plain
    assert beside(_sharing(initContainers=[_fetch("cp -r /src /m; sed -i s/1e4/5e5/ /m/config.json")])) != plain
    assert beside(_sharing(_fetch("sleep inf; cp -r /src /m"))) not in ({}, plain)
    assert beside(_sharing(initContainers=[_fetch("ls", readOnly=True)])) == {}
    assert beside(_sharing(initContainers=[_fetch("ls")], path="/dev/shm")) == {}
    secret = "sk-" + "a1b2c3d4e5f6" * 3
    assert beside(_sharing(initContainers=[{**_fetch("x"), "env": [{"name": "HF_TOKEN", "value": secret}]}])) == beside(
        _sharing(initContainers=[{**_fetch("x"), "env": [{"name": "HF_TOKEN", "value": secret + "1"}]}])
    )


def test_workers_of_a_group_are_held_against_their_leader() -> None:
    def group(*flags: str, model: str = "org/m", **worker: Any) -> LaunchFacts:
        own = {"command": ["vllm", "serve", model, "--headless", "--node-rank", "1", *flags], **worker}
        return read(deployment(pod(), "head"), deployment(pod(own), "worker"))

    alone = read(deployment(pod(), "head"))
    assert group().values == alone.values
    other = group("--kv-cache-dtype", "fp8")
    assert "precision.kv_cache" not in other.values
    assert reason(other, "precision.kv_cache").endswith("works for the same server and has it otherwise")
    assert "engine.image" not in group(image="me/vllm-fork:v1").values
    assert "engine.prefix_hash.seed" not in group(env=[{"name": "PYTHONHASHSEED", "value": "7"}]).values
    with pytest.raises(InputError, match="with another model"):
        group(model="org/n")


CONFIG = {"envFrom": [{"configMapRef": {"name": "e"}}]}
SEEDS = {
    "the one of its namespace": ("b", {"a": "0", "b": "1"}, "1"),
    "the one of its namespace before one without": ("b", {"": "0", "b": "1"}, "1"),
    "the only one": ("", {"a": "3"}, "3"),
    "one without a namespace": ("b", {"": "4"}, "4"),
    "several": ("", {"a": "0", "b": "1"}, None),
    "another namespace's": ("b", {"a": "0"}, None),
}


@pytest.mark.parametrize("name", SEEDS)
def test_which_config_map_is_meant(name: str) -> None:
    namespace, maps, seed = SEEDS[name]
    server = deployment(pod(CONFIG))
    server["metadata"]["namespace"] = namespace
    objects = [config_map("e", {"PYTHONHASHSEED": one}) for one in maps.values()]
    for one, where in zip(objects, maps, strict=True):
        one["metadata"]["namespace"] = where
    for given in ([server, *objects], [*objects[::-1], server]):
        assert read(*given).values.get("engine.prefix_hash.seed") == seed


COVERED = {
    "nothing over it": ([], "redis://a:1"),
    "a secret over the file": ([{"name": "s", "mountPath": "/cfg/lmcache.yaml", "subPath": "k"}], None),
    "a secret over the folder, later": ([{"name": "s", "mountPath": "/cfg"}], None),
    "a secret elsewhere": ([{"name": "s", "mountPath": "/other"}], "redis://a:1"),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_file_that_another_mount_covers_is_not_read(name: str) -> None:
    mounts, url = COVERED[name]
    volumes = [{"name": "c", "configMap": {"name": "c"}}, {"name": "s", "secret": {"secretName": "s"}}]
    variable = {"name": "LMCACHE_CONFIG_FILE", "value": "/cfg/lmcache.yaml"}
    transfer = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    container = {
        "command": ["vllm", "serve", "org/m", "--kv-transfer-config", transfer],
        "env": [variable],
        "volumeMounts": [{"name": "c", "mountPath": "/cfg"}, *mounts],
    }
    given = config_map("c", {"lmcache.yaml": "remote_url: redis://a:1\n"})
    assert read(deployment(pod(container, volumes=volumes)), given).values.get("cache.location") == url


@pytest.mark.parametrize(
    ("later", "url"),
    [
        ({"secret": {"name": "s"}}, None),
        ({"secret": {"name": "s", "items": [{"key": "k", "path": "other"}]}}, "redis://a:1"),
        ({"secret": {"name": "s", "items": [{"key": "k", "path": "lmcache.yaml"}]}}, None),
        ({"serviceAccountToken": {"path": "token"}}, "redis://a:1"),
        ({"configMap": {"name": "not given"}}, None),
    ],
)
def test_of_several_sources_of_a_volume_the_last_counts(later: dict[str, Any], url: str | None) -> None:
    volumes = [{"name": "c", "projected": {"sources": [{"configMap": {"name": "c"}}, later]}}]
    transfer = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    container = {
        "command": ["vllm", "serve", "org/m", "--kv-transfer-config", transfer],
        "env": [{"name": "LMCACHE_CONFIG_FILE", "value": "/cfg/lmcache.yaml"}],
        "volumeMounts": [{"name": "c", "mountPath": "/cfg"}],
    }
    given = config_map("c", {"lmcache.yaml": "remote_url: redis://a:1\n"})
    assert read(deployment(pod(container, volumes=volumes)), given).values.get("cache.location") == url
