"""What one deployment's files say against each other: stores of other models, pools of other builds, annotations."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from kvgate.deployments.capture import capture
from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch
from kvgate.deployments.store_names import model_families, refuse_stores_of_others
from kvgate.rules.errors import InputError

from .conftest import MakeCheckpoint
from .test_capture import launched

pytestmark = pytest.mark.usefixtures("quick")


def line(model: str, store: str, *flags: str) -> str:
    """A vLLM that stores its blocks in a folder."""
    tier = {"type": "fs", "root_dir": store}
    extra = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return shlex.join(["vllm", "serve", model, *flags, "--kv-transfer-config", json.dumps(config)])


def services(only: str, **lines: str) -> LaunchFacts:
    """Read one of the services of a compose file."""
    shared = {"image": "vllm/vllm-openai:v0.33.0", "entrypoint": [], "volumes": ["/srv/kv:/mnt/kv"]}
    document = {"services": {name: {**shared, "command": shlex.split(text)} for name, text in lines.items()}}
    (facts,) = read_launch(
        [LaunchFile("compose.yaml", yaml.safe_dump(json.loads(json.dumps(document))).encode(), only=only)]
    )
    return facts


def refuse(facts: LaunchFacts, model_type: str = "custom", **sets: Any) -> None:
    refuse_stores_of_others(facts, {"model_type": model_type}, sets)


LLAMA = line("meta-llama/Llama-3.1-8B-Instruct", "/mnt/kv/llama")


@pytest.mark.parametrize(
    "store",
    [
        "/mnt/kv/Llama-3.1-8B-Instruct",
        "/mnt/kv/llama_3.1_8b_instruct/blocks",
        "/mnt/kv/meta-llama--Llama-3.1-8B-Instruct",
    ],
)
def test_a_store_that_is_named_for_the_model_of_another_service(store: str) -> None:
    facts = services("support", support=line("org/support-7b", store), llama=LLAMA)
    with pytest.raises(InputError, match=r"^compose\.yaml: .*support.*is named for another model: ") as caught:
        refuse(facts)
    assert "compose.yaml: llama" in str(caught.value) or "llama serves" in str(caught.value)
    assert "--set cache.location=/srv/kv/" in str(caught.value)


def test_a_store_that_is_named_as_another_service_is_served() -> None:
    other = line("/models/b", "/mnt/kv/b", "--served-model-name", "billing-bot")
    with pytest.raises(InputError, match=r"billing-bot is what compose\.yaml.* serves"):
        refuse(services("a", a=line("/models/a", "/mnt/kv/billing-bot"), b=other))


@pytest.mark.parametrize(
    ("model", "store", "flags"),
    [
        ("org/support-7b", "/mnt/kv/support-7b", ()),
        ("org/support-7b", "/mnt/kv/shared", ()),
        ("/models/a", "/mnt/kv/support", ("--served-model-name", "support")),
        # It bears the name of both: somebody knows what they do.
        ("org/support-7b", "/mnt/Llama-3.1-8B-Instruct/support-7b", ()),
        ("org/other", "/mnt/kv/llama-3.1-8b-instruct-of-old", ()),  # a name of its own
        ("meta-llama/Llama-3.1-8B-Instruct", "/mnt/kv/Llama-3.1-8B-Instruct", ()),
    ],
)
def test_a_store_whose_name_says_nothing_of_another(model: str, store: str, flags: tuple[str, ...]) -> None:
    refuse(services("own", own=line(model, store, *flags), llama=LLAMA))


@pytest.mark.parametrize("name", ["model", "kv", "default", "llm"])
def test_a_name_that_says_nothing_of_a_model(name: str) -> None:
    other = line("/models/b", "/mnt/kv/b", "--served-model-name", name)
    refuse(services("a", a=line("/models/a", f"/mnt/{name}/blocks"), b=other))


@pytest.mark.parametrize(
    ("store", "model", "model_type", "family"),
    [
        ("/mnt/kv/llama-3-8b", "Qwen/Qwen2.5-7B-Instruct", "qwen2", "llama"),
        ("/mnt/kv/qwen2.5-7b", "meta-llama/Llama-3.1-8B", "llama", "qwen"),
        ("/mnt/kv/prod_Mistral-7B", "/models/support", "gemma3_text", "mistral"),
        ("/mnt/kv/gpt-oss-20b/blocks", "/models/support", "llama", "gpt-oss"),
    ],
)
def test_a_store_that_is_named_for_another_family(store: str, model: str, model_type: str, family: str) -> None:
    (facts,) = launched(line(model, store))
    with pytest.raises(InputError, match=rf"is a {family}, and config\.json says {model_type}"):
        refuse(facts, model_type)


@pytest.mark.parametrize(
    ("store", "model", "model_type"),
    [
        ("/mnt/kv/llama-3-8b", "/models/support", "llama"),
        ("/mnt/kv/llama-stack/blocks", "Qwen/Qwen3-8B", "qwen3"),  # a program, no checkpoint
        ("/mnt/kv/llama", "Qwen/Qwen3-8B", "qwen3"),
        ("/mnt/kv/deepseek-v3-distill", "/models/a", "llama"),
        ("/mnt/kv/llama-3-8b", "/models/a", "internvl_chat"),  # of which family, nobody knows
        ("/mnt/kv/llama-3-8b", "/models/a", "mllama"),
        ("/mnt/kv/llama-3-8b", "org/qwen2-trained-on-llama-3", "qwen2"),
        ("/mnt/kv/qwen2-vs-llama-3", "/models/a", "llama"),
        ("/mnt/kv/codellama7", "/models/a", "qwen2"),
        ("/mnt/kv/llama-3-8b", "/models/a", ""),
    ],
)
def test_a_store_whose_name_may_be_the_models(store: str, model: str, model_type: str) -> None:
    (facts,) = launched(line(model, store))
    refuse(facts, model_type)


def test_the_model_inside_a_model_that_sees() -> None:
    (facts,) = launched(line("/models/a", "/mnt/kv/llama-3-8b"))
    seeing = {"model_type": "llava", "text_config": {"model_type": "qwen2"}}
    with pytest.raises(InputError, match="is a llama"):
        refuse_stores_of_others(facts, seeing, {})


def test_a_prefix_in_a_shared_store_is_a_name_as_well() -> None:
    store = {"kv_connector": "MooncakeStoreConnector", "kv_connector_extra_config": {"cache_prefix": "llama-3-8b"}}
    (facts,) = launched(f"vllm serve Qwen/Qwen3-8B --kv-transfer-config '{json.dumps(store)}'")
    with pytest.raises(InputError, match=r"the store llama-3-8b is named .*--set cache\.namespace=llama-3-8b\)"):
        refuse(facts, "qwen3")


def _example(model: str, store: str) -> str:
    config = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": store}}
    return shlex.join(["vllm", "serve", model, "--kv-transfer-config", json.dumps(config)])


def test_two_models_in_a_store_whose_keys_hold_no_model() -> None:
    """vLLM's example connector names entries by token ids alone."""
    facts = services("a", a=_example("/models/a", "/mnt/kv"), b=_example("/models/b", "/mnt/kv"))
    said = r"two models share the store /srv/kv, and its keys .*: /models/a here, and /models/b in compose\.yaml"
    with pytest.raises(InputError, match=said):
        refuse(facts)
    refuse(facts, **{"cache.location": "/srv/kv"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_example("/models/a", "/mnt/kv/a"), _example("/models/b", "/mnt/kv/b")),
        (_example("/models/a", "/mnt/kv"), _example("/models/a", "/mnt/kv")),  # replicas of one
        (line("/models/a", "/mnt/kv"), line("/models/b", "/mnt/kv")),  # the path is in the folder's name
        (_example("/models/a", "/mnt/kv"), line("/models/b", "/mnt/kv")),  # names of two kinds
        (_example("/models/a", "/mnt/kv"), "vllm serve /models/b"),
    ],
)
def test_two_models_that_do_not_meet(one: str, other: str) -> None:
    refuse(services("a", a=one, b=other))


