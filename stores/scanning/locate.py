"""From a location, as people and manifests write it, to the store there."""

from __future__ import annotations

from pathlib import Path

from kvgate.rules.errors import UsageError
from kvgate.stores.scanning.entries import Store
from kvgate.stores.scanning.folder import FolderStore
from kvgate.stores.scanning.redis_store import SCHEMES, RedisStore

_FILES = ("file", "fs")


def open_store(location: str, password: str | None = None) -> Store:
    """Return the store at a location: a folder, ``file://`` or ``fs://`` and its path, or a Redis URL.

    Args:
        location: where it is.
        password: of a server whose URL holds none.

    Raises:
        InputError: there is no such folder, or it is not well-formed.
        UsageError: a store of this kind is not read, or it takes a package that is not installed.

    """
    scheme, mark, rest = location.partition("://")
    if not mark:
        return FolderStore(Path(location))
    if scheme.lower() in _FILES:
        return FolderStore(Path(rest if rest.startswith("/") else f"/{rest.partition('/')[2]}"))
    if scheme.lower() in SCHEMES:
        return RedisStore(location, password)
    raise UsageError(
        f"stores at {scheme}:// are not read", where="LOCATION", hint="a folder, or redis://host:port/database"
    )
