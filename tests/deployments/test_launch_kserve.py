"""KServe's services: the facts in them are those of the pod that the controller makes, as far as they tell."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from kvgate.deployments.launch.makers import kserve_presets
from kvgate.deployments.launch.makers.kserve_presets import Preset
from kvgate.rules.errors import InputError
from tests.deployments.made import IMAGE, NIXL, pod, predictor, read, reason, runtime, said, service, service_config

TEMPLATE = "kserve-config-llm-template"
SCRIPT = [
    "/bin/bash",
    "-c",
    'eval "exec vllm serve /mnt/models {{ .Spec.Model.Name }} ${VLLM_ADDITIONAL_ARGS} $@"',
    "--",
]
SERVED = ["vllm", "serve", "/mnt/models", "--served-model-name", "org/m", "--port", "8000"]


def preset(name: str = TEMPLATE, part: str = "", command: list[str] = SCRIPT, **container: Any) -> dict[str, Any]:
    """A preset of KServe's, whose script is known to pass on everything."""
    main = {"name": "main", "image": IMAGE, "command": command, **container}
    spec: dict[str, Any] = {"template": {"containers": [main]}}
    return service_config(name, **({part: spec} if part else spec))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Preset]:
    """Make the script of :func:`preset` one that was read."""
    digest = sha256("\0".join(SCRIPT).encode()).hexdigest()
    table = kserve_presets._table()
    presets = {digest: Preset(name="template", release="0.20.0", tensor=True, data=True, offload=True)}
    monkeypatch.setattr(kserve_presets, "_table", lambda: table.model_copy(update={"presets": presets}))
    return presets


TIERED = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "/mnt/kv-cache-0"}],
    },
}
CLAIM = {
    "cpu": "10Gi",
    "evictionPolicy": "lru",
    "secondary": [{"fileSystem": {"pvc": {"ref": {"name": "kv", "path": "a/"}}}}],
}
ADDITIONAL = (
    "--prefix-caching-hash-algo sha256_cbor --block-size 64 --kv-transfer-config '" + NIXL.replace('"', '\\"') + "'"
)
# The service, and the flags behind those that every preset writes; the rest of the container.
CASES: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "nothing but the model": (service(), [], {}),
    "no template at all": ({**service(), "spec": {"model": {"uri": "hf://org/m", "name": "org/m"}}}, [], {}),
    "a name of its own": (service(model={"name": None}, name="org/m"), [], {}),
    "ranks": (service(parallelism={"tensor": 4}), ["--tensor-parallel-size=4"], {}),
    "ranks over nodes": (
        service(parallelism={"tensor": 2, "data": 8, "dataLocal": 4, "expert": True}, worker={"containers": []}),
        ["--tensor-parallel-size=2", "--data-parallel-size=8", "--enable-expert-parallel"],
        {},
    ),
    "flags in a variable": (
        service(
            {
                "env": [
                    {"name": "VLLM_ADDITIONAL_ARGS", "value": ADDITIONAL.replace('\\"', '"')},
                    {"name": "PYTHONHASHSEED", "value": "42"},
                ]
            }
        ),
        ["--prefix-caching-hash-algo=sha256_cbor", "--block-size=64", "--kv-transfer-config", NIXL],
        {"env": [{"name": "PYTHONHASHSEED", "value": "42"}]},
    ),
    "flags behind the script": (service({"args": ["--max-model-len", "4096"]}), ["--max-model-len", "4096"], {}),
    "a store on a claim": (
        service(kvCacheOffloading=CLAIM),
        ["--kv-transfer-config", json.dumps(TIERED)],
        {"volumeMounts": [{"name": "kv", "mountPath": "/mnt/kv-cache-0", "subPath": "a"}]},
    ),
    "a store that ends with the pod": (
        service(kvCacheOffloading={"cpu": "1Gi", "secondary": [{"fileSystem": {"emptyDir": {"size": "1Gi"}}}]}),
        ["--kv-transfer-config", json.dumps(TIERED)],
        {"volumeMounts": [{"name": "gone", "mountPath": "/mnt/kv-cache-0"}]},
    ),
    "adapters": (
        service(model={"lora": {"maxRank": 32, "adapters": [{"name": "b/c", "uri": "hf://org/b"}]}}),
        ["--enable-lora", "--max-lora-rank=32", "--lora-modules", '{"name": "b/c", "path": "/mnt/lora/b-c"}'],
        {},
    ),
    "an image of its own, and what only routing needs": (
        service({"image": IMAGE, "resources": {}}, replicas=3, tracing={}, pod={"nodeSelector": {}}),
        [],
        {},
    ),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", CASES)
