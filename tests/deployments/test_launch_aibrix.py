"""AIBrix's variables: which store holds what outlives the worker, and what keeps it apart there."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvgate.deployments.launch import LaunchFacts, parse_vllm
from kvgate.deployments.launch.aibrix import PATHS
from kvgate.deployments.launch.environment import environment_table

MODULE = "aibrix_kvcache.integration.vllm.kv_connector.aibrix_offloading_connector_type1"
OWN = {"kv_connector": "AIBrixOffloadingConnector", "kv_connector_module_path": MODULE, "kv_role": "kv_both"}
META = "META_SERVICE_BACKEND=redis META_SERVICE_URL=redis://u:hunter2@meta:6379/ META_SERVICE_CLUSTER_META_KEY=nodes"


def read(variables: str, *, prefix: str = "", **config: Any) -> LaunchFacts:
    given = " ".join(f"AIBRIX_KV_CACHE_OL_{one}" for one in variables.split())
    line = f"vllm serve org/m --kv-transfer-config {shlex.quote(json.dumps({**OWN, **config}))}"
    return parse_vllm(f"{prefix}{given} {line}", source="serve.sh")


def cache(facts: LaunchFacts) -> dict[str, Any]:
    return {path.removeprefix("cache."): value for path, value in facts.values.items() if path.startswith("cache.")}


def test_what_the_variables_say_of_the_store() -> None:
    facts = read("L2_CACHE_BACKEND=shfs SHFS_ROOT=/kv/ L2_CACHE_NAMESPACE=Prod-A BLOCK_SIZE=64 L1_CACHE_CAPACITY_GB=80")
    expected = {"connector": "aibrix", "location": "/kv", "namespace": "prod-a", "chunk_size": 64, "serde": None}
    assert cache(facts) == expected
    assert facts.values["engine.args"] == {"kv-transfer-config": {"kv_connector_module_path": MODULE}}
    bare = cache(read("L2_CACHE_BACKEND=SHFS SHFS_ROOT=/kv BLOCK_SIZE=-1"))
    assert (bare["namespace"], bare["chunk_size"]) == (None, None)


def test_what_enters_the_key_in_another_way_counts() -> None:
    facts = read("L2_CACHE_BACKEND=SHFS SHFS_ROOT=/kv L2_CACHE_KEY_BUILDER=SIMPLE_HASH TOKEN_VALIDATION_ENABLED=1")
    assert set(facts.values["engine.args"]) == {
        "kv-transfer-config",
        "AIBRIX_KV_CACHE_OL_L2_CACHE_KEY_BUILDER",
        "AIBRIX_KV_CACHE_OL_TOKEN_VALIDATION_ENABLED",
    }


SERVERS = {
    "L2_CACHE_BACKEND=INFINISTORE": "infinistore://127.0.0.1:12345",
    "L2_CACHE_BACKEND=HPKV HPKV_REMOTE_ADDR=kv-1": "hpkv://kv-1:12346",
    "L2_CACHE_BACKEND=pris PRIS_REMOTE_ADDR=kv-1 PRISKV_REMOTE_PORT=7": "priskv://kv-1:7",
    f"L2_CACHE_BACKEND=INFINISTORE {META}": "infinistore://meta:6379/nodes",
    "L1_CACHE_ENABLED=1": None,
}


@pytest.mark.parametrize("variables", SERVERS)
def test_where_a_server_or_a_cluster_is(variables: str) -> None:
    facts = read(variables)
    assert cache(facts)["location"] == SERVERS[variables]
    assert "hunter2" not in repr(facts)


UNKNOWN = {
    "L2_CACHE_BACKEND=SHFS": "home folder",
    "L2_CACHE_BACKEND=SHFS SHFS_ROOT='~/kv'": "home folder",
    "L2_CACHE_BACKEND=EIC": "EIC",
    "L2_CACHE_BACKEND=ROCKSDB ROCKSDB_ROOT=/kv": "ROCKSDB",
    "L2_CACHE_BACKEND=HPKV META_SERVICE_BACKEND=redis": "META_SERVICE_URL",
    "L2_CACHE_BACKEND=$WHICH": "$WHICH",
    "L2_CACHE_BACKEND=SHFS SHFS_ROOT=$ROOT": "$ROOT",
}


@pytest.mark.parametrize("variables", UNKNOWN)
def test_where_blocks_are_stays_unknown_with_the_reason(variables: str) -> None:
    facts = read(variables)
    assert "cache.location" not in facts.values
    assert UNKNOWN[variables] in dict(facts.unknown)["cache.location"]


@pytest.mark.parametrize("value", ["$TENANT", "''"])
def test_a_namespace_that_is_not_known_is_no_default(value: str) -> None:
    facts = read(f"L2_CACHE_BACKEND=HPKV L2_CACHE_NAMESPACE={value}")
    assert "cache.namespace" not in facts.values
    assert "L2_CACHE_NAMESPACE" in dict(facts.unknown)["cache.namespace"]


def test_variables_from_outside_may_say_all_of_it() -> None:
    run = "docker run -e AIBRIX_KV_CACHE_OL_L2_CACHE_NAMESPACE vllm/vllm-openai:v0.33.0 org/m --kv-transfer-config "
    facts = parse_vllm(run + shlex.quote(json.dumps(OWN)), source="serve.sh")
    assert "cache.namespace" not in facts.values
    opened = parse_vllm(
        run.replace("-e AIBRIX_KV_CACHE_OL_L2_CACHE_NAMESPACE", "--env-file env") + shlex.quote(json.dumps(OWN)),
        source="serve.sh",
    )
    assert not {"cache.namespace", "cache.location", "cache.chunk_size"} & set(opened.values)


def test_a_folder_of_the_container_is_what_is_mounted_there() -> None:
    variables = "-e AIBRIX_KV_CACHE_OL_L2_CACHE_BACKEND=SHFS -e AIBRIX_KV_CACHE_OL_SHFS_ROOT=/kv/a"
    line = f"docker run -v /mnt/store:/kv {variables} vllm/vllm-openai:v0.33.0 org/m --kv-transfer-config "
    assert cache(parse_vllm(line + shlex.quote(json.dumps(OWN)), source="serve.sh"))["location"] == "/mnt/store/a"


@pytest.mark.parametrize("name", ["AIBrixOffloadingConnectorV1Type3", "AIBrixPDReuseConnector"])
def test_a_class_that_no_profile_describes_is_kept_by_its_name(name: str) -> None:
    assert cache(read("L2_CACHE_BACKEND=HPKV", kv_connector=name))["connector"] == name


def test_every_variable_that_is_read_stands_in_the_table() -> None:
    assert set(PATHS) <= set(environment_table("vllm").read)
