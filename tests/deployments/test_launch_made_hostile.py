"""Values and services with anything anywhere in them: an error or facts, never a crash, and no secret in either."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.deployments.launch import LaunchFile, read_launch
from kvgate.rules.errors import InputError
from tests.deployments.made import (
    model_spec,
    modelservice,
    predictor,
    read,
    runtime,
    service,
    service_config,
    stack,
    workload,
)
from tests.deployments.spoiling import places_in

SECRET = "k3y9fFh2LmQ8zT5vXw1B"
KEPT = [{"name": "HF_TOKEN", "value": SECRET}, {"name": "VLLM_U", "value": f"redis://u:{SECRET}@h/0"}]
CLAIM = {"secondary": [{"fileSystem": {"pvc": {"ref": {"name": "kv", "path": "a"}}}}], "cpu": "1Gi"}
ADAPTER = {"name": "a", "uri": f"s3://u:{SECRET}@bucket/a"}
WHOLE: dict[str, list[Any]] = {
    "stack": [
        stack(
            model_spec(
                hf_token=SECRET,
                env=KEPT,
                chatTemplate="t",
                chatTemplateConfigMap="{{ messages }}",
                lmcacheConfig={"enabled": True, "cpuOffloadingBufferSize": 3, "controllerPort": 1},
                extraVolumes=[{"name": "d", "hostPath": {"path": "/d"}}],
                extraVolumeMounts=[{"name": "d", "mountPath": "/kv"}],
                pvcStorage="1Gi",
            ),
            version=None,
            cacheserverSpec={"enabled": True, "servicePort": 81},
            engines={"vllmApiKey": SECRET, "configs": {"VLLM_X": "1", "AWS_SECRET_ACCESS_KEY": SECRET}},
        )["values.yaml"]
    ],
    "modelservice": [
        modelservice(
            workload("--api-key", SECRET, container={"env": KEPT, "mountModelVolume": True}, parallelism={"tensor": 2}),
            workload(container={"modelCommand": "custom", "command": ["bash", "-c"]}, volumes=[{"name": "x"}]),
            version=None,
            artifacts={"uri": "pvc://claim/m"},
        )["values.yaml"]
    ],
    "service": [
        service(
            {"env": [*KEPT, {"name": "VLLM_ADDITIONAL_ARGS", "value": f"--api-key {SECRET} --block-size 32"}]},
            model={"uri": f"s3://u:{SECRET}@bucket/m", "lora": {"adapters": [ADAPTER], "maxRank": 8}},
            parallelism={"tensor": 2, "data": 2},
            worker={"containers": [{"name": "main"}]},
            kvCacheOffloading=CLAIM,
            prefill={"template": {"containers": [{"name": "main", "args": ["--dtype", "half"]}]}},
            baseRefs=[{"name": "base"}],
        ),
        service_config("base", template={"containers": [{"name": "main", "env": KEPT}], "volumes": [{"name": "v"}]}),
    ],
    "predictor": [
        predictor(args=["--dtype=half"], env=KEPT, runtime="engine-runtime", storageUri=f"s3://u:{SECRET}@b/m"),
        runtime({"args": ["--model=/mnt/models", "--served-model-name={{.Name}}"], "env": KEPT}),
    ],
}
DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP]
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 1 << 70),
    st.floats(),
    st.sampled_from(
        ["", "..", "/", "\u0000", "$(A)", "${A", "{{ .x }}", "{{ x", "a" * 5000, "'", "$(rm -r /)", "`id`", "--", "{"]
    ),
    st.sampled_from(["\u202e", "\ufdd0", "../../etc/passwd", "--config=/etc/passwd", "-", "hf://", "://", "pvc://a"]),
    st.text(max_size=8),
    st.sampled_from([DEEP, [{"name": "main"}, {"name": "main"}], {"$patch": "delete"}, {"a": {"b": [{}]}}]),
    st.lists(st.sampled_from(["x", None, {}, []]), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "data", "x"]), st.sampled_from(["x", None, [], {}]), max_size=3),
)


@st.composite
def spoiled(draw: st.DrawFn) -> list[Any]:
    """The documents of one deployment in which one to three places are missing or are something else."""
    whole = copy.deepcopy(WHOLE[draw(st.sampled_from(sorted(WHOLE)))])
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in places_in(whole) if len(place) > 1]
        if not places:
            break
        *parents, last = draw(st.sampled_from(places))
        target: Any = whole
        for key in parents:
            target = target[key]
        if draw(st.booleans()):
            del target[last]
        else:
            target[last] = copy.deepcopy(draw(ANYTHING))  # what is sampled is spoiled further
    return whole


@settings(deadline=None, max_examples=250)
@given(documents=spoiled())
def test_any_values_and_services_are_read_or_refused_in_one_line(documents: list[Any]) -> None:
    text = yaml.safe_dump_all(json.loads(json.dumps(documents)))
    try:
        told = repr(read_launch([LaunchFile("given.yaml", text.encode("utf-8", "surrogatepass"))]))
    except InputError as error:
        told = f"{error} {error.hint}"
        assert "\n" not in told
        assert len(told) < 2000
    assert SECRET not in told


@pytest.mark.parametrize("name", WHOLE)
def test_the_files_are_read_where_nothing_is_spoiled(name: str) -> None:
    facts = read({"given.yaml": WHOLE[name]})
    assert facts.engine == "vllm"
    assert SECRET not in repr(facts)


BOMB = "\n".join(f"x{at}: &x{at} [{', '.join([f'*x{at - 1}'] * 9) if at else 'x'}]" for at in range(9))


ONE = "    repository: r\n    tag: t\n    modelURL: m\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Each variable holds the one before it twice: the 25th would have 10^7 characters.
        (
            f"  - name: a\n{ONE}    env:\n"
            + "".join(f"    - {{name: A{at}, value: $(A{at - 1})$(A{at - 1})x}}\n" for at in range(25)),
            "more than the 131,072",
        ),
        (
            f"  - name: a\n{ONE}    env: [{{name: A, value: {'x' * 9000}}}, {{name: B, value: {'$(A)' * 9000}}}]\n",
            "more than the 131,072",
        ),
        (
            f"  - name: a\n{ONE}    env:\n    - {{name: A, value: '{' '.join(f'$A{at}' for at in range(9000))}'}}\n",
            "more than 2,000 places",
        ),
        ("".join(f"  - name: a{at}\n{ONE}" for at in range(501)), "more than 500 start a server"),
    ],
)
def test_what_grows_when_it_is_put_together_is_bounded(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read({"values.yaml": f"servingEngineSpec:\n  modelSpec:\n{text}"})


@pytest.mark.parametrize(
    "text",
    [
        f"servingEngineSpec:\n  modelSpec: []\n{BOMB}\n",
        f"modelArtifacts: {{name: m}}\n{BOMB}\n",
        "servingEngineSpec: {modelSpec: [{name: a, repository: r, tag: t, modelURL: '" + "x" * 900_000 + "'}]}",
        "servingEngineSpec: " + "{a: " * 5_000 + "1" + "}" * 5_000,
        "servingEngineSpec:\n  modelSpec: []\nservingEngineSpec:\n  modelSpec: []\n",
        "servingEngineSpec: {}\n---\nservingEngineSpec: {}\n",
        "servingEngineSpec: []\n",
        "decode: {create: true, containers: [" + "{}, " * 20_000 + "]}\nmodelArtifacts: {}\n",
    ],
)
def test_hostile_values_are_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read({"values.yaml": text})
    assert len(str(caught.value)) < 2000