@pytest.mark.parametrize(("names", "meet"), [(("support", "support"), True), (("support", "billing"), False)])
def test_two_models_of_one_served_name(names: tuple[str, str], meet: bool) -> None:
    """sgl-project/sglang#24758, with both in one file."""
    pods = []
    for name, served in zip("ab", names, strict=True):
        command = ["python3", "-m", "sglang.launch_server", "--model-path", f"/models/{name}"]
        command += ["--served-model-name", served, "--hicache-storage-backend", "file"]
        container = {"name": "engine", "image": "lmsysorg/sglang:v0.5.23", "command": command}
        spec = {
            "containers": [{**container, "volumeMounts": [{"name": "kv", "mountPath": "/tmp/hicache"}]}],
            "volumes": [{"name": "kv", "persistentVolumeClaim": {"claimName": "kv"}}],
        }
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    (facts,) = read_launch([LaunchFile("pods.yaml", yaml.safe_dump_all(pods).encode(), only="a")])
    if meet:
        with pytest.raises(InputError, match="two models share the store volume:kv, and its keys"):
            refuse(facts)
    else:
        refuse(facts)


def test_a_claim_has_a_name(make_checkpoint: MakeCheckpoint) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "support"},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.33.0",
                    "command": shlex.split(line("/models/a", "/kv")),
                    "volumeMounts": [{"name": "kv", "mountPath": "/kv"}],
                }
            ],
            "volumes": [{"name": "kv", "persistentVolumeClaim": {"claimName": "kv-qwen3-8b"}}],
        },
    }
    facts = read_launch([LaunchFile("pod.yaml", yaml.safe_dump(document).encode())])
    said = r"pod\.yaml.*: the store volume:kv-qwen3-8b is named for another model: kv-qwen3-8b is a qwen"
    with pytest.raises(InputError, match=said):
        capture(str(make_checkpoint()), launch=facts)


