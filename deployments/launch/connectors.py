"""``--kv-transfer-config``: which store outlives the worker, where it is, and what keeps it apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.shell import Word
from kvgate.rules.document import parse_document

_SERVER_SAYS = "the LMCache server says it, not the engine"
# LMCache 0.5.6, lmcache/v1/config.py: what an unset variable means.
_LMCACHE_CHUNK = 256
_LMCACHE_SERDE = "naive"
CACHE_PATHS = (
    "cache.connector",
    "cache.location",
    "cache.namespace",
    "cache.chunk_size",
    "cache.serde",
)


class Connector(BaseModel):
    """One row of the connector table; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str | None
    why: str | None = None
    location: str | None = None
    location_default: str | None = None
    namespace: str | None = None
    harmless: list[str] = Field(default_factory=list)


class ConnectorTable(BaseModel):
    """The connectors of one engine, and the tiers of its own offloading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/connectors/v1$")
    engine: str
    source: str
    checked: str
    connectors: dict[str, Connector]
    tiers: dict[str, Connector]
    harmless: list[str]


@dataclass
class CacheFacts:
    """What a launch line says about the store.

    Attributes:
        values: manifest paths under ``cache``; a path that is not there is unknown.
        rest: settings of the connector that have no path of their own: they count in ``engine.args``.
        unknown: paths and why.
        notes: sentences for the reader.
        tiers: the stores, where there are several; ``cache.location`` has to name them all.
        split_roles: the line starts only one half of a prefill/decode pair.
    """

    values: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)
    split_roles: bool = False

    def settle(self, path: str, value: Any) -> None:
        """Write a value."""
        self.values[path] = value

    def doubt(self, path: str, reason: str) -> None:
        """Leave a path unknown."""
        self.values.pop(path, None)
        self.unknown.append((path, reason))


@cache
def vllm_connectors() -> ConnectorTable:
    """Return the table of vLLM's connectors."""
    name = "vllm_connectors.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return ConnectorTable.model_validate(document)


def no_connector() -> CacheFacts:
    """Return the facts of a line without ``--kv-transfer-config``: nothing outlives the worker."""
    return CacheFacts(dict.fromkeys(CACHE_PATHS))


def undecided(reason: str) -> CacheFacts:
    """Return the facts of a line whose connector cannot be read."""
    return CacheFacts(unknown=[(path, reason) for path in CACHE_PATHS])


def read_connector(config: Mapping[str, Any], environment: Mapping[str, Word]) -> CacheFacts:
    """Read a parsed ``--kv-transfer-config``, after its credentials were dropped.

    Args:
        config: the JSON object.
        environment: the environment that the line sets; LMCache is configured there.
    """
    table = vllm_connectors()
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, Mapping) else {}
    name = config.get("kv_connector")
    if not isinstance(name, str) or not name:
        return no_connector()
    facts = no_connector()
    rest = {
        key: value
        for key, value in config.items()
        if key not in ("kv_connector", "kv_connector_extra_config", "kv_role", *table.harmless)
    }
    row = _row(name, config)
    facts.settle("cache.connector", row.profile or name)
    used = set(row.harmless)
    if row.profile is None:
        facts.notes.append(f"the connector {name} is kept by its name: {row.why}")
    if name == "OffloadingConnector":
        used |= _offloading(extra, facts)
    elif row.profile == "lmcache":
        _lmcache(environment, facts)
    elif row.profile == "lmcache-mp":
        for path in ("cache.location", "cache.chunk_size", "cache.serde"):
            facts.doubt(path, _SERVER_SAYS)
    else:
        used |= _plain(row, extra, facts)
    if row.profile == "vllm-mooncake":
        facts.doubt("cache.location", "the file named by MOONCAKE_CONFIG_PATH says it")
    left = {key: value for key, value in extra.items() if key not in used and key not in table.harmless}
    if left:
        rest["kv_connector_extra_config"] = left
    role = config.get("kv_role")
    if role in ("kv_producer", "kv_consumer"):
        facts.split_roles = True
        rest["kv_role"] = role
    facts.rest = rest
    return facts


def offloading_flags(backend: str, facts_of: Mapping[str, Word]) -> CacheFacts:
    """Return the facts of ``--kv-offloading-size`` with its backend, which vLLM turns into a connector.

    Source: vllm/config/vllm.py, ``_post_init_kv_transfer_config``, 0.33.0.
    """
    name = "LMCacheMPConnector" if backend == "lmcache" else "OffloadingConnector"
    return read_connector({"kv_connector": name, "kv_role": "kv_both"}, facts_of)


