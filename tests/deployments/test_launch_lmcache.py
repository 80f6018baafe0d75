"""LMCache's settings: its file, its environment, and the engine's line over them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvgate.deployments.launch import LaunchFacts, LaunchFile, read_launch
from kvgate.rules.errors import InputError


def served(environment: str = "LMCACHE_CONFIG_FILE=/etc/lmcache/c.yaml", **extra: Any) -> LaunchFile:
    config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    text = f"{environment} vllm serve org/m --kv-transfer-config {shlex.quote(json.dumps(config))}"
    return LaunchFile("serve.sh", text.encode())


def read(settings: str | None, line: LaunchFile | None = None) -> LaunchFacts:
    given = [] if settings is None else [LaunchFile("deploy/c.yaml", settings.encode())]
    (facts,) = read_launch([line or served(), *given])
    return facts


def cache(facts: LaunchFacts) -> dict[str, Any]:
    return {path.removeprefix("cache."): value for path, value in facts.values.items() if path.startswith("cache.")}


def test_a_file_says_what_the_environment_would_say() -> None:
    settings = (
        "chunk_size: 64\nremote_url: redis://h:6379\nremote_serde: cachegen\nsave_unfull_chunk: true\nlocal_cpu: true\n"
    )
    facts = read(settings)
    assert cache(facts) == {
        "connector": "lmcache",
        "location": "redis://h:6379",
        "namespace": None,
        "chunk_size": 64,
        "serde": "cachegen",
    }
    names = "LMCACHE_CHUNK_SIZE=64 LMCACHE_REMOTE_URL=redis://h:6379 LMCACHE_REMOTE_SERDE=cachegen"
    same = read(None, served(f"{names} LMCACHE_SAVE_UNFULL_CHUNK=true LMCACHE_LOCAL_CPU=True"))
    assert (facts.values, facts.unknown) == (same.values, same.unknown)
    assert facts.values["engine.args"] == {"LMCACHE_SAVE_UNFULL_CHUNK": "true"}


def test_an_empty_file_leaves_the_defaults() -> None:
    facts = read("{}\n")
    assert cache(facts) == {
        "connector": "lmcache",
        "location": None,
        "namespace": None,
        "chunk_size": 256,
        "serde": "naive",
    }
    assert facts.values["engine.args"] == {}


def test_the_environment_wins_over_the_file_and_the_line_over_both() -> None:
    settings = "chunk_size: 64\nlocal_disk: file:///mnt/a/\n"
    environment = "LMCACHE_CONFIG_FILE=c.yaml LMCACHE_CHUNK_SIZE=128"
    assert cache(read(settings, served(environment)))["chunk_size"] == 128
    over = served(environment, **{"lmcache.chunk_size": 32, "lmcache.remote_url": "redis://h:1"})
    facts = read(settings, over)
    assert cache(facts)["chunk_size"] == 32
    assert cache(facts)["location"] == "[redis://h:1 + file:///mnt/a]"
    assert facts.values["engine.args"] == {}


def test_every_tier_is_part_of_where_blocks_are() -> None:
    facts = read("local_disk: /mnt/a/, file:///mnt/b\ngds_path: /mnt/g\n")
    assert cache(facts)["location"] == "[/mnt/a + file:///mnt/b + /mnt/g]"


@pytest.mark.parametrize("name", ["chunk_size", "remote_url", "remote_serde"])
def test_what_is_filled_in_from_outside_is_not_known(name: str) -> None:
    facts = read(f'{name}: "${{VALUE}}"\n')
    path = {"chunk_size": "cache.chunk_size", "remote_url": "cache.location", "remote_serde": "cache.serde"}[name]
    assert path not in facts.values
    assert "${VALUE}" in dict(facts.unknown)[path]


def test_a_password_from_outside_does_not_hide_where_the_store_is() -> None:
    facts = read(None, served('PASSWORD=$(cat p) LMCACHE_REMOTE_URL="redis://:${PASSWORD}@h:6379"'))
    assert cache(facts)["location"] == "redis://h:6379"
    assert "cache.location" not in read(None, served('LMCACHE_REMOTE_URL="redis://:p@${HOST}:6379"')).values


def test_a_file_that_was_not_given_may_say_anything() -> None:
    facts = read(None)
    assert {"cache.location", "cache.chunk_size", "cache.serde"} <= dict(facts.unknown).keys()
    assert facts.values["cache.connector"] == "lmcache"


def test_no_credential_of_the_file_gets_out() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    settings = f'remote_url: "redis://user:{secret}@h:6379"\nextra_config: {{remote_password: {secret}, x: 1}}\n'
    facts = read(settings)
    assert secret not in repr(facts)
    assert "credential" in dict(facts.unknown)["cache.location"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [("- a", "mapping of settings"), ("a: &x 1", "anchors"), ("chunk_size: 064", "read differently")],
)
def test_a_file_that_is_none_is_refused(settings: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(settings)
    assert "/etc/lmcache/c.yaml" in str(caught.value)


def test_a_file_that_no_server_reads_is_refused() -> None:
    with pytest.raises(InputError, match="no launch file given with it names it"):
        read_launch([served("LMCACHE_CONFIG_FILE=other.yaml"), LaunchFile("c.yaml", b"chunk_size: 64\n")])


def test_a_file_for_the_engine_itself_is_handed_in_as_well() -> None:
    line = LaunchFile("serve.sh", b"vllm serve org/m --config /etc/vllm.yaml")
    (facts,) = read_launch([line, LaunchFile("here/vllm.yaml", b"tensor-parallel-size: 2\n")])
    assert facts.values["parallelism.tensor"] == 2


def test_a_file_that_was_handed_in_stands_for_one_path() -> None:
    line = served("LMCACHE_CONFIG_FILE=/etc/lmcache/c.yaml").data.decode() + " --config /etc/vllm/c.yaml"
    (facts,) = read_launch([LaunchFile("serve.sh", line.encode()), LaunchFile("c.yaml", b"chunk_size: 64\n")])
    assert cache(facts)["chunk_size"] == 64
    assert "was not given" in dict(facts.unknown)["parallelism.tensor"]
    with pytest.raises(InputError, match="has the name of a/c"):
        read_launch([served(), LaunchFile("a/c.yaml", b"{}"), LaunchFile("b/c.yaml", b"{}")])


def test_a_path_in_a_container_is_not_one_of_this_machine() -> None:
    beside = {"/etc/vllm.yaml": b"tensor-parallel-size: 2\n", "/host/vllm.yaml": b"tensor-parallel-size: 4\n"}
    run = "docker run {} vllm/vllm-openai:v0.33.0 org/m --config /etc/vllm.yaml"

    def tensor(mount: str) -> Any:
        (facts,) = read_launch([LaunchFile("run.sh", run.format(mount).encode(), beside)])
        assert ("engine.version" in facts.values) == ("/etc " not in f"{mount} ")  # one file of settings is no software
        return facts.values.get("parallelism.tensor")

    assert tensor("") is None
    assert tensor("-v /host:/etc") == 4
    assert tensor("-v /host/vllm.yaml:/etc/vllm.yaml") == 4
    assert tensor("-v vol:/etc") is None


MORE_STORES = {
    "LMCACHE_REMOTE_STORAGE_PLUGINS=fs": "LMCACHE_REMOTE_STORAGE_PLUGINS is set",
    "LMCACHE_STORAGE_PLUGINS=a": "LMCACHE_STORAGE_PLUGINS is set",
    "LMCACHE_EXTERNAL_BACKENDS=a": "LMCACHE_EXTERNAL_BACKENDS is set",
    "LMCACHE_ENABLE_XPYD=1": "LMCACHE_ENABLE_XPYD is set",
    "LMCACHE_AUDIT_ACTUAL_REMOTE_URL=redis://a:1": "LMCACHE_AUDIT_ACTUAL_REMOTE_URL is set",
    "LMCACHE_REMOTE_URL=audit://a:1": "names another store's driver",
    "LMCACHE_MARU_PATH=/m": "LMCACHE_MARU_PATH is set",
    "LMCACHE_ENABLE_P2P=True": "LMCACHE_ENABLE_P2P is set",
    "LMCACHE_ENABLE_PD=$PD": "LMCACHE_ENABLE_PD is set to $PD",
    """LMCACHE_EXTRA_CONFIG='{"enable_nixl_storage": true, "nixl_path": "/n"}'""": "has enable_nixl_storage",
    """LMCACHE_EXTRA_CONFIG='{"audit_actual_remote_url": "redis://a:1"}'""": "has audit_actual_remote_url",
    """LMCACHE_EXTRA_CONFIG='{"remote_storage_plugin.fs.base_path": "/kv/shared"}'""": "has remote_storage_plugin.fs",
    "LMCACHE_EXTRA_CONFIG='{'": "has what is no JSON object",
}


@pytest.mark.parametrize("setting", MORE_STORES)
def test_a_store_beside_the_known_ones_leaves_open_where_blocks_lie(setting: str) -> None:
    """What is put into a name space of its own in one of them stays shared in the other."""
    found = read(None, served(f"LMCACHE_LOCAL_DISK=/kv/d {setting}"))
    assert "cache.location" not in found.values
    assert MORE_STORES[setting] in dict(found.unknown)["cache.location"]


@pytest.mark.parametrize(
    "setting",
    [
        "LMCACHE_ENABLE_P2P=False",
        "LMCACHE_EXTRA_CONFIG='{}'",
        """LMCACHE_EXTRA_CONFIG='{"enable_nixl_storage": false}'""",
    ],
)
def test_a_store_that_is_switched_off_is_none(setting: str) -> None:
    assert read(None, served(f"LMCACHE_LOCAL_DISK=/kv/d {setting}")).values["cache.location"] == "/kv/d"


@pytest.mark.parametrize("command", ["echo x > /tmp/c.yaml", "echo x | tee /tmp/c.yaml", "cat <c.in >>/tmp/c.yaml"])
def test_a_file_that_the_script_writes_is_not_the_one_that_was_given(command: str) -> None:
    script = f"{command}\nvllm serve org/m --config /tmp/c.yaml"
    settings = b"tensor-parallel-size: 2\n"
    with pytest.raises(InputError, match="is written before the server reads it"):
        read_launch([LaunchFile("serve.sh", script.encode()), LaunchFile("c.yaml", settings)])
    (facts,) = read_launch([LaunchFile("serve.sh", script.encode(), {"/tmp/c.yaml": settings})])
    assert "was not given" in dict(facts.unknown)["parallelism.tensor"]
    named = read_launch([LaunchFile("serve.sh", script.replace("--config", "--chat-template").encode())])[0]
    assert "is written before" in dict(named.unknown)["chat_template"]
    other = script.replace("/tmp/c.yaml", "/tmp/other", 1)
    (facts,) = read_launch([LaunchFile("serve.sh", other.encode(), {"/tmp/c.yaml": settings})])
    assert facts.values["parallelism.tensor"] == 2


MP = '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'


def versions(engine: str, server: str | None = None) -> LaunchFacts:
    line = f"docker run {engine} vllm serve org/m --kv-transfer-config '{MP}'"
    store = f'docker run {server} lmcache server --l2-adapter \'{{"type":"fs","base_path":"/kv"}}\'\n' if server else ""
    (facts,) = read_launch([LaunchFile("serve.sh", f"{store}{line}\n".encode())])
    return facts


PINNED = "@sha256:" + "5" * 64


@pytest.mark.parametrize(
    ("engine", "server", "version"),
    [
        ("lmcache/vllm-openai:v0.5.6", None, "0.5.6"),
        ("docker.io/lmcache/vllm-openai:v0.5.6" + PINNED, None, "0.5.6"),
        ("lmcache/vllm-openai:latest", None, None),
        ("me/vllm-openai:v0.5.6", None, None),
        ("vllm/vllm-openai:v0.33.0", "lmcache/standalone:v0.5.6", "0.5.6"),
        ("vllm/vllm-openai:v0.33.0" + PINNED, "lmcache/standalone:v0.6.9", "0.6.9"),
        ("lmcache/vllm-openai:v0.5.6", "lmcache/standalone:v0.5.6", "0.5.6"),
        ("lmcache/vllm-openai:v0.5.6", "lmcache/standalone:v0.6.9", None),
        ("lmcache/vllm-openai:v0.5.6", "me/standalone:v0.5.6", None),
        ("vllm/vllm-openai:v0.33.0" + PINNED, "lmcache/standalone:$TAG", None),
    ],
)
def test_lmcaches_own_images_say_its_release(engine: str, server: str | None, version: str | None) -> None:
    """In front of its server another image than the engine's writes the store."""
    assert versions(engine, server).values.get("cache.version") == version


def test_the_content_of_the_servers_image_counts_where_it_is_pinned() -> None:
    one, other = (
        versions("vllm/vllm-openai:v0.33.0", f"lmcache/standalone:v0.5.6@sha256:{digit * 64}") for digit in "12"
    )
    assert one.values["engine.args"] != other.values["engine.args"]
