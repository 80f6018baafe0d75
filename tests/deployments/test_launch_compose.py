"""Docker compose files, to the facts in the service that runs the engine."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from kvgate.deployments.launch import LaunchFacts, LaunchFile, parse_vllm, read_launch
from kvgate.rules.errors import InputError

IMAGE = "vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64
TIERED = json.dumps(
    {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": "/kv/a"}],
        },
    }
)


def read(service: dict[str, Any], only: str | None = None, **project: Any) -> LaunchFacts:
    services = {"engine": {"image": IMAGE, **service}, "redis": {"image": "redis:8"}, **project.pop("services", {})}
    data = yaml.safe_dump({"services": services, **project}, sort_keys=False).encode()
    (facts,) = read_launch([LaunchFile("compose.yaml", data, {}, only)])
    return facts


def line(text: str) -> LaunchFacts:
    return parse_vllm(f"docker run --entrypoint '' {IMAGE} {text}", source="x")


def said(facts: LaunchFacts) -> tuple[Any, ...]:
    return facts.model, facts.values, dict(facts.unknown), facts.pending


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


@pytest.mark.parametrize(
    "service",
    [
        {"command": ["org/m", "-tp", "2"], "environment": {"PYTHONHASHSEED": 7}},
        {"command": "org/m -tp 2", "environment": ["PYTHONHASHSEED=7"]},
        {"entrypoint": "vllm serve", "command": "org/m -tp '2'", "environment": ["PYTHONHASHSEED=7"]},
        {
            "entrypoint": ["bash", "-c"],
            "command": ["vllm serve org/m -tp 2"],
            "environment": ["PYTHONHASHSEED=7"],
            "deploy": {"replicas": 4},
        },
    ],
)
def test_every_form_of_a_service_says_what_its_command_says(service: dict[str, Any]) -> None:
    assert said(read(service)) == said(line("env PYTHONHASHSEED=7 vllm serve org/m -tp 2"))


def test_what_is_filled_in_from_outside_is_not_known() -> None:
    facts = read(
        {
            "image": "vllm/vllm-openai:${TAG:-v0.33.0}",
            "command": "org/m -tp ${TP:-2} --revision $REVISION --x '$$HOME'",
            "environment": {"PYTHONHASHSEED": None, "VLLM_USE_X": "${X}"},
        }
    )
    assert "${TAG}" in reason(facts, "engine.image")
    assert reason(facts, "engine.version")
    assert "${TP}" in reason(facts, "parallelism.tensor")
    assert "${REVISION}" in reason(facts, "model.revision")
    assert "PYTHONHASHSEED" in reason(facts, "engine.prefix_hash.seed")
    assert "VLLM_USE_X" in reason(facts, "engine.args")
    assert read({"command": ["org/m", "--x", "$$HOME"]}).values["engine.args"] == {"x": "$HOME"}


def test_a_file_of_variables_is_not_read() -> None:
    assert "env_file" in reason(read({"command": "org/m", "env_file": ".env"}), "engine.prefix_hash.seed")
    assert "extends" in reason(read({"command": "org/m", "extends": {"service": "x"}}), "engine.version")
    assert "built" in reason(read({"command": "vllm serve org/m", "build": "."}), "engine.image")


NAMED = {"volumes": {"kv": {"name": "shared-kv"}}}
PLACES: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "a folder of the host": ("/mnt/kv:/kv:rw", {}, "/mnt/kv/a"),
    "a volume with a name": ("kv:/kv", NAMED, "volume:shared-kv/a"),
    "a volume of others": ("kv:/kv", {"volumes": {"kv": {"external": True}}}, "volume:kv/a"),
    "a volume of a named project": ("kv:/kv", {"name": "p", "volumes": {"kv": None}}, "volume:p_kv/a"),
    "a volume of this project": ("kv:/kv", {"volumes": {"kv": None}}, None),
    "a folder beside the file": ("./kv:/kv", {}, None),
    "a folder from outside": ("${KV:-/mnt/kv}:/kv", {}, None),
    "a volume that is filled in": ("kv:/kv", {"volumes": {"kv": {"name": "${KV}"}}}, None),
    "the long form": ({"type": "bind", "source": "/mnt/kv", "target": "/kv"}, {}, "/mnt/kv/a"),
    "the long form of a volume": ({"type": "volume", "source": "kv", "target": "/kv"}, NAMED, "volume:shared-kv/a"),
    "a part of a volume": (
        {"type": "volume", "source": "kv", "target": "/kv", "volume": {"subpath": "x"}},
        NAMED,
        None,
    ),
    "memory": ({"type": "tmpfs", "target": "/kv"}, {}, "/kv/a"),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_the_store_is_for_everybody(name: str) -> None:
    volume, project, expected = PLACES[name]
    facts = read({"command": ["org/m", "--kv-transfer-config", TIERED], "volumes": [volume]}, **project)
    assert facts.values.get("cache.location") == expected
    if expected is None:
        assert reason(facts, "cache.location")


def test_json_inside_a_text() -> None:
    facts = read({"command": f"org/m --kv-transfer-config {shlex.quote(TIERED)}", "volumes": ["/kv:/kv"]})
    assert facts.values["cache.location"] == "/kv/a"


def test_several_services() -> None:
    other: dict[str, Any] = {"services": {"other": {"image": IMAGE, "command": "org/m -tp 4"}}}
    facts = read({"command": "org/m -tp 2"}, **other)
    assert [role["name"] for role in facts.values["roles"]] == ["engine", "other"]
    assert read({"command": "org/m -tp 2"}, only="other", **other).values["parallelism.tensor"] == 4


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"command": "org/m 'x"}, "ends inside a quote"),
        ({"command": ["org/m"], "environment": "A=1"}, "neither a list nor a mapping"),
        ({"command": ["org/m"], "environment": {"A": True}}, "is not a text"),
        ({"command": {"a": 1}}, "is not a text"),
        ({"command": "org/m", "volumes": [{"type": "bind"}]}, "without a target"),
        ({"image": "redis:8", "command": "redis-server"}, "no container starts a server"),
    ],
)
def test_what_no_service_can_say_is_refused(service: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(service)
    assert "compose.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["services: &a {x: *a}", "services:\n  a: {environment: {X: 010}, image: vllm}", "services: ["]
)
def test_hostile_files_are_one_clear_error(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_launch([LaunchFile("compose.yaml", text.encode())])
    assert "compose.yaml" in str(caught.value)


def test_anchors_are_told_to_be_written_out() -> None:
    with pytest.raises(InputError) as caught:
        read_launch([LaunchFile("c.yaml", b"x: &a {b: 1}\nservices: {y: *a}\n")])
    assert "docker compose config" in str(caught.value.hint)


def test_no_secret_of_a_service_gets_out() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    facts = read(
        {
            "command": ["org/m", "--api-key", secret],
            "environment": {"HF_TOKEN": secret, "LMCACHE_REMOTE_URL": f"redis://:{secret}@h:1"},
        }
    )
    assert secret not in repr(facts)


def test_a_hook_behind_the_start_may_change_the_software() -> None:
    hooked = read({"command": ["org/m"], "post_start": [{"command": "pip install x", "user": "root"}]})
    assert "post_start" in reason(hooked, "engine.image")


def test_another_platform_is_another_image_of_one_index() -> None:
    usual, arm = (read({"command": ["org/m"], "platform": f"linux/{one}"}) for one in ("amd64", "arm64"))
    assert usual.values == read({"command": ["org/m"]}).values
    assert arm.values["engine.args"] == {"node.resources": ["linux/arm64"]}


def test_what_is_synced_into_the_container_is_said() -> None:
    synced = read({"command": ["org/m"], "develop": {"watch": [{"action": "sync", "path": "./p", "target": "/x"}]}})
    assert any("develop.watch" in note for note in synced.notes)


def test_a_project_of_very_many_services_is_refused() -> None:
    services = {f"s{at}": {"image": IMAGE, "command": ["org/m"]} for at in range(501)}
    with pytest.raises(InputError, match="more than 500"):
        read({"command": ["org/m"]}, services=services)
