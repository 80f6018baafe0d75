"""LMCache's multi-process server, beside the engine that is connected to it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch
from kvgate.rules.errors import InputError

CONNECTOR = json.dumps({"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"})
ENGINE = f"vllm serve org/m --kv-transfer-config '{CONNECTOR}'"
FOLDER = {"type": "fs", "base_path": "/kv", "use_odirect": True, "max_capacity_gb": 10}
REDIS = {"type": "resp", "host": "h", "port": 6379, "num_workers": 4}


def adapter(**settings: Any) -> str:
    return f"--l2-adapter {shlex.quote(json.dumps(settings))}"


def read(server: str, engine: str = ENGINE) -> LaunchFacts:
    (facts,) = read_launch([LaunchFile("store.sh", server.encode()), LaunchFile("serve.sh", engine.encode())])
    return facts


def cache(facts: LaunchFacts) -> dict[str, Any]:
    return {path.removeprefix("cache."): value for path, value in facts.values.items() if path.startswith("cache.")}


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


def test_the_engine_alone_does_not_say_where_its_blocks_are() -> None:
    (facts,) = read_launch([LaunchFile("serve.sh", ENGINE.encode())])
    assert {"cache.location", "cache.chunk_size", "cache.serde"} <= dict(facts.unknown).keys()


SERVERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "memory alone": ("--l1-size-gb 60 --port 5555", {"location": None, "chunk_size": 256, "serde": None}, {}),
    "a folder": (
        f"--chunk-size 128 {adapter(**FOLDER)}",
        {"location": "/kv", "chunk_size": 128, "serde": None},
        {},
    ),
    "Redis": (adapter(**REDIS), {"location": "redis://h:6379", "chunk_size": 256, "serde": None}, {}),
    "both": (
        f"{adapter(**FOLDER)} {adapter(**REDIS)}",
        {"location": "[/kv + redis://h:6379]", "chunk_size": 256, "serde": None},
        {},
    ),
    "another form": (
        adapter(**FOLDER, serde={"type": "fp8"}),
        {"location": "/kv", "chunk_size": 256, "serde": "fp8"},
        {},
    ),
    "what counts besides": (
        f"--hash-algorithm blake3 --enable-segmented-prefix {adapter(**FOLDER, relative_tmp_dir='t')} --later 1",
        {"location": "/kv", "chunk_size": 256, "serde": None},
        {
            "lmcache-server": {
                "hash-algorithm": "blake3",
                "enable-segmented-prefix": True,
                "l2-adapter": [{"relative_tmp_dir": "t"}],
                "later": "1",
            }
        },
    ),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("start", ["lmcache server", "python3 -m lmcache.v1.multiprocess.server"])
def test_the_server_says_what_the_engine_does_not(name: str, start: str) -> None:
    flags, expected, args = SERVERS[name]
    facts = read(f"{start} {flags}")
    assert cache(facts) == {"connector": "lmcache-mp", "namespace": None, **expected}
    assert facts.values["engine.args"] == args


def test_one_script_may_start_both() -> None:
    (facts,) = read_launch([LaunchFile("up.sh", f"lmcache server {adapter(**FOLDER)} &\n{ENGINE}\n".encode())])
    assert facts.values["cache.location"] == "/kv"


OPEN = {
    adapter(type="s3", bucket="b"): "cache.location",
    adapter(**FOLDER, serde={"type": "fp8", "fp8_dtype": "e4m3"}): "cache.serde",
    f"{adapter(**FOLDER)} {adapter(**REDIS, serde={'type': 'fp8'})}": "cache.serde",
    '--l2-adapter "$ADAPTER"': "cache.location",
    "--chunk-size $SIZE": "cache.chunk_size",
    '"$@"': "cache.location",
    "--engine-type $TYPE": "engine.args",
}


@pytest.mark.parametrize("flags", OPEN)
def test_what_the_server_does_not_tell_is_not_known(flags: str) -> None:
    assert "server" in reason(read(f"lmcache server {flags}"), OPEN[flags])


def filled_in(**settings: Any) -> str:
    """Return an adapter in double quotes, as where a shell is to fill something in."""
    return '--l2-adapter "{}"'.format(json.dumps(settings).replace('"', '\\"'))


def test_a_password_that_is_filled_in_hides_nothing_but_itself() -> None:
    settings = {**REDIS, "serde": {"type": "fp8"}}
    plain = read(f"lmcache server {adapter(**settings)}")
    facts = read(f"lmcache server {filled_in(**settings, password='${REDIS_PASSWORD}')}")
    assert (facts.values, facts.unknown) == (plain.values, plain.unknown)
    assert facts.values["cache.location"] == "redis://h:6379"


def test_a_host_that_is_filled_in_leaves_the_place_unknown_and_no_more() -> None:
    settings = {**REDIS, "host": "$REDIS_HOST", "serde": {"type": "fp8"}}
    facts = read(f"lmcache server {adapter(**FOLDER, serde={'type': 'fp8'})} {filled_in(**settings)}")
    assert "$REDIS_HOST" in reason(facts, "cache.location")
    assert cache(facts) == {"connector": "lmcache-mp", "namespace": None, "chunk_size": 256, "serde": "fp8"}
    assert facts.values["engine.args"] == {}


@pytest.mark.parametrize(
    "settings",
    [
        {**REDIS, "type": "$TYPE"},
        {**REDIS, "key_prefix": "$PREFIX"},
        {**REDIS, "host": "$(hostname)"},
    ],
)
def test_more_than_a_host_that_is_filled_in_leaves_all_of_the_place_unknown(settings: dict[str, Any]) -> None:
    facts = read(f"lmcache server {filled_in(**settings)}")
    assert {"cache.location", "cache.serde"} <= dict(facts.unknown).keys()
    assert not {"cache.location", "cache.serde"} & facts.values.keys()


def beside_the_engine(store: dict[str, Any]) -> LaunchFacts:
    """Read a pod in which LMCache's server runs beside the engine."""
    server = {
        "name": "store",
        "image": "lmcache/standalone:v0.5.6",
        "command": ["lmcache", "server", "--l2-adapter", json.dumps(store)],
        "volumeMounts": [{"name": "kv", "mountPath": "/kv"}],
    }
    engine = {"name": "engine", "image": "vllm/vllm-openai:v0.33.0", "command": shlex.split(ENGINE)}
    spec = {"containers": [server, engine], "volumes": [{"name": "kv", "hostPath": {"path": "/mnt/kv"}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (facts,) = read_launch([LaunchFile("pod.yaml", yaml.safe_dump(json.loads(json.dumps(pod))).encode())])
    return facts


@pytest.mark.parametrize(("host", "known"), [("$(NODE_IP)", True), ("{{ .Values.host }}", False)])
def test_a_host_in_a_pod_that_is_filled_in(host: str, known: bool) -> None:
    facts = beside_the_engine({**REDIS, "host": host, "serde": {"type": "fp8"}})
    reason(facts, "cache.location")
    assert (facts.values.get("cache.serde") == "fp8") is known  # a template may make anything of its text


def test_a_sidecar_keeps_blocks_where_its_volume_is() -> None:
    facts = beside_the_engine(FOLDER)
    assert facts.values["cache.location"] == "/mnt/kv"
    assert "container engine" in facts.source


def test_an_engine_of_another_connector_is_left_alone() -> None:
    engine = "vllm serve org/m"
    (alone,) = read_launch([LaunchFile("serve.sh", engine.encode())])
    assert read(f"lmcache server {adapter(**FOLDER)}", engine) == alone


def test_of_two_stores_nobody_knows_which_one_serves() -> None:
    texts = [f"lmcache server {adapter(**FOLDER)}", f"lmcache server {adapter(**REDIS)}", ENGINE]
    (facts,) = read_launch([LaunchFile(f"{at}.sh", text.encode()) for at, text in enumerate(texts)])
    assert reason(facts, "cache.location") == (
        "0.sh and 1.sh start stores that differ, and which one serves is not said"
    )


def test_a_store_without_an_engine_is_no_deployment() -> None:
    with pytest.raises(InputError, match="no engine"):
        read_launch([LaunchFile("store.sh", b"lmcache server")])


def test_no_credential_of_an_adapter_gets_out() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    facts = read(f"lmcache server {adapter(**REDIS, username='u', password=secret)}")
    assert secret not in repr(facts)
    assert facts.values["cache.location"] == "redis://h:6379"


@pytest.mark.parametrize("flags", ["--l2-adapter '[1]'", "--l2-adapter '{'", "--l2-adapter", "--chunk-size x"])
def test_what_the_server_would_refuse_is_refused(flags: str) -> None:
    with pytest.raises(InputError, match=r"store\.sh"):
        read(f"lmcache server {flags}")
