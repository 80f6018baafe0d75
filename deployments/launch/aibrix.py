"""AIBrix's offloading inside the engine: its variables say which store is the second level, and what keeps it apart.

Source: aibrix-kvcache 0.8.0 wheel, envs.py, spec.py:91 (tokens of a block), cache_manager.py:660-800 (levels, meta
service), l2/connectors/connector.py:85 and the ``from_envs`` of each store beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.deployments.launch.cache_facts import CacheFacts
from kvgate.deployments.launch.shell import Word

CONNECTOR = "aibrix"
_PREFIX = "AIBRIX_KV_CACHE_OL_"
_BACKEND, _NAMESPACE, _TOKENS = (
    f"{_PREFIX}{name}" for name in ("L2_CACHE_BACKEND", "L2_CACHE_NAMESPACE", "BLOCK_SIZE")
)
_META, _META_URL, _META_KEY = (f"{_PREFIX}META_SERVICE_{name}" for name in ("BACKEND", "URL", "CLUSTER_META_KEY"))
_ROOT = f"{_PREFIX}SHFS_ROOT"
# Address and port of a server, each under the names that are looked up in turn, with what stands for both unset.
_SERVERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "INFINISTORE": (("INFINISTORE_HOST_ADDR",), ("INFINISTORE_SERVICE_PORT",), "12345"),
    "HPKV": (("HPKV_REMOTE_ADDR",), ("HPKV_REMOTE_PORT",), "12346"),
    "PRISKV": (("PRISKV_REMOTE_ADDR", "PRIS_REMOTE_ADDR"), ("PRISKV_REMOTE_PORT", "PRIS_REMOTE_PORT"), "6379"),
}
_ALSO_CALLED = {"PRIS": "PRISKV"}
_LOCAL = "127.0.0.1"

PATHS: Mapping[str, str] = {
    _NAMESPACE: "cache.namespace",
    _TOKENS: "cache.chunk_size",
    **dict.fromkeys((_BACKEND, _META, _META_URL, _META_KEY, _ROOT), "cache.location"),
    **{f"{_PREFIX}{name}": "cache.location" for at, port, _ in _SERVERS.values() for name in (*at, *port)},
}
"""The variables that stand for manifest paths."""


def read_aibrix(environment: Mapping[str, Word], facts: CacheFacts) -> None:
    """Settle which store holds blocks that outlive the worker, under which namespace, and how many tokens each has.

    Args:
        environment: the engine's variables, without credentials.
        facts: where to write to.
    """
    for name, path in PATHS.items():
        word = environment.get(name)
        if word is not None and word.expansions:
            facts.doubt(path, f"{name} is set to {word.expansions[0]}")
    doubted = {path for path, _ in facts.unknown}
    given = {name: environment[name].text.strip() for name in PATHS if name in environment}
    if "cache.namespace" not in doubted and _NAMESPACE in given:
        _namespace(given[_NAMESPACE].lower(), facts)
    if "cache.chunk_size" not in doubted:
        _tokens(given.get(_TOKENS, "-1"), facts)
    if "cache.location" not in doubted:
        _location(given, facts)


def _namespace(value: str, facts: CacheFacts) -> None:
    if value:
        facts.settle("cache.namespace", value)
    else:
        facts.doubt("cache.namespace", f"{_NAMESPACE} is set to nothing")


def _tokens(value: str, facts: CacheFacts) -> None:
    try:
        tokens = int(value)
    except ValueError:
        facts.doubt("cache.chunk_size", f"{_TOKENS} is not an integer")
        return
    facts.settle("cache.chunk_size", tokens if tokens > 0 else None)


def _location(given: Mapping[str, str], facts: CacheFacts) -> None:
    path = "cache.location"
    backend = given.get(_BACKEND, "").upper()
    backend = _ALSO_CALLED.get(backend, backend)
    if not backend:
        facts.settle(path, None)
        facts.notes.append(f"AIBrix keeps blocks in the worker's memory alone: {_BACKEND} is not set")
    elif given.get(_META):
        _of_a_cluster(backend, given, facts)
    elif backend == "SHFS":
        folder = given.get(_ROOT, "~")
        if folder.startswith("~"):
            facts.doubt(path, f"{_ROOT} leads into the home folder of whoever runs the engine")
        else:
            facts.settle(path, folder)
    elif backend in _SERVERS:
        hosts, ports, port = _SERVERS[backend]
        facts.settle(path, f"{backend.lower()}://{_first(hosts, given, _LOCAL)}:{_first(ports, given, port)}")
    else:
        facts.doubt(path, f"where AIBrix's {backend[:20]} store keeps blocks is in none of its variables that are read")


def _of_a_cluster(backend: str, given: Mapping[str, str], facts: CacheFacts) -> None:
    """Name a cluster by what says who is in it."""
    url, key = given.get(_META_URL, ""), given.get(_META_KEY, "")
    if not url or not key:
        facts.doubt("cache.location", f"{_META} is set, and not both of {_META_URL} and {_META_KEY}")
        return
    facts.settle("cache.location", f"{backend.lower()}://{(url.partition('://')[2] or url).rstrip('/')}/{key}")
    facts.notes.append(f"the store is the {backend} cluster whose members the meta service at {url} lists under {key}")


def _first(names: tuple[str, ...], given: Mapping[str, str], default: str) -> str:
    return next((given[name] for one in names if (name := f"{_PREFIX}{one}") in given), default)
