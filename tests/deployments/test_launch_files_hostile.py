"""Deployment files with anything anywhere in them: an error or facts, never a crash, and no secret in either."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.deployments.launch import LaunchFile, read_launch
from kvgate.rules.errors import InputError
from tests.deployments.spoiling import places_in

SECRET = "k3y9fFh2LmQ8zT5vXw1B"
OFFLOAD = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}],
    },
}
OBJECTS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "n"},
        "data": {"run.sh": 'exec vllm serve "$@"', "SIZE": "2"},
    },
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"VLLM_X": SECRET},
        "data": {"HF_TOKEN": SECRET},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "d", "namespace": "n"},
        "spec": {
            "volumeClaimTemplates": [{"metadata": {"name": "kv"}}],
            "template": {
                "spec": {
                    "volumes": [
                        {"name": "c", "configMap": {"name": "c", "items": [{"key": "run.sh", "path": "r.sh"}]}}
                    ],
                    "containers": [
                        {
                            "name": "engine",
                            "image": "vllm/vllm-openai:v0.33.0",
                            "command": ["bash", "/c/r.sh"],
                            "args": ["org/m", "-tp", "$(SIZE)", "--kv-transfer-config", json.dumps(OFFLOAD)],
                            "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
                            "env": [
                                {"name": "API_TOKEN", "value": SECRET},
                                {"name": "VLLM_Y", "valueFrom": {"secretKeyRef": {"name": "s", "key": "VLLM_X"}}},
                            ],
                            "volumeMounts": [
                                {"name": "c", "mountPath": "/c"},
                                {"name": "kv", "mountPath": "/kv", "subPath": "x"},
                            ],
                        }
                    ],
                }
            },
        },
    },
]
COMPOSE: dict[str, Any] = {
    "name": "p",
    "services": {
        "engine": {
            "image": "lmsysorg/sglang:v0.5.23",
            "entrypoint": ["python3", "-m", "sglang.launch_server"],
            "command": "--model-path org/m --hicache-storage-backend file --api-key ${KEY}",
            "environment": {"HF_TOKEN": SECRET, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/kv"},
            "volumes": ["kv:/kv", {"type": "bind", "source": "/x", "target": "/y"}],
        }
    },
    "volumes": {"kv": {"name": "v"}},
}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 1 << 70),
    st.sampled_from(
        ["", "..", "/", "\u0000", "$(A)", "${A", "{{ .x }}", "a" * 5000, "'", "$(", "-", "--model", "{", "[{"]
    ),
    st.text(max_size=8),
    st.lists(st.sampled_from(["x", None, {}, []]), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "data", "x"]), st.sampled_from(["x", None, [], {}]), max_size=3),
)


def _spoiled(draw: st.DrawFn, whole: Any) -> Any:
    whole = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(places_in(whole)))
        target = whole
        for key in parents:
            target = target[key]
        if draw(st.booleans()):
            del target[last]
        else:
            target[last] = draw(ANYTHING)
        if not places_in(whole):
            break
    return whole


@st.composite
def files(draw: st.DrawFn) -> LaunchFile:
    """A file of a deployment in which one to three places are missing or are something else."""
    if draw(st.booleans()):
        objects = _spoiled(draw, OBJECTS)
        return LaunchFile("deploy.yaml", yaml.safe_dump_all(objects).encode())
    return LaunchFile("compose.yaml", yaml.safe_dump(_spoiled(draw, COMPOSE)).encode())


@settings(deadline=None, max_examples=250)
@given(file=files())
def test_any_file_is_read_or_refused_in_one_line(file: LaunchFile) -> None:
    try:
        told = repr(read_launch([file]))
    except InputError as error:
        told = f"{error} {error.hint}"
        assert "\n" not in told
        assert len(told) < 2000
    assert SECRET not in told


def test_the_files_are_read_where_nothing_is_spoiled() -> None:
    (facts,) = read_launch([LaunchFile("deploy.yaml", yaml.safe_dump_all(OBJECTS).encode())])
    assert facts.values["parallelism.tensor"] == 2
    assert facts.values["cache.location"] == "volume:n/kv-d/x"
    (facts,) = read_launch([LaunchFile("compose.yaml", yaml.safe_dump(COMPOSE).encode())])
    assert facts.values["cache.location"] == "volume:v"


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{command: [vllm, serve, '" + "x" * 900_000 + "']}]}",
        "services: {a: {image: vllm/vllm-openai, command: '" + "$A " * 300_000 + "'}}",
        "apiVersion: v1\nkind: List\nitems:\n" + "- {kind: Pod, spec: {containers: [{args: []}]}}\n" * 20_000,
    ],
)
def test_a_large_file_is_read_or_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch([LaunchFile("large.yaml", text.encode())])
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("piece", ["$()", "$a", "`a`", "${a}", " $(rm x)"])
def test_a_word_full_of_what_a_shell_fills_in_is_refused_before_it_costs_anything(piece: str) -> None:
    text = f"vllm serve org/m --served-model-name {piece * (100_000 // len(piece))}"
    started = time.process_time()
    with pytest.raises(InputError, match="more than 2,000 places to be filled in"):
        read_launch([LaunchFile("serve.sh", text.encode())])
    assert time.process_time() - started < 2  # seconds for every one of them before


@pytest.mark.parametrize(
    "kind",
    [
        "services: {{a: {{image: vllm/vllm-openai, command: '{}'}}}}",
        "apiVersion: v1\nkind: Pod\nspec: {{containers: [{{image: vllm/vllm-openai, args: ['{}']}}]}}",
    ],
)
def test_the_same_in_a_file_that_names_words(kind: str) -> None:
    words = " ".join(f"${{A{number}}}" for number in range(9_000))
    with pytest.raises(InputError, match="more than 2,000 places to be filled in"):
        read_launch([LaunchFile("file.yaml", kind.format(words).encode())])


def test_braces_that_are_never_closed_are_looked_for_once() -> None:
    started = time.process_time()
    read_launch([LaunchFile("serve.sh", f"vllm serve org/m --served-model-name {'${' * 60_000}".encode())])
    assert time.process_time() - started < 3  # a look to the end for every one of them takes more
