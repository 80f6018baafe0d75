"""``--kv-transfer-config``: which store outlives the worker, where it is, and what keeps it apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.aibrix import CONNECTOR as AIBRIX
from kvgate.deployments.launch.aibrix import read_aibrix
from kvgate.deployments.launch.cache_facts import CACHE_PATHS, CacheFacts
from kvgate.deployments.launch.kvbm import CONNECTOR as KVBM
from kvgate.deployments.launch.kvbm import read_kvbm
from kvgate.deployments.launch.lmcache import read_lmcache
from kvgate.deployments.launch.partly_known import label_in
from kvgate.deployments.launch.shell import Word
from kvgate.rules.document import parse_document

# Of an object store: where it is, and how it is reached.
_STORE_KEYS = frozenset({"bucket", "endpoint_override", "scheme", "region", "ca_bundle"})
_EXTRA = "kv_connector_extra_config"
_LMCACHE = ("lmcache", "lmcache-mp")
_SERVER_SAYS = "the LMCache server says it, not the engine"


class Connector(BaseModel):
    """One row of the connector table; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: str | None
    why: str | None = None
    module: str | None = None
    variable: str | None = None
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
    specs: dict[str, Connector] = Field(default_factory=dict)
    harmless: list[str]


@cache
def connector_table(engine: str) -> ConnectorTable:
    """Return the table of an engine's connectors."""
    name = f"{engine}_connectors.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return ConnectorTable.model_validate(document)


def no_connector() -> CacheFacts:
    """Return the facts of a line without ``--kv-transfer-config``: nothing outlives the worker."""
    return CacheFacts(dict.fromkeys(CACHE_PATHS))


def undecided(reason: str) -> CacheFacts:
    """Return the facts of a line whose connector cannot be read."""
    return CacheFacts(unknown=[(path, reason) for path in CACHE_PATHS])


def only_in_addresses(config: Mapping[str, Any], labels: Sequence[str]) -> bool:
    """Whether a shell fills in nothing but what says where a store is: LMCache's settings, a folder, a prefix."""
    extra, name = _extra(config), config.get("kv_connector")
    if not extra or not isinstance(name, str) or label_in({**config, _EXTRA: None}, labels):
        return False
    row = _row(name, config)
    own = (row.location, row.namespace)
    filled = [key for key, value in extra.items() if label_in(value, labels)]
    return all(key.startswith("lmcache.") if row.profile in _LMCACHE else key in own for key in filled)


def _extra(config: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = config.get(_EXTRA)
    return extra if isinstance(extra, Mapping) else {}


def read_connector(
    config: Mapping[str, Any], environment: Mapping[str, Word], labels: Sequence[str] = ()
) -> CacheFacts:
    """Read a parsed ``--kv-transfer-config``, after its credentials were dropped.

    Args:
        config: the JSON object.
        environment: the environment that the line sets; LMCache is configured there.
        labels: what a shell fills in, where :func:`only_in_addresses` holds: what it stands in is unknown.
    """
    table = connector_table("vllm")
    extra = _extra(config)
    name = config.get("kv_connector")
    if not isinstance(name, str) or not name:
        return no_connector()
    facts = no_connector()
    facts.rest = {
        key: value for key, value in config.items() if key not in ("kv_connector", _EXTRA, "kv_role", *table.harmless)
    }
    row = _row(name, config)
    facts.settle("cache.connector", row.profile or name)
    used = set(row.harmless)
    if row.profile is None:
        facts.notes.append(f"the connector {name} is kept by its name: {row.why}")
    if name == "OffloadingConnector":
        used |= _offloading(extra, facts)
    elif row.profile == "lmcache":
        used |= read_lmcache(extra, environment, facts, labels)
    elif row.profile == "lmcache-mp":
        for path in ("cache.location", "cache.chunk_size", "cache.serde"):
            facts.doubt(path, _SERVER_SAYS)
    elif row.profile == KVBM:
        read_kvbm(environment, facts)
    elif row.profile == AIBRIX:
        read_aibrix(environment, facts)
    else:
        used |= _plain(row, extra, facts, labels)
    if row.profile == "vllm-mooncake":
        facts.doubt("cache.location", "the file named by MOONCAKE_CONFIG_PATH says it")
    left = {key: value for key, value in extra.items() if key not in used and key not in table.harmless}
    if (label := label_in(left, labels)) is not None:
        facts.doubt("engine.args", f"--kv-transfer-config holds {label}, which the shell fills in")
    elif left:
        facts.rest[_EXTRA] = left
    role = config.get("kv_role")
    if role in ("kv_producer", "kv_consumer"):
        facts.split_roles = True
        facts.rest["kv_role"] = role
    return facts


def offloading_flags(backend: str, config: Mapping[str, Any], environment: Mapping[str, Word]) -> CacheFacts:
    """Return the facts of ``--kv-offloading-size`` with its backend, which vLLM turns into a connector.

    It takes the place of the one that ``--kv-transfer-config`` names; the further settings there stay.

    Source: vllm/config/vllm.py, ``_post_init_kv_transfer_config``, 0.32.0 and 0.33.0.

    Args:
        backend: ``native`` or ``lmcache``.
        config: what ``--kv-transfer-config`` holds, without credentials; empty where it is not given.
        environment: the environment that the line sets.
    """
    name = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}.get(backend)
    if name is None:
        return undecided(f"--kv-offloading-backend {backend} is none that kvgate knows")
    return read_connector({**config, "kv_connector": name, "kv_role": "kv_both"}, environment)


