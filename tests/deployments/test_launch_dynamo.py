"""Dynamo's workers and graphs, to the facts in them.

The files are this project's own, of the shapes in ai-dynamo/dynamo: examples/backends/sglang/deploy/disagg.yaml at
04521f4 (``services``), recipes/deepseek-v4-pro-0813/vllm/agg-gb200-agentic/deploy.yaml at 23dc642 (``components`` with
a ConfigMap), and the graphs in the wheel 1.6.1 below dynamo/profiler/templates/dgd.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch
from kvgate.deployments.launch.dynamo import worker_table
from kvgate.deployments.launch.flags import flag_table
from kvgate.rules.errors import InputError
from tests.deployments.unset import UNSET

WORKER = f"nvcr.io/nvidia/ai-dynamo/vllm-runtime@sha256:{'a' * 64}"
FRONT = f"nvcr.io/nvidia/ai-dynamo/vllm-runtime@sha256:{'b' * 64}"
SECRET = "k3y9fFh2LmQ8zT5vXw1B"
DOUBTED = "Dynamo's frontend renders and encodes what requests ask, and how that is started was not given"
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'


def services(**changes: Any) -> dict[str, Any]:
    """A graph of the older form: a frontend, and workers for prefill and decode of one model."""

    def worker(role: str, *more: str) -> dict[str, Any]:
        return {
            "componentType": "worker",
            "subComponentType": role,
            "replicas": 1,
            "resources": {"limits": {"gpu": "1"}},
            "envs": [{"name": "DYN_SYSTEM_PORT", "value": "9090"}, {"name": "HF_TOKEN", "value": SECRET}],
            "extraPodSpec": {
                "mainContainer": {
                    "image": WORKER,
                    "workingDir": "/workspace/examples/backends/vllm",
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": ["--model", "org/m", "--tensor-parallel-size", "2", *more],
                }
            },
        }

    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "g", "annotations": {"note": "python3 -m dynamo.vllm --model org/other"}},
        "spec": {
            "services": {
                "Frontend": {
                    "componentType": "frontend",
                    "replicas": 1,
                    "extraPodSpec": {"mainContainer": {"image": FRONT}},
                },
                "VllmDecode": worker("decode", "--is-decode-worker"),
                "VllmPrefill": worker("prefill", "--is-prefill-worker", "--kv-transfer-config", NIXL),
            }
        },
    }
    return {**graph, **changes}


def components(*arguments: str, engine: str = "trtllm", more: dict[str, Any] | None = None) -> dict[str, Any]:
    """A graph of the newer form: a frontend, and one worker started by a script."""
    script = " ".join(("exec python3 -m", f"dynamo.{engine}", "--model org/m", *arguments))
    container = {
        "name": "main",
        "image": WORKER,
        "workingDir": "/workspace",
        "command": ["/bin/sh", "-c"],
        "args": [script],
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        **(more or {}),
    }
    front = {
        "name": "main",
        "image": FRONT,
        "command": ["/bin/bash", "-lc"],
        "args": ["python3 -m dynamo.frontend \\\n  --http-port 8000 --dyn-chat-processor vllm\n"],
    }
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "g"},
        "spec": {
            "components": [
                {"name": "Frontend", "type": "frontend", "podTemplate": {"spec": {"containers": [front]}}},
                {"name": "Worker", "type": "worker", "podTemplate": {"spec": {"containers": [container]}}},
            ]
        },
    }


def read(*documents: dict[str, Any] | str, more: list[LaunchFile] | None = None) -> LaunchFacts:
    """Read a graph with other objects, or a line."""
    if isinstance(documents[0], str):
        file = LaunchFile("launch.sh", documents[0].encode())
    else:
        file = LaunchFile("graph.yaml", yaml.safe_dump_all(documents).encode())
    (facts,) = read_launch([file, *(more or [])])
    return facts


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


def changed(facts: LaunchFacts) -> dict[str, Any]:
    values, unset = facts.values, {**UNSET, "engine.name": facts.engine}
    return {
        p: values.get(p, ...)
        for p in {*values, *unset}
        if values.get(p, ...) != unset.get(p, ...) and p not in ("tokenizer.options", "weights.mutable")
    }


def test_a_graph_of_services_is_one_deployment_with_pools() -> None:
    facts = read(services())
    assert (facts.model, facts.engine) == ("org/m", "vllm")
    assert facts.values["parallelism.tensor"] == 2
    assert facts.values["engine.image"] == f"sha256:{'a' * 64}"
    assert facts.values["tokenizer.options"] == {"dynamo_frontend": {"image": f"sha256:{'b' * 64}"}}
    shared = {"workdir": "/workspace/examples/backends/vllm"}
    assert facts.values["roles"] == [
        {
            "name": "VllmDecode",
            "set": {"cache.connector": None, "engine.args": {**shared, "disaggregation-mode": "decode"}},
        },
        {
            "name": "VllmPrefill",
            "set": {
                "cache.connector": "vllm-nixl",
                "engine.args": {
                    **shared,
                    "disaggregation-mode": "prefill",
                    "kv-transfer-config": {"kv_role": "kv_producer"},
                },
            },
        },
    ]
    assert [path for path, _ in facts.unknown] == ["engine.version"]
    assert SECRET not in repr(facts)
    assert "org/other" not in repr(facts)


def test_one_pool_can_be_chosen() -> None:
    (facts,) = read_launch([LaunchFile("g.yaml", yaml.safe_dump(services()).encode(), only="VllmPrefill")])
    assert facts.values["cache.connector"] == "vllm-nixl"
    assert reason(facts, "roles") == "the line starts one half of a prefill/decode pair; the other is not in it"


def test_a_graph_of_components_takes_its_settings_from_a_config_map() -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "engine"},
        "data": {"agg.yaml": "tensor_parallel_size: 4\nkv_cache_config: {dtype: fp8, tokens_per_block: 64}\n"},
    }
    graph = components(
        '--extra-engine-args /etc/engine/agg.yaml --publish-kv-events --override-engine-args \'{"dtype": "float16"}\'',
        more={"volumeMounts": [{"name": "engine", "mountPath": "/etc/engine"}]},
    )
    pod = graph["spec"]["components"][1]["podTemplate"]["spec"]
    pod["volumes"] = [{"name": "engine", "configMap": {"name": "engine"}}]
    facts = read(graph, config)
    assert changed(facts) == {
        "engine.image": f"sha256:{'a' * 64}",
        "parallelism.tensor": 4,
        "precision.kv_cache": "fp8_e4m3",
        "precision.compute": "float16",
        "engine.block_size": 64,
        "engine.args": {"HF_HUB_OFFLINE": "1", "workdir": "/workspace"},
    }
    assert facts.values["tokenizer.options"] == {
        "dynamo_frontend": {"image": f"sha256:{'b' * 64}", "dyn-chat-processor": "vllm"}
    }
    alone = read(graph)
    assert "was not given, and it may set this" in reason(alone, "parallelism.tensor")


def test_the_settings_of_a_graph_may_be_handed_in_as_a_file() -> None:
    graph = components("--extra-engine-args examples/agg.yaml")
    facts = read(graph, more=[LaunchFile("agg.yaml", b"tensor_parallel_size: 8\n")])
    assert facts.values["parallelism.tensor"] == 8


LINES: dict[str, dict[str, Any]] = {
    "dynamo.vllm --model org/m --namespace n --endpoint dyn://a.b.c --event-plane zmq --router-temperature 1": {},
    "dynamo.vllm --model org/m --no-router-kv-events --enforce-disagg --output-modalities text image --block-size 64": {
        "engine.block_size": 64
    },
    "dynamo.vllm --model org/m --disaggregation-mode agg": {},
    "dynamo.vllm --model=org/m --disaggregation-mode=prefill": {
        "roles": ...,
        "engine.args": {"disaggregation-mode": "prefill"},
    },
    "dynamo.vllm --model org/m --disaggregation-mode $MODE": {"roles": ...},
    "dynamo.vllm --model org/m --enable-multimodal --gms-shadow-mode": {
        "engine.args": {"enable-multimodal": True, "gms-shadow-mode": True}
    },
    "dynamo.vllm --model org/m --connector none": {},
    "dynamo.vllm --model org/m --connector lmcache": {
        "cache.connector": "lmcache",
        "cache.chunk_size": 256,
        "cache.serde": "naive",
    },
    f"dynamo.vllm --model org/m --connector kvbm --kv-transfer-config '{NIXL}'": {
        "cache.connector": "vllm-nixl",
        "roles": ...,
        "engine.args": {"kv-transfer-config": {"kv_role": "kv_producer"}},
    },
    "dynamo.vllm --model org/m --connector $C": {
        **{f"cache.{name}": ... for name in ("connector", "location", "namespace", "chunk_size", "serde")},
        "engine.args": ...,
    },
    "dynamo.sglang --model-path org/m --tp 2 --page-size 16 --disaggregation-mode pd": {
        "parallelism.tensor": 2,
        "engine.block_size": 16,
    },
    "dynamo.sglang --model-path org/m --disaggregation-mode decode": {
        "roles": ...,
        "engine.args": {"disaggregation-mode": "decode"},
    },
    "dynamo.trtllm --model-path org/m --expert-parallel-size 4 --trtllm.kv_cache_config.tokens_per_block 16": {
        "parallelism.expert": 4,
        "engine.block_size": 16,
    },
    "dynamo.trtllm --model org/m --disaggregation-mode prefill --kv-block-size 32": {
        "roles": ...,
        "engine.args": {"disaggregation-mode": "prefill", "kv-block-size": 32},
    },
    "dynamo.trtllm --model org/m --tensor-parallel-size 2 --override-engine-args '{\"tensor_parallel_size\": 4}'": {
        "parallelism.tensor": 4
    },
}


@pytest.mark.parametrize("line", LINES)
def test_what_a_workers_line_says(line: str) -> None:
    facts = read(f"python3 -m {line}")
    found = changed(facts)
    assert found == LINES[line]
    assert reason(facts, "tokenizer.options") == DOUBTED


def test_a_variable_stands_for_a_flag_and_the_line_wins_over_it() -> None:
    vllm = read("DYN_VLLM_DISAGGREGATION_MODE=prefill DYN_LOG=debug python3 -m dynamo.vllm --model org/m")
    assert vllm.values["engine.args"] == {"disaggregation-mode": "prefill"}
    line = (
        "DYN_TRTLLM_TENSOR_PARALLEL_SIZE=2 DYN_TRTLLM_ENABLE_ATTENTION_DP=true python3 -m dynamo.trtllm --model org/m"
    )
    assert changed(read(line)) == {"parallelism.tensor": 2, "engine.args": {"enable-attention-dp": True}}
    assert read(f"{line} --tensor-parallel-size 4").values["parallelism.tensor"] == 4
    assert not [note for note in read(line).notes if "taken to change nothing" in note]


def test_weights_that_may_be_changed_from_outside_are_not_known() -> None:
    worker = "python3 -m dynamo.vllm --model org/m"
    for line in (f"{worker} --enable-rl", f"DYN_ENABLE_RL=1 {worker}"):
        assert "--enable-rl" in reason(read(line), "weights.mutable")
    assert read("DYN_ENABLE_RL=0 python3 -m dynamo.vllm --model org/m").values["weights.mutable"] is False


@pytest.mark.parametrize(("flag", "engine"), [("--use-vllm-tokenizer", "vllm"), ("--use-sglang-tokenizer", "sglang")])
def test_an_engine_that_renders_by_itself_needs_no_frontend(flag: str, engine: str) -> None:
    name = "--model" if engine == "vllm" else "--model-path"
    facts = read(f"python3 -m dynamo.{engine} {name} org/m --chat-template /x.jinja {flag}")
    assert (facts.values["tokenizer.options"], facts.chat_template) == ({}, "/x.jinja")
    assert "chat_template" not in dict(facts.unknown)


def test_the_template_of_the_frontend_and_the_one_that_only_the_engine_has() -> None:
    line = "python3 -m dynamo.vllm --model org/m"
    assert read(f"{line} --custom-jinja-template /x.jinja").chat_template == "/x.jinja"
    engine = read(f"{line} --chat-template /x.jinja")
    assert "the template is given to the engine alone" in reason(engine, "chat_template")


FRONTENDS: dict[str, tuple[dict[str, Any], str]] = {
    "a tag": ({"image": "x/dynamo:1.6.1"}, "'1.6.1' does not pin its image; a digest would"),
    "a variable of an unknown value": (
        {"env": [{"name": "DYN_TOKENIZER", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "its variable DYN_TOKENIZER is set from outside the file",
    ),
    "variables out of sight": (
        {"envFrom": [{"secretRef": {"name": "s"}}]},
        "the Secret s was not given, and it may set any variable",
    ),
    "a command that is not read": ({"args": ["$RUN"]}, "how it is started is not read"),
    "a flag that is filled in": (
        {"args": ["python3 -m dynamo.frontend --dyn-chat-processor $P"]},
        "its --dyn-chat-processor is set to $P",
    ),
}


@pytest.mark.parametrize("case", FRONTENDS)
def test_a_frontend_that_is_not_known_leaves_rendering_unknown(case: str) -> None:
    change, why = FRONTENDS[case]
    graph = components(engine="vllm")
    graph["spec"]["components"][0]["podTemplate"]["spec"]["containers"][0].update(change)
    said = "Dynamo's frontend renders and encodes what requests ask"
    assert reason(read(graph), "tokenizer.options") == f"{said}, and {why}"


def test_two_frontends_of_two_builds_leave_rendering_unknown() -> None:
    graph = components(engine="vllm")
    other = copy.deepcopy(graph["spec"]["components"][0])
    other["name"] = "Second"
    other["podTemplate"]["spec"]["containers"][0]["image"] = WORKER
    graph["spec"]["components"].append(other)
    assert reason(read(graph), "tokenizer.options") == DOUBTED


def test_a_worker_whose_command_is_not_read_is_never_left_out() -> None:
    graph = services()
    graph["spec"]["services"]["VllmPrefill"]["extraPodSpec"]["mainContainer"]["command"] = ["/run.sh"]
    with pytest.raises(InputError, match="is a worker, and its command is none that kvgate reads") as caught:
        read(graph)
    assert "VllmPrefill" in str(caught.value)


def test_a_field_of_a_component_that_was_not_read_may_set_any_variable() -> None:
    graph = components(engine="vllm")
    graph["spec"]["components"][1]["experimental"] = {"gpuMemoryService": {"enabled": True}}
    assert "experimental was not read, and it may set any variable" in reason(read(graph), "engine.args")


def test_variables_of_graph_component_and_container() -> None:
    graph = services()
    graph["spec"]["envs"] = [{"name": "VLLM_A", "value": "graph"}, {"name": "VLLM_B", "value": "1"}]
    for name in ("VllmDecode", "VllmPrefill"):
        service = graph["spec"]["services"][name]
        service["envs"] = [{"name": "VLLM_A", "value": "1"}, {"name": "VLLM_C", "value": "1"}]
        service["extraPodSpec"]["mainContainer"]["env"] = [{"name": "VLLM_C", "value": "2"}]
    (facts,) = read_launch([LaunchFile("g.yaml", yaml.safe_dump(graph).encode(), only="VllmDecode")])
    # Which of component and container wins was not read; a component wins over its graph.
    assert reason(facts, "engine.args") == "the environment variable VLLM_C is set from outside the line"
    graph["spec"]["services"]["VllmDecode"]["extraPodSpec"]["mainContainer"]["env"] = []
    (facts,) = read_launch([LaunchFile("g.yaml", yaml.safe_dump(graph).encode(), only="VllmDecode")])
    found = facts.values["engine.args"]
    assert {name: found[name] for name in ("VLLM_A", "VLLM_B", "VLLM_C")} == dict.fromkeys(
        ("VLLM_A", "VLLM_B", "VLLM_C"), "1"
    )


def test_a_claim_of_the_graph_is_where_the_store_is() -> None:
    graph = services()
    graph["spec"]["pvcs"] = [{"name": "kv", "create": True}]
    for name in ("VllmDecode", "VllmPrefill"):
        service = graph["spec"]["services"][name]
        service["volumeMounts"] = [{"name": "kv", "mountPoint": "/kv"}, {"name": "kv", "useAsCompilationCache": True}]
        service["envs"] = [
            {"name": "DYN_KVBM_DISK_CACHE_GB", "value": "8"},
            {"name": "DYN_KVBM_DISK_CACHE_DIR", "value": "/kv/blocks"},
        ]
        container = service["extraPodSpec"]["mainContainer"]
        container["args"] = ["--model", "org/m", "--connector", "kvbm"]
    facts = read(graph)
    assert (facts.values["cache.connector"], facts.values["cache.location"]) == ("dynamo-kvbm", "volume:kv/blocks")


def test_a_folder_inside_the_image_is_no_other_code_unless_something_is_mounted_there() -> None:
    graph = components(engine="vllm")
    assert read(graph).values["engine.args"]["workdir"] == "/workspace"
    pod = graph["spec"]["components"][1]["podTemplate"]["spec"]
    pod["volumes"] = [{"name": "w", "persistentVolumeClaim": {"claimName": "w"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "w", "mountPath": "/workspace/models"}]
    assert "`python -m` takes code from the folder" in reason(read(graph), "engine.image")


@pytest.mark.parametrize(
    "spec",
    [
        [],
        {"services": []},
        {"services": {"a": []}},
        {"components": [1]},
        {"components": [{"name": "a", "type": "worker", "podTemplate": {"spec": {"containers": [1]}}}]},
        {"services": {"a": {"componentType": "worker", "envs": [1]}}},
        {},
    ],
)
def test_a_broken_graph_is_one_clear_error(spec: Any) -> None:
    with pytest.raises(InputError) as caught:
        read(services(spec=spec))
    assert "\n" not in str(caught.value)
    assert "graph.yaml" in str(caught.value)


def test_every_flag_of_dynamos_is_kept_from_the_engine() -> None:
    table = worker_table()
    assert not set(table.router) & set(table.flags)
    for engine, names in (("vllm", flag_table("vllm").flags), ("sglang", flag_table("sglang").flags)):
        own = {name for name, flag in table.flags.items() if flag.belongs_to(engine)}
        # An engine's own flag of the name is Dynamo's when Dynamo starts it.
        assert own & set(names) <= {"enable-multimodal", "exclude-tools-when-tool-choice-none", "headless"}