def test_a_service_with_its_preset_says_what_the_pod_says(name: str) -> None:
    one, flags, container = CASES[name]
    volumes = [{"name": "kv", "persistentVolumeClaim": {"claimName": "kv"}}, {"name": "gone", "emptyDir": {}}]
    expected = pod({"command": [*SERVED, *flags], **container}, volumes=volumes)
    which = "kserve-config-llm-worker-data-parallel" if "worker" in one["spec"] else TEMPLATE
    facts = read({"service.yaml": one, "presets.yaml": [preset(which), preset("kserve-config-llm-scheduler")]})
    assert said(facts) == said(read({"pod.yaml": expected}))
    assert any("hf://org/m at /mnt/models" in note for note in facts.notes)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", CASES)
def test_without_the_preset_only_what_the_service_says_is_known(name: str) -> None:
    one, _, _ = CASES[name]
    which = "kserve-config-llm-worker-data-parallel" if "worker" in one["spec"] else TEMPLATE
    full, bare = read({"s.yaml": one, "p.yaml": preset(which)}), read({"s.yaml": one})
    assert bare.values == {path: full.values[path] for path in bare.values}
    assert bare.model == "/mnt/models"
    for path in (
        "parallelism.tensor",
        "engine.args",
        "precision.compute",
        "engine.version",
        "engine.attention_backend",
    ):
        assert path not in bare.values
    assert f"{which} was not given" in reason(bare, "engine.attention_backend")


def test_a_preset_that_nobody_has_read_may_set_anything() -> None:
    facts = read({"s.yaml": service(parallelism={"tensor": 4}), "p.yaml": preset()})
    assert "runs no template" in reason(facts, "parallelism.tensor")
    assert facts.values["engine.version"] == "0.33.0"  # of the preset's image


def test_a_preset_that_passes_no_size_on_leaves_it_at_one(known: dict[str, Preset]) -> None:
    for digest, one in list(known.items()):
        known[digest] = one.model_copy(update={"tensor": False, "data": False, "offload": False})
    facts = read({"s.yaml": service(parallelism={"tensor": 4}, kvCacheOffloading=CLAIM), "p.yaml": preset()})
    assert facts.values["parallelism.tensor"] == 1
    assert facts.values["cache.connector"] is None


def test_the_presets_of_a_release_are_told_apart_by_their_scripts() -> None:
    assert kserve_presets.preset_of(["/bin/bash", "-c", "x", "--"]) is None
    table = kserve_presets._table()
    releases = {one.release for one in table.presets.values()}
    assert releases == {"0.19.0", "0.20.0"}
    for release in releases:
        assert len([one for one in table.presets.values() if one.release == release]) == 6
    single = {(one.release, one.tensor) for one in table.presets.values() if one.name.endswith("template")}
    assert single == {("0.19.0", False), ("0.20.0", True)}


@pytest.mark.usefixtures("known")
def test_presets_may_bear_their_release_and_two_of_them_are_none() -> None:
    one = preset(f"v0-20-0-{TEMPLATE}")
    assert read({"s.yaml": service(), "p.yaml": one}).values["parallelism.tensor"] == 1
    facts = read({"s.yaml": service(), "p.yaml": [one, preset(f"v0-19-0-{TEMPLATE}")]})
    assert "was not given" in reason(facts, "parallelism.tensor")


@pytest.mark.usefixtures("known")
def test_a_command_of_its_own_is_all_there_is() -> None:
    command = {"image": IMAGE, "command": ["vllm", "serve", "/mnt/models"], "args": ["--dtype=half", "--port=1"]}
    facts = read({"s.yaml": service(command, parallelism={"tensor": 4})})
    assert facts.values["precision.compute"] == "half"
    assert facts.values["parallelism.tensor"] == 1
    # What is not spelled out may come from the preset: variables, and arguments where the service has none.
    assert "was not given" in reason(facts, "engine.prefix_hash.seed")
    del command["args"]
    assert "was not given" in reason(read({"s.yaml": service(command)}), "parallelism.tensor")


