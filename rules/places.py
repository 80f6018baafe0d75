"""Places where entries lie: the tiers of a location, and whether two locations name places of their own."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

_BUCKETS = frozenset({"s3", "gs"})
_VOLUME = "volume:"  # a folder in a volume, as a capture of a container's mounts names it: volume:NAME/rest
_SOCKET = "unix"
_WITHOUT_HOSTS = frozenset({"", "file", "fs", _VOLUME, _SOCKET})
_WEB = frozenset({"http", "https"})
_DATABASES = frozenset({"redis", "rediss"})  # whose clients read the database in the path (redis-py, from_url)
_DEFAULT_PORTS = dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), 6379)
_ONE_OF_MANY = re.compile(r"sentinel|cluster")  # schemes whose host is one door of several to a store
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*|", re.ASCII)
_PLAIN = re.compile(r"[\w.@/-]*")  # whatever else a path holds may be a list, a query, a fragment or an expansion
_HOST = re.compile(r"(?:[\w.-]*@)?(\[[0-9a-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}")
_THIS = "localhost"  # one name for every address of this machine


def tiers(location: str) -> list[str]:
    """Return the places of a location: a store with several tiers is captured as ``[one + other]``."""
    listed = location.startswith("[") and location.endswith("]")
    return location[1:-1].split(" + ") if listed else [location]


def named_apart(first: object, second: object, prefixed: Collection[str]) -> bool:
    """Whether two locations name other places, in whatever spelling, and share no tier.

    Other names are no proof: a host has aliases and a folder has links. So this is for the pools of one deployment,
    which somebody filed apart on purpose, and never for an old deployment and a new one. Where one is written in a
    way of which nobody knows who reads what (a list, a query, an expansion), they are not known to be apart.

    Args:
        first: a location.
        second: another one.
        prefixed: the schemes of which both sides read the path: a bucket's prefix, the number of a database.
    """
    if not isinstance(first, str) or not isinstance(second, str):
        return False
    one, other = ([_place(tier, prefixed) for tier in tiers(location)] for location in (first, second))
    return all(a is not None and b is not None and _apart(a, b) for a in one for b in other)


def may_be_one_folder(first: object, second: object) -> bool:
    """Whether two names that are folders may be one, written in two ways; names without a slash are none."""
    if not isinstance(first, str) or not isinstance(second, str) or "/" not in first + second:
        return False
    one, other = _place(first, ()), _place(second, ())
    return one is None or other is None or one == other or (one.kind != other.kind and not _apart(one, other))


@dataclass(frozen=True)
class _Place:
    """One tier.

    Attributes:
        kind: what sort of place it is; ``web`` is a server that may serve buckets too.
        host: the server, bucket or volume; empty where there is none.
        port: of a server; ``None``: not known.
        path: the folder, socket, prefix or number of the database; ``None``: nothing says that it is read.
    """

    kind: Literal["folder", "relative", "volume", "bucket", "server", "web", "socket"]
    host: str = ""
    port: int | None = None
    path: str | None = None


def _place(tier: str, prefixed: Collection[str]) -> _Place | None:
    """Return one tier in one spelling; ``None`` where it is not plainly one place."""
    before, mark, after = tier.partition("://")
    scheme, rest = (before.lower(), after) if mark else ("", tier)
    if not mark and rest.startswith(_VOLUME):
        scheme, rest = _VOLUME, rest.removeprefix(_VOLUME)
    elif _SCHEME.fullmatch(scheme) is None or _ONE_OF_MANY.search(scheme):
        return None
    first, _, path = rest.partition("/")
    server = _HOST.fullmatch(first.lower())
    if _PLAIN.fullmatch(path) is None or ".." in (first, *path.split("/")) or (first and server is None):
        return None
    if scheme in _WITHOUT_HOSTS and not (scheme == "" and ":" in first):
        return _of_files(scheme, first, path, absolute=rest.startswith("/"))
    if server is None:
        return None
    name, port = _host(server[1]), int(server[2]) if server[2] else _DEFAULT_PORTS.get(scheme)
    if scheme in _BUCKETS:
        return _Place("bucket", name, path=_folder(path) if scheme in prefixed else None)
    database = _database(path) if scheme in _DATABASES and scheme in prefixed else None
    return _Place("web" if scheme in _WEB else "server", name, port, database)


def _of_files(scheme: str, first: str, path: str, *, absolute: bool) -> _Place | None:
    if scheme == _VOLUME:
        return _Place("volume", first, path=_folder(path)) if first and ":" not in first else None
    if scheme == _SOCKET:
        return _Place("socket", path=_folder(path)) if absolute else None
    if scheme == "" and not absolute:
        return _Place("relative", path=_folder(f"{first}/{path}"))
    # Two hosts may serve one folder, so the host of a file's URL tells nothing apart.
    return _Place("folder", path=_folder(path))


def _folder(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _database(path: str) -> str | None:
    """Return the number of a Redis database; ``None``: clients read no number there, and take the one they like."""
    number = path.rstrip("/") or "0"
    return str(int(number)) if _NUMBER.fullmatch(number) else None


def _host(name: str) -> str:
    """Return a host in one spelling: addresses as they are written shortest, this machine by one name."""
    name = name.strip("[]").removesuffix(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return _THIS if address.is_loopback or address.is_unspecified else str(address)


def _apart(first: _Place, second: _Place) -> bool:
    kinds = {first.kind, second.kind}
    if kinds <= {"server", "web"}:
        ports = first.port is not None and second.port is not None and first.port != second.port
        databases = first.path is not None and second.path is not None and first.path != second.path
        return ports or databases or _other_hosts(first.host, second.host)
    if len(kinds) > 1:
        # Of which folder a relative path is, and where a volume is mounted, is not known; a server may listen on the
        # socket, or serve the bucket.
        return not (
            "relative" in kinds
            or kinds in ({"web", "bucket"}, {"volume", "folder"})
            or ("socket" in kinds and kinds & {"server", "web"})
        )
    if first.kind == "bucket" and _other_hosts(first.host, second.host):
        return True
    if first.kind == "volume" and first.host != second.host:
        return True
    return first.path is not None and second.path is not None and _beside(first.path, second.path)


def _beside(first: str, second: str) -> bool:
    """Whether neither folder is the other, nor in it."""
    inside = [f"{path.rstrip('/')}/" for path in (first, second)]
    return not inside[0].startswith(inside[1]) and not inside[1].startswith(inside[0])


def _other_hosts(first: str, second: str) -> bool:
    """Whether two names are other hosts, as far as names tell.

    They do not where one may be short for the other (``cache`` for ``cache.example``), nor this machine from another,
    nor an address from a name.
    """
    if first.startswith(f"{second}.") or second.startswith(f"{first}."):
        return False
    return first != second and _THIS not in (first, second) and _is_address(first) == _is_address(second)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
