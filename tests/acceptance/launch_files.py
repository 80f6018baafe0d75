"""Files that serving teams deploy, as small as they can be: Kubernetes objects, compose files, scripts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from tests.acceptance.releases import make

VLLM: str = make.IMAGE
SGLANG = "lmsysorg/sglang:v0.5.23@sha256:" + "7c" * 32
LMCACHE_SERVER = "lmcache/standalone:v0.5.6@sha256:" + "3d" * 32
MODEL = "/models/support"
Files = dict[str, str]

TIER: Mapping[str, Any] = make.TRANSFER
LMCACHE: Mapping[str, Any] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
LMCACHE_MP: Mapping[str, Any] = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
MOONCAKE: Mapping[str, Any] = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
UMBP: Mapping[str, Any] = {"kv_connector": "UMBPStoreConnector", "kv_role": "kv_both"}
EXAMPLE: Mapping[str, Any] = {
    "kv_connector": "ExampleConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"shared_storage_path": "/kv/support"},
}

LMCACHE_REDIS = {"LMCACHE_REMOTE_URL": "redis://cache-1:6379/0", "LMCACHE_CHUNK_SIZE": "256"}
"""The settings of LMCache in the engine, as variables."""


def vllm_pods(
    *flags: str,
    model: str = MODEL,
    store: Mapping[str, Any] | None = TIER,
    env: Mapping[str, str] | None = None,
    name: str = "support",
    image: str = VLLM,
) -> str:
    """A Deployment of vLLM in the shape of llm-d's guides: a script of ``bash -c``, JSON inside a flag, claims."""
    words = ["vllm", "serve", model, *flags]
    if store is not None:
        words += ["--kv-transfer-config", json.dumps(store)]
    return _deployment(
        name, image, ["bash", "-c"], [f"exec {shlex.join(words)}\n"], {"PYTHONHASHSEED": "0", **(env or {})}
    )


def sglang_pods(*flags: str, model: str = MODEL, env: Mapping[str, str] | None = None, image: str = SGLANG) -> str:
    """A Deployment of SGLang with the file backend of its hierarchical cache."""
    command = ["python3", "-m", "sglang.launch_server", "--model-path", model, "--admin-api-key-file", "unused"]
    command = [*command[:-2], "--enable-hierarchical-cache", *flags]
    return _deployment("support", image, command, ["--admin-api-key", "$(ADMIN_KEY)"], env or {})


def lmcache_server(*flags: str) -> str:
    """The server of LMCache's multi-process mode, with a Redis behind it."""
    redis = json.dumps({"type": "resp", "host": "cache-1", "port": 6379})
    command = ["lmcache", "server", "--l1-size-gb", "60", "--l2-adapter", redis, *flags]
    return _deployment("lmcache", LMCACHE_SERVER, command, [], {})


def _deployment(name: str, image: str, command: list[str], args: list[str], env: Mapping[str, str]) -> str:
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "command": command,
        "args": args,
        "env": [
            {"name": "ADMIN_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "admin"}}},
            *({"name": key, "value": value} for key, value in env.items()),
        ],
        "volumeMounts": [{"name": part, "mountPath": f"/{part}"} for part in ("models", "adapters", "kv")],
    }
    claims = [{"name": part, "persistentVolumeClaim": {"claimName": part}} for part in ("models", "adapters", "kv")]
    pod = {"containers": [container], "volumes": claims}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "template": {"metadata": {"labels": {"app": name}}, "spec": pod}},
    }
    return yaml.safe_dump(document, sort_keys=False)