@pytest.mark.usefixtures("known")
def test_a_base_is_laid_below_the_service() -> None:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c"],
        "args": ['exec vllm serve /mnt/models --served-model-name "{{ .Spec.Model.Name }}" --dtype half'],
        "env": [{"name": "PYTHONHASHSEED", "value": "1"}, {"name": "VLLM_X", "value": "1"}],
    }
    base = service_config("team-base", template={"containers": [container]}, model={"lora": {"adapters": []}})
    own = service({"env": [{"name": "PYTHONHASHSEED", "value": "2"}]}, baseRefs=[{"name": "team-base"}])
    facts = read({"s.yaml": own, "base.yaml": [base, preset()]})
    assert (facts.model, facts.values["model.served_name"]) == ("/mnt/models", "org/m")
    assert facts.values["engine.prefix_hash.seed"] == "2"
    assert facts.values["engine.args"] == {"VLLM_X": "1"}
    assert facts.values["precision.compute"] == "half"
    missing = read({"s.yaml": own, "p.yaml": preset()})
    assert "LLMInferenceServiceConfig team-base was not given" in reason(missing, "precision.compute")


@pytest.mark.usefixtures("known")
def test_prefill_and_decode_are_pools() -> None:
    def pool(role: str) -> dict[str, Any]:
        flags = NIXL.replace("kv_both", role)
        env = [{"name": "VLLM_ADDITIONAL_ARGS", "value": f"--kv_transfer_config '{flags}'"}]
        return {"template": {"containers": [{"name": "main", "env": env}]}}

    decode = pool("kv_consumer")["template"]["containers"][0]
    one = service(decode, parallelism={"tensor": 4}, prefill={**pool("kv_producer"), "parallelism": {"tensor": 2}})
    presets = [preset("kserve-config-llm-decode-template"), preset("kserve-config-llm-prefill-template", "prefill")]
    facts = read({"s.yaml": one, "p.yaml": presets})
    sets = {role["name"]: role["set"] for role in facts.values["roles"]}
    assert sets["decode"]["parallelism.tensor"] == 4
    assert sets["prefill"]["parallelism.tensor"] == 2
    assert sets["prefill"]["engine.args"]["kv-transfer-config"] == {"kv_role": "kv_producer"}
    assert read({"s.yaml": one, "p.yaml": presets}, only="prefill").values["parallelism.tensor"] == 2
    assert "kserve-config-llm-prefill-template was not given" in reason(
        read({"s.yaml": one, "p.yaml": presets[0]}, only="prefill"), "parallelism.tensor"
    )


OPEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "a variable from outside": (
        service({"env": [{"name": "VLLM_ADDITIONAL_ARGS", "valueFrom": {"configMapKeyRef": {}}}]}),
        "engine.args",
        "set from outside",
    ),
    "a command in it": (
        service({"env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--dtype $(cat /x)"}]}),
        "precision.compute",
        "may give any flag",
    ),
    "a shell variable for flags": (
        service({"env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "$MORE --dtype half"}]}),
        "engine.args",
        "may hold any flag",
    ),
    "a shell variable for a value": (
        service({"env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--block-size ${SIZE}"}]}),
        "engine.block_size",
        "Go template",
    ),
    "an adapter that is switched off": (
        service(model={"lora": {"adapters": [{"name": "a", "uri": "hf://o/a", "disabled": True}]}}),
        "adapters",
        "lora-modules",
    ),
    "a field of the model": (
        service(model={"speculativeDecoding": {}}),
        "engine.speculative",
        "speculativeDecoding is no key",
    ),
    "a field of the service": (service(workload={}), "engine.args", "spec.workload is no key"),
    "another form of offloading": (
        service(kvCacheOffloading={"objectStore": {}}),
        "cache.connector",
        "kv-transfer-config",
    ),
}


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", OPEN)
def test_what_the_files_leave_open_is_not_known(name: str) -> None:
    one, path, why = OPEN[name]
    assert why in reason(read({"s.yaml": one, "p.yaml": preset()}), path)


def test_the_other_form_of_offloading_names_its_folder() -> None:
    mount = {"volumeMounts": [{"name": "kv", "mountPath": "/mnt/kv"}]}
    volumes = [{"name": "kv", "persistentVolumeClaim": {"claimName": "claim"}}]
    tiers = {"mode": "fs", "cpu": {"size": "1Gi", "blockSize": 64}, "fileSystem": {"path": "/mnt/kv", "readThreads": 1}}
    facts = read({"s.yaml": service(mount, pod={"volumes": volumes}, kvCacheOffloading=tiers)})
    assert facts.values["cache.connector"] == "vllm-offload-fs"
    assert facts.values["cache.location"] == "volume:claim"
    assert facts.values["cache.chunk_size"] == 64


