"""Where a store, or a folder that a line names, is for everybody: paths in a container become what is mounted there."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kvgate.deployments.launch.containers import Mount
from kvgate.deployments.launch.secrets import clean_text

_FILE = "file://"
_VOLUME = "volume:"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path of the server's leads.

    Attributes:
        value: a URL, a path of the host, or ``volume:NAME/rest``; empty where it is not known.
        reason: why it is not known.
        note: what a reader should know about it.
        inside: it is the container's own, and ends with it.
    """

    value: str
    reason: str | None = None
    note: str | None = None
    inside: bool = False


_RELATIVE = Place("", "it is relative to the folder that the engine is started in")


def located(store: str, mounts: Sequence[Mount] | None) -> Place:
    """Say where a store is.

    Args:
        store: a URL or path as the server sees it.
        mounts: what is mounted in its container; ``None``: it runs in none.
    """
    prefix = _FILE if store.startswith("file:///") else ""
    path = store.removeprefix(prefix)
    if not path.startswith("/"):
        # A URL, or a server by its address (`host:50051`).
        addressed = ":" in path.removeprefix(_FILE).split("/")[0]
        return Place(store.rstrip("/") if "://" in store else store) if addressed else _RELATIVE
    if ".." in path.split("/"):
        return Place("", "its path goes through `..`, and where that leads depends on links")
    path = _normal(path)
    if mounts is None:
        return Place(prefix + path)
    covering = [mount for mount in mounts if _covers(mount, path) or _open_target(mount)]
    if any(_open_target(mount) for mount in covering):
        return Place("", "the shell fills in what is mounted, and where")
    if not covering:
        note = f"{path} is inside the container, and ends with it: nothing is mounted there"
        return Place(prefix + path, note=note, inside=True)
    longest = max(len(PurePosixPath(_normal(mount.target)).parts) for mount in covering)
    mount = [one for one in covering if len(PurePosixPath(_normal(one.target)).parts) == longest][-1]
    return _through(mount, path, prefix)


def on_the_host(path: str, mounts: Sequence[Mount] | None) -> Place:
    """Say where files that a line names are on a machine that mounts what the line says.

    Args:
        path: as the server sees it.
        mounts: what is mounted in its container; ``None``: it runs in none.
    """
    if not path.startswith("/"):
        return _RELATIVE
    place = located(path, mounts)
    if place.inside:
        return Place("", "it is inside the container, and no folder of the host is mounted there")
    if place.value.startswith(_VOLUME):
        return Place("", f"it is in the {place.value.partition('/')[0].replace(':', ' ')}")
    if place.value and not place.value.startswith("/"):
        return Place("", f"it is at {place.value}, in the folder of whoever starts the container")
    return replace(place, note=None)


def _through(mount: Mount, path: str, prefix: str) -> Place:
    target = _normal(mount.target)
    shown = clean_text(target) or "..."
    if mount.expansions:
        return Place("", f"what is mounted at {shown} is not known: {mount.expansions[0]}")
    if mount.source is None:
        return Place(prefix + path, note=f"{path} is inside the container, and ends with it", inside=True)
    source = clean_text(mount.source)
    if source is None or source != mount.source:
        return Place("", f"what is mounted at {shown} looks like a credential and was left out")
    rest = PurePosixPath(path).relative_to(target).as_posix()
    rest = "" if rest == "." else f"/{rest}"
    if mount.volume:
        return Place(f"{_VOLUME}{source}{rest}")
    if not source.startswith(("/", "~")):
        return Place("", f"a relative path is mounted at {shown}, and of which folder is not known")
    if ".." in source.split("/"):
        return Place("", f"the path mounted at {shown} goes through `..`, and where that leads depends on links")
    host = _normal(f"{source}{rest}")
    note = None if host == path else f"the store {path} of the container is {host} outside it"
    return Place(prefix + host, note=note)


def one_location(places: Sequence[str]) -> str:
    """Name one store by its place, several by all of them in their order.

    The brackets keep several from being taken for one URL that ends in a name of its own: that says nothing of
    the others.
    """
    return places[0] if len(places) == 1 else f"[{' + '.join(places)}]"


def _covers(mount: Mount, path: str) -> bool:
    return mount.target.startswith("/") and PurePosixPath(path).is_relative_to(_normal(mount.target))


def _open_target(mount: Mount) -> bool:
    return any(label in mount.target for label in mount.expansions)


def _normal(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}" if path.startswith("/") else path)
