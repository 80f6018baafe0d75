"""Dynamo's KV block manager inside an engine: which store its variables name.

Source: ai-dynamo/dynamo, docs/kvbm/kvbm_g4_object_storage.md at 5ab13c0 and docs/kvbm/kvbm_guide.md at 547bcde: blocks
go to memory, then to files below a folder, then to an object store whose bucket may be one for each worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.deployments.launch.cache_facts import CacheFacts
from kvgate.deployments.launch.shell import Word

CONNECTOR = "dynamo-kvbm"
MODULE = "kvbm."
_TRUE = frozenset({"1", "true"})
_ENABLED, _BUCKET, _ENDPOINT, _FOLDER = (
    f"DYN_KVBM_{name}" for name in ("OBJECT_ENABLED", "OBJECT_BUCKET", "OBJECT_ENDPOINT", "DISK_CACHE_DIR")
)
_DISK = ("DYN_KVBM_DISK_CACHE_GB", "DYN_KVBM_DISK_CACHE_OVERRIDE_NUM_BLOCKS")
_USUAL_FOLDER = "/tmp"  # noqa: S108 - what KVBM itself takes


def read_kvbm(environment: Mapping[str, Word], facts: CacheFacts) -> None:
    """Settle where blocks are kept that outlive the worker's memory.

    Args:
        environment: the worker's variables, without credentials.
        facts: where to write to.
    """
    path = "cache.location"
    for name in (_ENABLED, _BUCKET, _ENDPOINT, _FOLDER, *_DISK):
        word = environment.get(name)
        if word is not None and word.expansions:
            facts.doubt(path, f"{name} is set to {word.expansions[0]}")
            return
    given = {name: word.text.strip() for name, word in environment.items()}
    if given.get(_ENABLED, "").lower() in _TRUE:
        bucket, endpoint = given.get(_BUCKET), given.get(_ENDPOINT, "")
        if not bucket:
            facts.doubt(path, f"{_ENABLED} is set, and {_BUCKET} is not")
            return
        store = f"{endpoint.rstrip('/')}/{bucket}" if endpoint else f"s3://{bucket}"
        facts.tiers = [store, *_folder(given)]
    else:
        facts.tiers = _folder(given)
    facts.settle(path, facts.tiers[0] if facts.tiers else None)
    if not facts.tiers:
        facts.notes.append("KVBM keeps blocks in the worker's memory alone: no folder or bucket is set for them")


def _folder(given: Mapping[str, str]) -> list[str]:
    """Return the folder of the disk tier, where there is one."""
    sized = any(given.get(name, "") not in ("", "0") for name in _DISK)
    return [given.get(_FOLDER) or _USUAL_FOLDER] if sized else []
