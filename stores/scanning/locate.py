"""From a location, as people and manifests write it, to the store there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from kvgate.rules.credentials import holds_credential
from kvgate.rules.errors import UsageError
from kvgate.stores.scanning.entries import Store
from kvgate.stores.scanning.folder import FolderStore
from kvgate.stores.scanning.redis_store import SCHEMES, RedisStore

_KINDS = "a folder, or redis://host:port/database"
_FILES = ("file", "fs")
_PORT = "6379"
_SLIPPED = re.compile(rf"(?:^|/)(?:{'|'.join(SCHEMES)}):", re.IGNORECASE)  # redis:/:password@host


def open_store(location: str, password: str | None = None) -> Store:
    """Return the store at a location: a folder, ``file://`` or ``fs://`` and its path, or a Redis URL.

    Args:
        location: where it is.
        password: of a server whose URL holds none.

    Raises:
        InputError: there is no such folder, or it is not well-formed.
        UsageError: a store of this kind is not read, or it takes a package that is not installed, or what should name
            a folder is a URL with a slip in it, or holds a credential.

    """
    scheme, mark, rest = location.partition("://")
    if not mark and (holds_credential(location) or _SLIPPED.search(location)):
        raise UsageError("is no folder, and no URL of a server", where="LOCATION", hint=_KINDS)
    if not mark:
        return FolderStore(Path(location))
    if scheme.lower() in _FILES:
        return FolderStore(Path(rest if rest.startswith("/") else f"/{rest.partition('/')[2]}"))
    if scheme.lower() in SCHEMES:
        return RedisStore(location, password)
    shown = scheme if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,30}", scheme) else "..."
    raise UsageError(f"stores at {shown}:// are not read", where="LOCATION", hint=_KINDS)


def same_place(first: str, second: str) -> bool:
    """Whether two locations spell one place: a folder, or one database of a server.

    Two names that are not spelled alike may still name one place, and then the answer is no.
    """
    place = _place(first)
    return place is not None and place == _place(second)


def _place(location: str) -> tuple[str, str] | None:
    """Return host and path in one spelling; ``None`` where a path leads on by links or is relative."""
    scheme, mark, rest = location.partition("://")
    if not mark or scheme.lower() in _FILES:
        path = (rest if rest.startswith("/") else f"/{rest.partition('/')[2]}") if mark else location
        return ("", posixpath.normpath(path)) if path.startswith("/") and ".." not in path.split("/") else None
    host, _, path = rest.rpartition("@")[2].partition("?")[0].partition("/")
    if scheme.lower() not in SCHEMES or not host or ".." in path:
        return None
    return host.lower() if ":" in host else f"{host.lower()}:{_PORT}", path.strip("/") or "0"
