"""What runs or is mounted round a server: either it is known to change nothing, or what it could touch is unknown."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvgate.deployments.launch import LaunchFacts, parse_vllm

DIGEST = "sha256:" + "a" * 64
IMAGE = f"vllm/vllm-openai:v0.33.0@{DIGEST}"
SOFTWARE = {"engine.version", "engine.image", "engine.packages", "tokenizer.renderer"}
ENVIRONMENT = {"engine.prefix_hash.seed", "engine.kv_layout", "engine.args", "weights.mutable"}
BY_COMMAND = SOFTWARE | ENVIRONMENT | {"engine.attention_backend"}


def read(text: str) -> LaunchFacts:
    return parse_vllm(text, source="launch.sh")


def inside(script: str) -> LaunchFacts:
    return read(f"docker run --entrypoint bash -e PYTHONHASHSEED=0 {IMAGE} -c {shlex.quote(script)}")


def tiered(folder: str) -> str:
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": folder}],
        },
    }
    return f"--kv-transfer-config {shlex.quote(json.dumps(config))}"


INERT = [
    "true",
    "set -euxo pipefail",
    "set -e -o pipefail",
    "cd /w; mkdir -p /tmp/x; echo start > /tmp/log; sleep 5; ulimit -n 65535",
    "exec 2>&1",
    "if [ -f /x ]; then echo yes; fi",
    "nvidia-smi >/var/log/gpu.log 2>&1 || true",
    "echo $(date) $(hostname -i) `nproc`",
    "time nohup nice -n 5 sleep 1",
    "/usr/bin/test -d /models",
    "for i in 1 2; do sleep 1; done",
    "curl -s http://h:1/health",
    "rm -rf /tmp/x /root/.cache/vllm *.pid; chmod -R 777 /kv; chown 1:1 /kv",
    "trap 'kill $PID' TERM SIGINT; trap - EXIT; trap",
]


@pytest.mark.parametrize("script", INERT)
def test_a_command_known_to_change_nothing_leaves_everything_known(script: str) -> None:
    assert inside(f"{script}; vllm serve org/m") == inside("vllm serve org/m")


@pytest.mark.parametrize(
    ("first", "known"),
    [
        ("#!/bin/bash", True),
        ("#!/usr/bin/env bash", True),
        ("#! /bin/sh -eux", True),
        ("#!/usr/bin/env -S bash -euo pipefail", True),
        ("#!/usr/bin/env -S VLLM_KV_CACHE_LAYOUT=HND bash", False),
        ("#!/bin/bash -a", False),
        ("#!/opt/patched/sh", False),
        ("# no such line", True),
    ],
)
def test_the_first_line_of_a_script_may_start_it_with_anything(first: str, known: bool) -> None:
    found = read(f"{first}\nvllm serve org/m")
    assert ("engine.kv_layout" in found.values) == known
    if not known:
        assert "first line" in dict(found.unknown)["engine.kv_layout"]


WRAPPED = [
    "exec vllm serve org/m",
    "nohup /usr/local/bin/vllm serve org/m",
    "taskset -c 0-3 numactl -C 0-7 --membind=0 vllm serve org/m",
    "timeout -k 5 1h python3.12 -u -X utf8 -m vllm.entrypoints.openai.api_server --model org/m",
    "tini -g -- vllm serve org/m",
    "if true; then exec vllm serve org/m; fi",
]


@pytest.mark.parametrize("script", WRAPPED)
def test_a_command_that_runs_the_server_unchanged_leaves_everything_known(script: str) -> None:
    assert inside(script) == inside("vllm serve org/m")


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("/opt/venv-b/bin/vllm serve org/m", "/opt/venv-b/bin/vllm"),
        ("/opt/b/bin/python3 -m vllm.entrypoints.openai.api_server --model org/m", "/opt/b/bin/python3"),
        ("nohup /usr/bin/python3 -m vllm.entrypoints.openai.api_server --model org/m", None),
        ("vllm serve org/m", None),
    ],
)
def test_a_program_in_a_folder_of_its_own_counts(line: str, program: str | None) -> None:
    """Two environments of one image hold two engines."""
    assert inside(line).values["engine.args"].get("program") == program


# script before the server -> what the reason names
FOREIGN = {
    "pip install -q transformers==5.1.0 && vllm serve org/m": "`pip`",
    "python -m pip install x; vllm serve org/m": "`python`",
    "sed -i s/a/b/ /x.py; vllm serve org/m": "`sed`",
    "/srv/echo hi; vllm serve org/m": "`echo`",
    "$SETUP; vllm serve org/m": "`$SETUP`",
    "nohup pip install x; vllm serve org/m": "`pip`",
    "if true; then pip install x; fi; vllm serve org/m": "`pip`",
    "{ pip install x; }; vllm serve org/m": "`pip`",
    "(pip install x); vllm serve org/m": "`pip`",
    "X=$(pip install x); vllm serve org/m": "`pip`",
    "echo `pip install x`; vllm serve org/m": "`pip`",
    'echo "$(echo $(pip install x))"; vllm serve org/m': "`pip`",
    "echo ${X:-$(pip install x)}; vllm serve org/m": "`${X...}`",
    "vllm serve org/m --served-model-name $(pip install x)": "`pip`",
    "echo " + "$(date)" * 300 + "; vllm serve org/m": "300 substitutions",
    "uv run vllm serve org/m": "`uv`",
    "nohup uv run --with x vllm serve org/m": "`uv`",
    "read VLLM_KV_CACHE_LAYOUT < f; vllm serve org/m": "`read`",
    "printf -v PYTHONHASHSEED 1; vllm serve org/m": "`printf`",
    "set -- x; vllm serve org/m": "`set`",
    "echo import os >> /usr/lib/python3/dist-packages/sitecustomize.py; vllm serve org/m": "`echo` writes /usr/lib",
    "cat p | tee /usr/lib/x.py; vllm serve org/m": "`tee` writes /usr/lib/x.py",
    "> $TARGET; vllm serve org/m": "`:` writes",
    "curl -sSfo x.py http://h/x; vllm serve org/m": "`curl`",
    "rm -rf /tmp/x /usr/lib/python3/x; vllm serve org/m": "`rm` removes /usr/lib/python3/x",
    "rm /tmp/$X; vllm serve org/m": "`rm` removes",
    "rm /tmp/../usr/lib/x; vllm serve org/m": "`rm` removes",
    "echo x > /tmp/../usr/lib/x.py; vllm serve org/m": "`echo` writes",
    "trap 'export PYTHONHASHSEED=1' DEBUG; vllm serve org/m": "`trap`",
    ". /etc/vllm.env; vllm serve org/m": "`. /etc/vllm.env`",
    "source x/bin/activate && vllm serve org/m": "`source x/bin/activate`",
    "eval x; vllm serve org/m": "`eval`",
    "while true; do vllm serve org/m; pip install x; done": "`pip`",
    "hash -p /mounted/vllm vllm; vllm serve org/m": "`hash`",
    "docker cp x.py c:/x.py; vllm serve org/m": "`docker`",
    "env -C /patched python3 -m vllm.entrypoints.openai.api_server --model org/m": "`python -m` takes code",
    "env --chdir=/patched python3 -m vllm.entrypoints.openai.api_server --model org/m": "`python -m` takes code",
    "cd /patched && python3 -m vllm.entrypoints.openai.api_server --model org/m": "`python -m` takes code",
    "python3 /srv/api_server.py --model org/m": "from a file that is not among the installed packages",
}


@pytest.mark.parametrize("script", FOREIGN)
def test_any_other_command_leaves_the_software_and_the_environment_unknown(script: str) -> None:
    found = inside(script)
    reasons = dict(found.unknown)
    assert reasons.keys() - {"model.served_name"} == BY_COMMAND
    assert all(FOREIGN[script] in reasons[path] for path in BY_COMMAND)
    assert not set(found.values) & BY_COMMAND


def test_a_shell_before_the_server_is_such_a_command_too() -> None:
    reasons = dict(read("bash -c 'pip install x' && vllm serve org/m").unknown)
    assert "`bash`" in reasons["engine.packages"]


def test_an_entry_point_of_ones_own_is_such_a_command() -> None:
    for line in (
        f"docker run --entrypoint /p.sh {IMAGE} vllm serve org/m",
        f"docker run {IMAGE} /p.sh vllm serve org/m",
    ):
        assert {path for path, why in read(line).unknown if "`p.sh`" in why} == BY_COMMAND


def test_what_happens_to_the_host_is_not_in_the_image() -> None:
    line = f"docker run -e PYTHONHASHSEED=0 {IMAGE} org/m"
    assert read(f"pip install x; docker pull y; {line}") == read(line)


def test_but_what_is_done_in_the_container_is() -> None:
    line = f"docker run -d --name v {IMAGE} org/m"
    for inside in ("docker exec -u root v pip install x", "podman container cp x.py v:/x.py", "docker exec -it v bash"):
        assert set(dict(read(f"{line}; {inside}").unknown)) >= SOFTWARE
        assert read(f"{inside}; {line}") == read(line)
    assert read(f"{line}; docker logs v; docker exec -e A=b v curl -sf http://h/health") == read(line)


def test_but_it_may_set_what_is_handed_through() -> None:
    line = f"export PYTHONHASHSEED=1; {{}} docker run -e PYTHONHASHSEED {IMAGE} org/m"
    path = "engine.prefix_hash.seed"
    assert read(line.format("")).values[path] == "1"
    assert path not in read(line.format(". ./env;")).values
    assert path not in read(line.format("sudo")).values


UNKNOWN = object()
# script -> VLLM_KV_CACHE_LAYOUT as the server sees it
VARIABLES: dict[str, Any] = {
    "export L=HND; vllm serve org/m": "HND",
    "L=HND; export L; vllm serve org/m": "HND",
    "L=HND; vllm serve org/m": None,
    "export L=NHD; L=HND; vllm serve org/m": "HND",
    "declare -x L=HND; vllm serve org/m": "HND",
    "declare L=HND; vllm serve org/m": None,
    "set -a; L=HND; set +a; vllm serve org/m": "HND",
    "set -o allexport; L=HND; vllm serve org/m": "HND",
    "set -a; set +a; L=HND; vllm serve org/m": None,
    "export L=HND; unset L; vllm serve org/m": None,
    "export L=HND; unset -v L; vllm serve org/m": None,
    "export L=HND; export -n L; vllm serve org/m": None,
    "export L=HND; env -i vllm serve org/m": None,
    "export L=HND; env -u L vllm serve org/m": None,
    "export L=HND; env -uL vllm serve org/m": None,
    "export L=HND; env --unset=L vllm serve org/m": None,
    "export L=NHD; env -i L=HND vllm serve org/m": "HND",
    "L=HND bash -c 'vllm serve org/m'": "HND",
    "L=HND; bash -c 'vllm serve org/m'": None,
    "L=HND sleep 1; vllm serve org/m": None,
    "if [ -n x ]; then export L=HND; fi; vllm serve org/m": UNKNOWN,
    "export L=HND; if true; then unset L; fi; vllm serve org/m": UNKNOWN,
    "[ -f x ] && export L=HND; vllm serve org/m": UNKNOWN,
    "false || export L=HND; vllm serve org/m": UNKNOWN,
    "(export L=HND); vllm serve org/m": UNKNOWN,
    "nvidia-smi && export L=HND; vllm serve org/m": UNKNOWN,
    "nvidia-smi && export L=HND && vllm serve org/m": "HND",
    "nvidia-smi && export L=HND && exec bash -c 'vllm serve org/m'": "HND",
    "(nvidia-smi) && export L=HND; vllm serve org/m": UNKNOWN,
    "! true && export L=HND; vllm serve org/m": UNKNOWN,
    "A=$(date) && export L=HND; vllm serve org/m": UNKNOWN,
    "echo a && A=1 && export L=HND; vllm serve org/m": "HND",
    "true || export L=HND && vllm serve org/m": UNKNOWN,
    "export L=HND | cat; vllm serve org/m": UNKNOWN,
    "export L=HND & vllm serve org/m": UNKNOWN,
    "true && export L=HND & vllm serve org/m": UNKNOWN,
    "export L=HND; vllm serve org/m &": "HND",
    "export L=HND; declare +x L; vllm serve org/m": None,
    "declare -xl L=HND; vllm serve org/m": UNKNOWN,
    "declare -xi L=HND; vllm serve org/m": UNKNOWN,
    "export -- L=HND; vllm serve org/m": "HND",
    "export L=HND; exec -c vllm serve org/m": UNKNOWN,
    "export L=HND; exec -a x vllm serve org/m": "HND",
    "export L=HND; env -vi vllm serve org/m": UNKNOWN,
    "export L=HND; env --ignore-env vllm serve org/m": UNKNOWN,
    "export L=HND; env -S 'a b' vllm serve org/m": UNKNOWN,
    "export L=HND; env -v -- vllm serve org/m": "HND",
    "for i in 1; do export L=HND; done; vllm serve org/m": UNKNOWN,
    "export L=HN; L+=D; vllm serve org/m": UNKNOWN,
    "export $X; vllm serve org/m": UNKNOWN,
    "export L=$X; vllm serve org/m": UNKNOWN,
    "if true; then set -a; fi; L=HND; vllm serve org/m": UNKNOWN,
    "BASH_ENV=/x bash -c 'vllm serve org/m'": UNKNOWN,
}


@pytest.mark.parametrize("script", VARIABLES)
def test_a_variable_is_what_the_server_inherits(script: str) -> None:
    found = read(
        script.replace("L=", "VLLM_KV_CACHE_LAYOUT=")
        .replace(" L", " VLLM_KV_CACHE_LAYOUT")
        .replace("-uL", "-uVLLM_KV_CACHE_LAYOUT")
        .replace("--unset=L", "--unset=VLLM_KV_CACHE_LAYOUT")
        .replace("L+=", "VLLM_KV_CACHE_LAYOUT+=")
    )
    assert found.values.get("engine.kv_layout", UNKNOWN) == VARIABLES[script]


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "VLLM_PLUGINS"]
)
@pytest.mark.parametrize("how", ["-e {}=/patches", "-e {}"])
def test_a_variable_that_brings_in_code_leaves_the_software_unknown(name: str, how: str) -> None:
    found = read(f"docker run -e PYTHONHASHSEED=0 {how.format(name)} {IMAGE} org/m")
    assert {path for path, why in found.unknown if name in why} - {"engine.args"} == SOFTWARE
    assert found.values["engine.prefix_hash.seed"] == "0"
    assert not any("taken to change nothing" in note for note in found.notes)


OVER_CODE = [
    "-v /srv/hotfix/vllm:/usr/local/lib/python3.12/dist-packages/vllm",
    "-v /srv/x:/opt",
    "-v /srv/x:/opt/tools:ro",
    "-v /srv/x:/etc/ld.so.conf.d",
    "-v /srv/x:/",
    "-v /srv/x:/data/u/.local/lib/python3.12/site-packages/x.py",
    "-v /srv/x:/srv/patches/vllm",
    "-v /srv/x:/start.sh",
    "-v /srv/x:/data/../usr/lib",
    "-v $EXTRA:$WHERE",
    "--volume=/srv/x:/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "--mount type=bind,src=/srv/x,dst=/vllm-workspace",
    "--mount type=volume,source=x,target=/usr/local/lib",
    "--volumes-from other",
    "--tmpfs /root/.local",
]


@pytest.mark.parametrize("mount", OVER_CODE)
def test_a_mount_over_code_leaves_the_software_unknown(mount: str) -> None:
    found = read(f"docker run {mount} {IMAGE} --model /models/m")
    assert set(dict(found.unknown)) >= SOFTWARE
    assert not set(found.values) & SOFTWARE


@pytest.mark.parametrize(
    "mount",
    [
        "-v /srv/models:/models:ro",
        "-v ~/.cache/huggingface:/root/.cache/huggingface",
        "-v /srv/vllm-cache:/root/.cache/vllm",
        "-v /etc/localtime:/etc/localtime:ro",
        "--mount type=bind,src=/srv/kv,dst=/kv",
        "--tmpfs /tmp",
        "-v /data",
        "-v /srv/models:/opt/models",
        "--tmpfs /var/log/vllm",
        "-v /srv/driver:/usr/local/nvidia",
    ],
)
def test_a_mount_of_data_leaves_everything_known(mount: str) -> None:
    line = f"docker run {{}} {IMAGE} --model /opt/models/m"
    assert read(line.format(mount)) == read(line.format(""))


# mounts, root_dir -> cache.location, or what the reason says
STORES = {
    ("-v /srv/kv:/kv", "/kv/a"): "/srv/kv/a",
    ("-v /srv/kv:/kv", "/kv"): "/srv/kv",
    ("-v /srv/kv/:/kv/:rw", "/kv//./a/"): "/srv/kv/a",
    ("--volume=/srv/kv:/kv", "/kv/a"): "/srv/kv/a",
    ("--mount type=bind,source=/srv/kv,target=/kv,readonly", "/kv/a"): "/srv/kv/a",
    ("--mount type=volume,src=kv,dst=/kv", "/kv/a"): "volume:kv/a",
    ("--mount src=kv,destination=/kv", "/kv"): "volume:kv",
    ("-v kv:/kv", "/kv/a"): "volume:kv/a",
    ("-v ~/kv:/kv", "/kv/a"): "~/kv/a",
    ("-v /srv/kv:/kv -v /srv/other:/kv/a", "/kv/a/b"): "/srv/other/b",
    ("-v /srv/other:/kv/a -v /srv/kv:/kv", "/kv/a/b"): "/srv/other/b",
    ("-v /srv/kv:/kv", "/kvx/a"): "/kvx/a",
    ("", "/kv/a"): "/kv/a",
    ("-v /kv", "/kv/a"): "/kv/a",
    ("--tmpfs /kv:size=1g", "/kv/a"): "/kv/a",
    ("-v $KV:/kv", "/kv/a"): "?what is mounted at /kv is not known: $KV",
    ("-v $KV", "/kv/a"): "?the shell fills in what is mounted, and where",
    ("-v ./kv:/kv", "/kv/a"): "?a relative path is mounted at /kv, and of which folder is not known",
    (
        "-v /srv/x/../kv:/kv",
        "/kv/a",
    ): "?the path mounted at /kv goes through `..`, and where that leads depends on links",
    ("-v /srv/kv:/kv", "kv/a"): "?it is relative to the folder that the engine is started in",
    ("-w /kv -v /srv/kv:/kv", "./a"): "?it is relative to the folder that the engine is started in",
    ("", "~/kv"): "?it is relative to the folder that the engine is started in",
    ("-v /srv/kv:/kv", "/kv/b/../a"): "?its path goes through `..`, and where that leads depends on links",
    (
        "--mount type=volume,src=kv,dst=/kv,volume-subpath=z",
        "/kv/a",
    ): "?what is mounted at /kv is not known: a sub-path",
}


@pytest.mark.parametrize(("mounts", "folder"), STORES)
def test_a_store_is_where_it_is_on_the_host(mounts: str, folder: str) -> None:
    found = read(f"docker run {mounts} {IMAGE} org/m {tiered(folder)}")
    expected = STORES[mounts, folder]
    for path in ("cache.location", "cache.namespace"):  # its folder is its knob
        if expected.startswith("?"):
            assert path not in found.values
            assert dict(found.unknown)[path] == expected[1:]
        else:
            assert found.values[path] == expected
    ends = any("ends with it" in note for note in found.notes)
    assert ends == (expected == folder)


def test_without_a_container_a_store_is_where_its_path_says() -> None:
    found = read(f"vllm serve org/m {tiered('/kv//x/./y/')}")
    assert found.values["cache.location"] == found.values["cache.namespace"] == "/kv/x/y"
    assert found.notes == ()
    assert "cache.location" not in read(f"cd /x; vllm serve org/m {tiered('kv/a')}").values


# variables, mounts -> cache.location of LMCache
TIERS = {
    ("REMOTE_URL=redis://c:6379/0", ""): "redis://c:6379/0",
    ("LOCAL_DISK=file:///kv/d/", ""): "file:///kv/d",
    ("REMOTE_URL=redis://c:6379/0 LOCAL_DISK=file:///kv/d", ""): "[redis://c:6379/0 + file:///kv/d]",
    ("LOCAL_DISK=/kv/d REMOTE_URL=s3://b/x/", ""): "[s3://b/x + /kv/d]",
    ("REMOTE_URL=redis://c:6379/0 LOCAL_DISK=file:///kv/d", "-v /srv/kv:/kv"): "[redis://c:6379/0 + file:///srv/kv/d]",
    ("REMOTE_URL=redis://c:6379/0 LOCAL_DISK=file:///kv/d", "-v $KV:/kv"): None,
    ("REMOTE_URL=redis://c:6379/0 LOCAL_DISK=$D", ""): None,
    ("REMOTE_URL=redis://c:6379/0 LOCAL_DISK=file://kv/d", ""): None,
}


@pytest.mark.parametrize(("variables", "mounts"), TIERS)
def test_every_tier_of_lmcache_is_part_of_where_the_store_is(variables: str, mounts: str) -> None:
    given = " ".join(f"-e LMCACHE_{one}" for one in variables.split())
    found = read(
        f"""docker run {given} {mounts} {IMAGE} org/m --kv-transfer-config '{{"kv_connector":"LMCacheConnectorV1"}}'"""
    )
    assert found.values.get("cache.location") == TIERS[variables, mounts]
    assert found.values["cache.namespace"] is None