def test_what_the_operator_says_is_meant(make_checkpoint: MakeCheckpoint) -> None:
    folder, facts = make_checkpoint(), launched(line("/models/a", "/mnt/kv/qwen3-8b"))
    with pytest.raises(InputError, match=r"or say that it is meant: --set cache\.location=/mnt/kv/qwen3-8b"):
        capture(str(folder), launch=facts)
    captured = capture(str(folder), launch=facts, sets={"cache.location": "/mnt/kv/qwen3-8b"})
    assert captured.manifest["cache"]["location"] == "/mnt/kv/qwen3-8b"


def test_every_family_has_its_own_word_or_lists_others() -> None:
    for word, types in model_families().families.items():
        assert any(one.startswith(word.replace("-", "_")) for one in types), word


# ---- the rest of the files ----


def _pods(name: str, image: str, **metadata: Any) -> dict[str, Any]:
    container = {"name": "engine", "image": image, "command": ["vllm", "serve", "org/m", "--dtype", "bfloat16"]}
    template = {"spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **metadata},
        "spec": {"template": template},
    }


def _read(*documents: Any) -> LaunchFacts:
    (facts,) = read_launch([LaunchFile("deploy.yaml", yaml.safe_dump_all(documents).encode())])
    return facts


def test_an_annotation_against_the_live_spec_says_nothing() -> None:
    image = "vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64
    other = _pods("support", "vllm/vllm-openai:v0.11.0@sha256:" + "b" * 64)
    other["spec"]["template"]["spec"]["containers"][0]["command"] = ["vllm", "serve", "org/other", "--dtype", "half"]
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(other), "vllm.ai/dtype": "float16"}
    annotated = _pods("support", image, annotations=applied, labels={"version": "0.11.0"})
    assert _read(annotated) == _read(_pods("support", image))


def test_pools_of_two_builds_name_both() -> None:
    """Whether their blocks are alike nobody knows; whose image is the reason is said."""
    facts = _read(_pods("decode", "registry.example/vllm:a"), _pods("prefill", "registry.example/vllm:b"))
    reason = dict(facts.unknown)["engine.version"]
    assert reason.startswith("decode: the tag 'a' names no release")
    assert "; prefill: the tag 'b' names no release" in reason
    same = _read(_pods("decode", "registry.example/vllm:a"), _pods("prefill", "registry.example/vllm:a"))
    assert dict(same.unknown)["engine.version"].startswith("the tag 'a' names no release")


def test_pools_of_two_releases_are_told_apart_by_name() -> None:
    versions = {"decode": "0.33.0", "prefill": "0.32.0"}
    facts = _read(*(_pods(name, f"vllm/vllm-openai:v{version}") for name, version in versions.items()))
    assert {pool["name"]: pool["set"]["engine.version"] for pool in facts.values["roles"]} == versions


def test_the_files_of_servers_that_are_not_meant_are_no_obstacle() -> None:
    facts = services("a", a=line("/models/a", "/mnt/kv/a"), b="vllm serve m --max-model-len many")
    assert facts.neighbours == ()