def _row(name: str, config: Mapping[str, Any]) -> Connector:
    module = config.get("kv_connector_module_path")
    row = connector_table("vllm").connectors.get(name)
    package = str(module).split(".")[0] if module else None
    # A class from elsewhere may bear any name; LMCache ships its own newer copy of vLLM's two connectors.
    if package not in (None, "lmcache") and (row is None or package != row.module):
        return Connector(profile=None, why="its class is loaded from another module")
    return row or Connector(profile=None, why="vLLM 0.33.0 has no connector of this name")


def _plain(row: Connector, extra: Mapping[str, Any], facts: CacheFacts, labels: Sequence[str] = ()) -> set[str]:
    used: set[str] = set()
    for path, key in (("cache.location", row.location), ("cache.namespace", row.namespace)):
        if key is not None and (label := label_in(extra.get(key), labels)) is not None:
            facts.doubt(path, f"{key} holds {label}, which the shell fills in")
            used.add(key)
        elif key is not None:
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
    table = connector_table("vllm")
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
    spec = table.specs.get(str(extra.get("spec_name")))
    if spec is not None and str(extra.get("spec_module_path")).split(".")[0] == spec.module:
        return used | _from_elsewhere(spec, extra, facts)
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
    left = {key: value for key, value in tier.items() if key not in taken}
    if tier["type"] == "obj" and (more := _object_store(left.pop("store_config", None), facts)) is not None:
        left["store_config"] = more
    used |= {"spec_name", "secondary_tiers"}
    if left:
        facts.rest["secondary_tier"] = left
    return used


def _from_elsewhere(row: Connector, extra: Mapping[str, Any], facts: CacheFacts) -> set[str]:
    """Read the settings of a specification from another package, which a profile describes for files alone."""
    used = {"spec_name", "spec_module_path", *row.harmless}
    if extra.get("backend", "POSIX") != "POSIX":
        facts.notes.append("its backend keeps blocks elsewhere than in files, and no profile describes it")
        return used - {"spec_name", "spec_module_path"}
    facts.notes[:] = []
    facts.settle("cache.connector", row.profile)
    if "block_size" not in extra:
        facts.doubt("cache.chunk_size", "the specification's own default differs by release")
    return used | _plain(row, extra, facts) | {"backend"}


def _object_store(store: Any, facts: CacheFacts) -> Any:
    """Settle where an object store is; return what else is said of it that counts.

    Source: vllm/v1/kv_offload/tiering/obj/config.py, ``ObjStoreConfig``, 0.32.0.
    """
    given = store if isinstance(store, Mapping) else {}
    bucket, endpoint, scheme = given.get("bucket"), given.get("endpoint_override"), given.get("scheme", "http")
    if not all(isinstance(one, str) and one for one in (bucket, endpoint, scheme)):
        facts.doubt("cache.location", "its store_config does not name bucket and endpoint")
        return store
    base = str(endpoint) if "://" in str(endpoint) else f"{scheme}://{endpoint}"
    facts.settle("cache.location", f"{base.rstrip('/')}/{bucket}")
    return {key: value for key, value in given.items() if key not in _STORE_KEYS} or None