def test_a_predictor_has_its_runtimes_flags_and_its_own() -> None:
    one = predictor(runtime="engine-runtime", args=["--dtype=half"], env=[{"name": "PYTHONHASHSEED", "value": "1"}])
    base = runtime(
        {"args": ["--model=/mnt/models", "--served-model-name={{.Name}}"], "env": [{"name": "VLLM_X", "value": "1"}]}
    )
    flags = ["--model=/mnt/models", "--served-model-name=support", "--dtype=half"]
    command = ["python", "-m", "vllm.entrypoints.openai.api_server", *flags]
    env = [{"name": "VLLM_X", "value": "1"}, {"name": "PYTHONHASHSEED", "value": "1"}]
    facts = read({"isvc.yaml": one, "runtime.yaml": base})
    assert said(facts) == said(read({"pod.yaml": pod({"command": command, "env": env})}))
    assert said(read({"isvc.yaml": predictor(args=["--dtype=half"], env=env[1:]), "r.yaml": base})) == said(facts)


def test_a_predictor_of_another_version_of_its_runtime_has_that_tag() -> None:
    base = runtime({"args": ["--model=/mnt/models"], "image": "vllm/vllm-openai:v0.33.0"})
    facts = read({"a.yaml": predictor(runtime="engine-runtime", runtimeVersion="v0.32.0"), "b.yaml": base})
    assert facts.values["engine.version"] == "0.32.0"
    pinned = runtime({"args": ["--model=/mnt/models"]})
    facts = read({"a.yaml": predictor(runtime="engine-runtime", runtimeVersion="v0.32.0"), "b.yaml": pinned})
    assert facts.values["engine.version"] == "0.33.0"


def test_workers_on_other_nodes_may_bring_any_flag() -> None:
    base = runtime({"args": ["--model=/mnt/models"]}, workerSpec={"pipelineParallelSize": 2})
    facts = read({"a.yaml": predictor(runtime="engine-runtime"), "b.yaml": base})
    assert "workers on other nodes" in reason(facts, "parallelism.pipeline")


def test_a_runtime_without_its_service_may_have_any_flag() -> None:
    facts = read({"runtime.yaml": runtime({"args": ["--model=/mnt/models"]})})
    assert "InferenceService was not given" in reason(facts, "engine.args")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.yaml": predictor(runtime="gone")}, "the ServingRuntime gone was not given"),
        ({"a.yaml": predictor()}, "the one ServingRuntime that KServe chooses was not given"),
        ({"a.yaml": predictor(), "b.yaml": runtime({"name": "other"})}, "has no container kserve-container"),
        ({"a.yaml": service({"args": ["--dtype", "half; ls"]})}, "is more than the arguments of one command"),
        ({"a.yaml": service({"args": ["'"]})}, "never closed"),
        ({"a.yaml": service({"$patch": "replace"}), "b.yaml": preset()}, "directive of a strategic merge"),
        ({"a.yaml": {**service(), "spec": {"model": []}}}, "model: is no mapping"),
        ({"a.yaml": service_config("alone")}, "no container starts a server"),
    ],
)
def test_what_is_no_deployment_is_refused_naming_its_place(files: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(files)


def evaluated(text: str, *before: str) -> dict[str, Any]:
    """A pod whose script evaluates its command, as those that the controller makes do."""
    script = "\n".join([*before, f'eval "exec {text}"'])
    return pod({"command": ["/bin/bash", "-c", script, "--"]})


def test_a_command_that_a_script_evaluates_is_read() -> None:
    facts = read({"pod.yaml": evaluated('vllm serve /mnt/models \\\n  --served-model-name "org/m" \\\n  --dtype half')})
    assert said(facts) == said(
        read(
            {
                "pod.yaml": pod(
                    {"command": ["vllm", "serve", "/mnt/models", "--served-model-name=org/m", "--dtype=half"]}
                )
            }
        )
    )


def test_what_is_filled_in_before_it_is_evaluated_may_hold_any_flag() -> None:
    lines = ('ACCESS="--no-log"', 'if [ "$V" = "1" ]; then', '  ACCESS="--log ${A["${I}"]} ${B:-"x y"}"', "fi")
    facts = read({"pod.yaml": evaluated("vllm serve /mnt/models -pp 2 ${ACCESS} $@ --dtype half", *lines)})
    assert facts.values["precision.compute"] == "half"
    for path in ("parallelism.tensor", "parallelism.pipeline"):
        assert "$@, $ACCESS, which" in reason(facts, path)
    with pytest.raises(InputError, match="no container starts a server"):
        read({"pod.yaml": evaluated("eval vllm serve /mnt/models")})
