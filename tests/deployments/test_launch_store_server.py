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


def test_a_sidecar_keeps_blocks_where_its_volume_is() -> None:
    mount = {"name": "kv", "mountPath": "/kv"}
    server = {
        "name": "store",
        "image": "lmcache/standalone:v0.5.6",
        "command": ["lmcache", "server", "--l2-adapter", json.dumps(FOLDER)],
        "volumeMounts": [mount],
    }
    engine = {"name": "engine", "image": "vllm/vllm-openai:v0.33.0", "command": shlex.split(ENGINE)}
    spec = {"containers": [server, engine], "volumes": [{"name": "kv", "hostPath": {"path": "/mnt/kv"}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (facts,) = read_launch([LaunchFile("pod.yaml", yaml.safe_dump(json.loads(json.dumps(pod))).encode())])
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
