"""Places where entries lie: the tiers of a location, and whether two locations name places of their own."""

from __future__ import annotations

import posixpath

_PATHS = frozenset({"", "file", "fs"})
_BUCKETS = frozenset({"s3", "gs"})
_DEFAULT_PORT, _DEFAULT_DATABASE = "6379", "0"  # of Redis: what clients take where a URL names none


def tiers(location: str) -> list[str]:
    """Return the places of a location: a store with several tiers is captured as ``[one + other]``."""
    listed = location.startswith("[") and location.endswith("]")
    return location[1:-1].split(" + ") if listed else [location]


def named_apart(first: object, second: object) -> bool:
    """Whether two locations name other places, in whatever spelling, and share no tier.

    Other names are no proof: a host has aliases and a folder has links. So this is for the pools of one deployment,
    which somebody filed apart on purpose, and never for an old deployment and a new one.
    """
    if not isinstance(first, str) or not isinstance(second, str):
        return False
    return all(_differ(_place(one), _place(other)) for one in tiers(first) for other in tiers(second))


def _place(tier: str) -> tuple[str, str, str]:
    """Return kind, host and path of one tier, in one spelling."""
    scheme, mark, rest = tier.strip().partition("://")
    if not mark:
        scheme, rest = "", tier.strip()
    if (scheme := scheme.lower()) in _PATHS:
        path = rest if not mark or rest.startswith("/") else rest.partition("/")[2]
        return "path", "", posixpath.normpath("/" + path)
    host, _, path = rest.rpartition("@")[2].lower().partition("/")
    if scheme in _BUCKETS:
        return scheme, host, posixpath.normpath("/" + path)
    # Two schemes may speak to one server (redis and rediss), so the scheme tells nothing apart.
    return "server", host if ":" in host else f"{host}:{_DEFAULT_PORT}", path.strip("/") or _DEFAULT_DATABASE


def _differ(first: tuple[str, str, str], second: tuple[str, str, str]) -> bool:
    """Whether two places are apart; a folder holds those inside it."""
    if first[:2] != second[:2]:
        return True
    if first[0] == "server":
        return first[2] != second[2]
    inside = [f"{place[2].rstrip('/')}/" for place in (first, second)]
    return not inside[0].startswith(inside[1]) and not inside[1].startswith(inside[0])