def _row(name: str, config: Mapping[str, Any]) -> Connector:
    module = config.get("kv_connector_module_path")
    row = vllm_connectors().connectors.get(name)
    # A class from elsewhere may bear any name; LMCache ships its own newer copy of vLLM's two connectors.
    if module and not str(module).startswith("lmcache."):
        return Connector(profile=None, why="its class is loaded from another module")
    return row or Connector(profile=None, why="vLLM 0.33.0 has no connector of this name")


def _plain(row: Connector, extra: Mapping[str, Any], facts: CacheFacts) -> set[str]:
    used: set[str] = set()
    for path, key in (("cache.location", row.location), ("cache.namespace", row.namespace)):
        if key is not None:
            _take(facts, path, extra.get(key, row.location_default if path == "cache.location" else None))
            used.add(key)
    return used


def _take(facts: CacheFacts, path: str, value: Any) -> None:
    if value is None or (isinstance(value, str) and value):
        facts.settle(path, value)
    else:
        facts.doubt(path, "its value is not a text")


def _offloading(extra: Mapping[str, Any], facts: CacheFacts) -> set[str]:
    """Source: vllm/v1/kv_offload/factory.py, tiering/spec.py, tiering/factory.py, 0.33.0."""
    table = vllm_connectors()
    used = {
        "cpu_bytes_to_use",
        "eviction_policy",
        "store_threshold",
        "tier_poll_interval_s",
        "max_tracker_size",
    }
    if isinstance(block := extra.get("block_size"), int):
        facts.settle("cache.chunk_size", block)
        used.add("block_size")
    tiers = extra.get("secondary_tiers")
    if extra.get("spec_name") != "TieringOffloadingSpec" or not isinstance(tiers, list) or not tiers:
        return used
    known = [tier for tier in tiers if isinstance(tier, Mapping) and tier.get("type") in table.tiers]
    if len(tiers) != 1 or len(known) != 1 or "module_path" in known[0]:
        facts.notes.append("the secondary tiers of TieringOffloadingSpec are not one that a profile describes")
        for path in ("cache.location", "cache.namespace"):
            facts.doubt(path, "several or unknown secondary tiers")
        return used
    tier, row = known[0], table.tiers[known[0]["type"]]
    facts.notes[:] = []
    facts.settle("cache.connector", row.profile)
    taken = _plain(row, tier, facts) | set(row.harmless) | {"type"}
    if tier["type"] == "obj":
        store = tier.get("store_config")
        taken.add("store_config")
        _take(facts, "cache.location", _object_store(store) if isinstance(store, Mapping) else 0)
    used |= {"spec_name", "secondary_tiers"}
    if left := {key: value for key, value in tier.items() if key not in taken}:
        facts.rest["secondary_tier"] = left
    return used


def _object_store(store: Mapping[str, Any]) -> str | None:
    bucket, endpoint = store.get("bucket"), store.get("endpoint_override")
    if not isinstance(bucket, str) or not isinstance(endpoint, str):
        return None
    scheme = store.get("scheme", "http")
    base = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    return f"{base.rstrip('/')}/{bucket}"


def _lmcache(environment: Mapping[str, Word], facts: CacheFacts) -> None:
    """LMCache in-process: environment variables or a YAML file (LMCache 0.5.6, lmcache/v1/config.py)."""
    if "LMCACHE_CONFIG_FILE" in environment or "LMCACHE_REMOTE_CONFIG_URL" in environment:
        for path in ("cache.location", "cache.chunk_size", "cache.serde"):
            facts.doubt(path, "the LMCache configuration file says it, and it was not given")
        return

    def setting(name: str, default: Any, path: str) -> Any:
        word = environment.get(f"LMCACHE_{name.upper()}")
        if word is None:
            return default
        if word.expansions:
            facts.doubt(path, f"LMCACHE_{name.upper()} is set to {word.expansions[0]}")
            return None
        return word.text.strip().strip("'\"") or default

    chunk = setting("chunk_size", _LMCACHE_CHUNK, "cache.chunk_size")
    if chunk is not None:
        if str(chunk).isdigit():
            facts.settle("cache.chunk_size", int(chunk))
        else:
            facts.doubt("cache.chunk_size", "LMCACHE_CHUNK_SIZE is not an integer")
    remote = setting("remote_url", None, "cache.location")
    disk = setting("local_disk", None, "cache.location")
    doubted = any(path == "cache.location" for path, _ in facts.unknown)
    if not doubted:
        facts.tiers = [tier for tier in (remote, disk) if tier]  # both hold blocks, and both are read
        facts.settle("cache.location", facts.tiers[0] if facts.tiers else None)
    serde = setting("remote_serde", _LMCACHE_SERDE, "cache.serde")
    if serde is not None:
        facts.settle("cache.serde", serde)
