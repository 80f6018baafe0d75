"""LMCache inside the engine: its configuration file, its environment, and what the engine's line lays over them.

Source: LMCache 0.5.6, lmcache/integration/vllm/utils.py (the file first, then the environment over it),
lmcache/integration/vllm/vllm_v1_adapter.py:503 (then ``lmcache.*`` of the connector's settings), lmcache/v1/config.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.deployments.launch.cache_facts import CacheFacts
from kvgate.deployments.launch.filled import filled_word
from kvgate.deployments.launch.partly_known import label_in
from kvgate.deployments.launch.secrets import clean
from kvgate.deployments.launch.shell import Word
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

CONFIG_FILE = "LMCACHE_CONFIG_FILE"
# lmcache/v1/config.py: what is not set means.
_CHUNK = 256
_SERDE = "naive"
# Whatever of these is set holds blocks that outlive the worker, and is read from.
_TIERS = ("remote_url", "local_disk", "gds_path")
# What makes further stores, or reads those of peers, under names that nothing here knows (lmcache 0.5.6,
# v1/storage_backend/__init__.py:55-292, v1/config.py:348, 446, 451).
_MORE_STORES = (
    "storage_plugins",
    "external_backends",
    "remote_storage_plugins",
    "maru_path",
    "enable_p2p",
    "enable_pd",
    "enable_xpyd",
    "pd_role",
    "audit_actual_remote_url",
)
_MORE_IN_EXTRA = ("nixl_", "enable_nixl", "audit_actual_remote_url", "storage_plugin.", "remote_storage_plugin.")
_THROUGH_ANOTHER = ("audit://", "plugin://")
_OFF = frozenset({"", "false", "0", "no", "off", "none", "null", "[]", "{}"})
_EXTRA = "lmcache."


def with_config_file(environment: Mapping[str, Word], files: Mapping[str, bytes], source: str) -> dict[str, Word]:
    """Return the environment with the settings of LMCache's file in it, as the variables that would set them.

    The file's name is left out then. A variable that is there wins. Where the file is not known, nothing changes.

    Args:
        environment: what the engine is started with.
        files: content of files by the name that the engine uses.
        source: what to call the launch file in errors.

    Raises:
        InputError: the file is not well-formed, or no mapping.
    """
    named = environment.get(CONFIG_FILE)
    if named is None or named.expansions or named.text not in files:
        return dict(environment)
    where = f"{source}: {named.text}"
    document, _ = parse_document(files[named.text], where)
    if document is not None and not isinstance(document, Mapping):
        raise InputError("an LMCache configuration is a mapping of settings", where=where)
    given = document or {}
    settings, dropped = clean(given)
    found = {name: word for name, word in environment.items() if name != CONFIG_FILE}
    for key, value in settings.items():
        if value is not None or key == "remote_serde":
            found.setdefault(f"LMCACHE_{str(key).upper()}", filled_word(_as_text(value)))
    if dropped:  # what is left of a setting that lost a part is not what the engine has
        for key in given:
            if settings.get(key, ...) != given[key]:
                found[f"LMCACHE_{str(key).upper()}"] = Word("", ("a credential, which was left out",))
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def read_lmcache(
    extra: Mapping[str, Any], environment: Mapping[str, Word], facts: CacheFacts, labels: Sequence[str] = ()
) -> set[str]:
    """Settle what LMCache's settings say of the store; return the keys of ``extra`` that were used.

    Args:
        extra: ``kv_connector_extra_config``, without credentials.
        environment: the environment, without credentials.
        facts: where to write to.
        labels: what a shell fills in where it stands in ``extra``.
    """
    over = {
        key.removeprefix(_EXTRA): Word(_as_text(value), tuple(filter(None, [label_in(value, labels)])))
        for key, value in extra.items()
        if key.startswith(_EXTRA) and value is not None
    }
    if CONFIG_FILE in environment or "LMCACHE_REMOTE_CONFIG_URL" in environment:
        for path in ("cache.location", "cache.chunk_size", "cache.serde"):
            facts.doubt(path, "the LMCache configuration file says it, and it was not given")
        return set()

    def setting(name: str, default: Any, path: str) -> Any:
        word = over.get(name) or environment.get(f"LMCACHE_{name.upper()}")
        if word is None:
            return default
        if word.expansions:
            facts.doubt(path, f"LMCACHE_{name.upper()} is set to {word.expansions[0]}")
            return None
        return word.text.strip().strip("'\"") or default

    chunk = setting("chunk_size", _CHUNK, "cache.chunk_size")
    if chunk is not None:
        if str(chunk).isdigit():
            facts.settle("cache.chunk_size", int(chunk))
        else:
            facts.doubt("cache.chunk_size", "LMCACHE_CHUNK_SIZE is not an integer")
    tiers = [setting(name, None, "cache.location") for name in _TIERS]
    if str(setting("remote_url", "", "cache.location")).lower().startswith(_THROUGH_ANOTHER):
        facts.doubt(
            "cache.location", "LMCACHE_REMOTE_URL names another store's driver, and what that is given elsewhere"
        )
    for name in _MORE_STORES:
        if str(setting(name, "", "cache.location")).lower() not in _OFF:
            facts.doubt(
                "cache.location", f"LMCACHE_{name.upper()} is set, and where else blocks lie is not read from it"
            )
    if (named := _store_in(setting("extra_config", "", "cache.location"))) is not None:
        facts.doubt(
            "cache.location", f"LMCACHE_EXTRA_CONFIG has {named}, and where else blocks lie is not read from it"
        )
    doubted = any(path == "cache.location" for path, _ in facts.unknown)
    if not doubted:
        # All hold blocks, and all are read; several folders of a tier stand one after the other.
        facts.tiers = [part.strip() for tier in tiers if tier for part in str(tier).split(",") if part.strip()]
        facts.settle("cache.location", facts.tiers[0] if facts.tiers else None)
    serde = setting("remote_serde", _SERDE, "cache.serde")
    if serde is not None:
        facts.settle("cache.serde", serde)
    return {f"{_EXTRA}{name}" for name in ("chunk_size", *_TIERS, "remote_serde") if name in over}


def _store_in(text: str | None) -> str | None:
    """Return the first key of LMCache's further settings that makes a store, or what may; ``None``: none does."""
    if not text or text.lower() in _OFF:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return "what is no JSON object"
    on = (key for key, value in found.items() if str(value).lower() not in _OFF)
    return next((key for key in on if key.startswith(_MORE_IN_EXTRA)), None)
