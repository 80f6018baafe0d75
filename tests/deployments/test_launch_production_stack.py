"""Values of vLLM's production stack: the facts in them are those of the pod that the chart makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from kvgate.rules.errors import InputError
from tests.deployments.made import IMAGE, chart, config_map, model_spec, pod, read, reason, said, stack

LMCACHE = json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})
SEED = {"name": "PYTHONHASHSEED", "value": "123"}
LMCACHE_ENV = [{"name": "LMCACHE_USE_EXPERIMENTAL", "value": "True"}]
TEMPLATE = "{% for m in messages %}\n  {{ m['content'] }}\n{% endfor %}"


def serve(*flags: str, env: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """The container that the chart writes, in the words of its template."""
    command = ["vllm", "serve", "org/m", "--host", "0.0.0.0", "--port", "8000", *flags]
    return {"command": command, "env": [SEED, *(env or [])], **more}


CACHING = "--enable-prefix-caching"
# Values of the model, values of the stack, and the pods and ConfigMaps that they stand for.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "nothing but the model": ({"vllmConfig": None}, {}, [pod(serve())]),
    "caching switched off": (
        {"vllmConfig": {"dtype": "half"}},
        {},
        [pod(serve("--no-enable-prefix-caching", "--dtype=half"))],
    ),
    "sizes and types": (
        {
            "vllmConfig": {
                "enablePrefixCaching": True,
                "enableChunkedPrefill": False,
                "maxModelLen": 16384,
                "dtype": "bfloat16",
                "tensorParallelSize": 4,
                "maxNumSeqs": 32,
                "gpuMemoryUtilization": 0.9,
                "maxLoras": 4,
                "v1": 1,
                "extraArgs": ["--kv-cache-dtype", "fp8", "--block-size=32", "--seed", 7],
            }
        },
        {},
        [
            pod(
                serve(
                    *("--no-enable-chunked-prefill", CACHING, "--max-model-len", "16384", "--dtype", "bfloat16"),
                    *("--tensor-parallel-size", "4", "--max-num-seqs", "32", "--gpu-memory-utilization", "0.9"),
                    *("--max-loras", "4", "--kv-cache-dtype", "fp8", "--block-size=32", "--seed", "7"),
                )
            )
        ],
    ),
    "a revision": (
        {"modelRevision": "a" * 40},
        {},
        [pod(serve(CACHING, "--revision", "a" * 40))],
    ),
    "variables of the values win over the chart's": (
        {"env": [{"name": "PYTHONHASHSEED", "value": "7"}, {"name": "VLLM_X", "value": "1"}]},
        {"engines": {"env": [{"name": "PYTHONHASHSEED", "value": "5"}], "configs": {"VLLM_Y": "2"}}},
        [
            pod(
                serve(CACHING, env=[{"name": "VLLM_X", "value": "1"}, {"name": "PYTHONHASHSEED", "value": "7"}])
                | {"envFrom": [{"configMapRef": {"name": "c"}}]}
            ),
            config_map("c", {"VLLM_Y": "2"}),
        ],
    ),
    "adapters that come and go": (
        {"enableLoRA": True, "env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "True"}]},
        {},
        [pod(serve("--enable-lora", CACHING, env=[{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "True"}]))],
    ),
    "LMCache on a disk of the host": (
        {
            "lmcacheConfig": {"enabled": True, "cpuOffloadingBufferSize": "30", "diskOffloadingBufferSize": "60"},
            "env": [{"name": "LMCACHE_LOCAL_DISK", "value": "file:///kv/blocks/"}],
            "extraVolumes": [{"name": "kv", "hostPath": {"path": "/mnt/ssd"}}],
            "extraVolumeMounts": [{"name": "kv", "mountPath": "/kv"}],
        },
        {},
        [
            pod(
                serve(
                    *(CACHING, "--kv-transfer-config", LMCACHE),
                    env=[*LMCACHE_ENV, {"name": "LMCACHE_LOCAL_DISK", "value": "file:///kv/blocks/"}],
                    volumeMounts=[{"name": "kv", "mountPath": "/kv"}],
                ),
                volumes=[{"name": "kv", "hostPath": {"path": "/mnt/ssd"}}],
            )
        ],
    ),
    "LMCache before vLLM 1": (
        {"lmcacheConfig": {"enabled": True}, "vllmConfig": {"v0": 1}},
        {},
        [
            pod(
                serve(
                    *("--no-enable-prefix-caching", "--kv-transfer-config"),
                    LMCACHE.replace("ConnectorV1", "Connector"),
                    env=[*LMCACHE_ENV, {"name": "VLLM_USE_V1", "value": "0"}],
                )
            )
        ],
    ),
    "a template from the values": (
        {"chatTemplate": "chat.jinja", "chatTemplateConfigMap": TEMPLATE + "\n"},
        {},
        [
            pod(
                serve(
                    *(CACHING, "--chat-template", "/templates/chat.jinja"),
                    volumeMounts=[{"name": "t", "mountPath": "/templates"}],
                ),
                volumes=[{"name": "t", "configMap": {"name": "t"}}],
            ),
            # The chart's block of YAML starts with an empty line, which the template has then, and drops the last one.
            config_map("t", {"chat.jinja": "\n" + TEMPLATE}),
        ],
    ),
    "what only serving and placing needs": (
        {"enableTool": True, "toolCallParser": "hermes", "pdb": {"minAvailable": 1}, "keda": {"enabled": True}},
        {"routerSpec": {"enableRouter": True}, "loraController": {}, "engines": {"strategy": {"type": "Recreate"}}},
        [pod(serve("--enable-auto-tool-choice", "--tool-call-parser", "hermes", CACHING))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_say_what_the_pod_of_the_chart_says(name: str) -> None:
    spec, values, objects = CASES[name]
    assert said(read(stack(model_spec(**spec), **values))) == said(read({"pod.yaml": objects}))


@pytest.mark.parametrize("name", CASES)
def test_without_the_version_of_the_chart_nothing_is_said_that_is_not_so(name: str) -> None:
    spec, values, _ = CASES[name]
    known, guessed = (read(stack(model_spec(**spec), version=version, **values)) for version in ("0.1.12", None))
    assert {path: known.values[path] for path in guessed.values} == guessed.values
    for path in ("engine.attention_backend", "engine.args", "tokenizer.renderer"):
        assert path not in guessed.values
    assert "version of the chart vllm-stack" in reason(guessed, "engine.args")


def test_what_is_written_in_the_values_is_known_without_the_version() -> None:
    spec = model_spec(vllmConfig={"tensorParallelSize": 4, "dtype": "half"}, lmcacheConfig={"enabled": True})
    facts = read(stack(spec, version=None))
    assert (facts.model, facts.values["parallelism.tensor"]) == ("org/m", 4)
    assert facts.values["precision.compute"] == "half"
    assert facts.values["cache.connector"] == "lmcache"


def test_a_revision_that_an_older_chart_leaves_out_pins_nothing() -> None:
    spec = model_spec(modelRevision="a" * 40)
    assert read(stack(spec, version="0.1.11")).values["model.revision"] is None
    assert reason(read(stack(spec, version=None)), "model.revision")
    assert reason(read(stack(spec, version="0.1.7")), "model.revision")
    assert "0.1.7" in reason(read(stack(spec, version="0.1.7")), "engine.args")


def test_a_store_whose_name_holds_the_releases_is_not_known() -> None:
    spec = model_spec(lmcacheConfig={"enabled": True})
    facts = read(stack(spec, cacheserverSpec={"enabled": True, "serde": "cachegen"}))
    assert reason(facts, "cache.location")
    assert facts.values["cache.serde"] == "cachegen"
    assert read(stack(spec, cacheserverSpec={"enabled": False})).values["cache.location"] is None
    # Charts before 0.1.11 have no such switch.
    assert reason(read(stack(spec, version=None, cacheserverSpec={"servicePort": 81})), "cache.location")
    on_a_claim = model_spec(
        pvcStorage="10Gi", lmcacheConfig={"enabled": True}, env=[{"name": "LMCACHE_LOCAL_DISK", "value": "/data/kv"}]
    )
    assert reason(read(stack(on_a_claim)), "cache.location")


def test_a_template_that_is_not_in_the_values_is_only_named() -> None:
    assert read(stack(model_spec(chatTemplate="chat.jinja"))).chat_template == "/templates/chat.jinja"
    assert "Go template" in reason(read(stack(model_spec(chatTemplate=TEMPLATE))), "chat_template")


@pytest.mark.parametrize("place", ["modelSpec", "vllmConfig", "lmcacheConfig", "servingEngineSpec", ""])
def test_a_value_that_nobody_has_read_is_named(place: str) -> None:
    spec = model_spec(lmcacheConfig={"enabled": True})
    files = stack(spec)
    values = files["values.yaml"]
    where = {"modelSpec": spec, "servingEngineSpec": values["servingEngineSpec"], "": values}.get(place) or spec[place]
    where["kvCacheDtype"] = "fp8"
    facts = read(files)
    assert [note for note in facts.notes if "kvCacheDtype" in note and "leaves it out" in note]
    assert facts.values["engine.args"]
    del files["Chart.yaml"]
    assert "kvCacheDtype is no key that kvgate knows" in reason(read(files), "engine.args")


def test_later_values_are_laid_over_earlier_ones() -> None:
    files = stack(model_spec(), cacheserverSpec={"enabled": True}, engines={"configs": {"VLLM_X": "1", "VLLM_Y": "1"}})
    over = {"servingEngineSpec": {"modelSpec": [model_spec(modelURL="org/other")], "configs": {"VLLM_Y": None}}}
    facts = read({**files, "prod.yaml": over})
    assert facts.model == "org/other"
    assert facts.values["engine.args"] == {"enable-prefix-caching": True, "VLLM_X": "1"}


def test_the_heading_of_helm_s_own_output_is_no_value() -> None:
    files = stack(model_spec())
    printed = "USER-SUPPLIED VALUES:\n" + yaml.safe_dump(files["values.yaml"])
    assert read({**files, "values.yaml": printed}) == read(files)


def test_one_of_several_models_is_chosen_by_its_name() -> None:
    files = stack(model_spec(), model_spec(name="draft", modelURL="org/draft"), model_spec(name="off", enabled=False))
    with pytest.raises(InputError, match=r"2 containers.*differ in their model.*modelSpec/support.*modelSpec/draft"):
        read(files)
    assert read(files, only="draft").model == "org/draft"
    with pytest.raises(InputError, match="no server is called 'off'"):
        read(files, only="off")


def test_prefill_and_decode_are_pools() -> None:
    def half(name: str, role: str, nixl: str) -> dict[str, Any]:
        config = {"enabled": True, "enablePD": True, "kvRole": role, "enableNixl": True, "nixlRole": nixl}
        return model_spec(name=name, lmcacheConfig=config)

    facts = read(stack(half("m-prefill", "kv_producer", "sender"), half("m-decode", "kv_consumer", "receiver")))
    sets = {role["name"]: role["set"]["engine.args"] for role in facts.values["roles"]}
    assert sets["m-prefill"]["kv-transfer-config"]["kv_role"] == "kv_producer"
    assert sets["m-decode"]["kv-transfer-config"]["kv_role"] == "kv_consumer"
    assert facts.values["cache.serde"] == "NULL"


def test_credentials_of_the_values_stay_where_they_are() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    spec = model_spec(
        hf_token=secret, env=[{"name": "HF_TOKEN", "value": secret}, {"name": "VLLM_API_KEY", "value": secret}]
    )
    facts = read(stack(spec, engines={"vllmApiKey": secret, "modelSpec": [spec]}))
    assert secret not in repr(facts)


def test_a_ray_cluster_is_not_read_and_named() -> None:
    ray = model_spec(name="big", raySpec={"enabled": True, "headNode": {}})
    with pytest.raises(InputError, match=r"modelSpec\[0\].*Ray cluster"):
        read(stack(ray))
    facts = read(stack(model_spec(), ray))
    assert [note for note in facts.notes if "modelSpec[1] is started as a Ray cluster" in note]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no image": (stack(model_spec(repository=None)), r"modelSpec\[0\].repository: is left out"),
    "no model": (stack(model_spec(modelURL="")), "modelURL: is left out"),
    "a list for a mapping": (stack(model_spec(vllmConfig=[])), "vllmConfig: is no mapping"),
    "a mapping for a list": (stack(model_spec(env={"A": "b"})), "env: is no list"),
    "a mapping for a word": (stack(model_spec(modelURL={"a": 1})), "modelURL: is not a text or a number"),
    "a word that is two things": (
        {"values.yaml": "servingEngineSpec:\n  enableEngine: no\n  modelSpec: []\n"},
        "enableEngine: is read differently",
    ),
    "no models": (stack(), "no container starts a server"),
    "a chart without values": ({"Chart.yaml": chart("vllm-stack", "0.1.12")}, "no values of it were given"),
    "another chart": (
        {"values.yaml": stack(model_spec())["values.yaml"], "Chart.yaml": chart("redis", "1.0.0")},
        "describes the chart redis",
    ),
    "a chart's own template": (
        {"values.yaml": "servingEngineSpec:\n  {{- range .Values.x }}\n  a: b\n"},
        "template language",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_chart_cannot_take_is_refused_naming_its_place(name: str) -> None:
    files, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        read(files)


def test_a_model_that_a_release_pins_by_digest_has_its_image_and_its_version() -> None:
    facts = read(stack(model_spec()))
    assert facts.values["engine.image"] == "sha256:" + IMAGE.rpartition(":")[2]
    assert facts.values["engine.version"] == "0.33.0"


def test_values_may_be_json() -> None:
    files = stack(model_spec())
    assert said(read({**files, "values.yaml": json.dumps(files["values.yaml"])})) == said(read(files))


def test_adapters_that_a_controller_loads_are_not_known() -> None:
    adapters = [{"name": "a", "adapterSource": {"adapterPath": "/x/1"}}]
    assert read(stack(model_spec(enableLoRA=True))).values["adapters"] == []
    assert read(stack(model_spec(), loraAdapters=adapters)).values["adapters"] == []
    assert reason(read(stack(model_spec(enableLoRA=True), loraAdapters=adapters)), "adapters")


def test_what_fetches_adapters_counts_where_it_runs() -> None:
    def beside(image: str, **spec: Any) -> Any:
        facts = read(stack(model_spec(enableLoRA=True, **spec), engines={"sidecar": {"image": image}}))
        return facts.values["engine.args"].get("beside.sidecar")

    assert beside("a") is None
    assert beside("a", pvcStorage="1Gi") != beside("b", pvcStorage="1Gi")
