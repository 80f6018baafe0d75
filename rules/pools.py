"""The pools of a deployment: each is a deployment of its own that shares the store with the others while they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvgate.rules.manifest import Manifest, with_overrides


@dataclass(frozen=True)
class Pool:
    """One pool, as a manifest of its own.

    Attributes:
        name: its name; ``None`` for a deployment that has no pools, or whose pools are not known.
        manifest: the deployment with what the pool sets.
        overrides: the paths that it sets.
    """

    name: str | None
    manifest: Manifest
    overrides: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def pools(manifest: Manifest) -> tuple[Pool, ...]:
    """Return the pools of a deployment by name; the deployment itself where it has none."""
    roles: Mapping[str, Any] = manifest.value("roles") or {}
    if not roles:
        return (Pool(None, manifest),)
    return tuple(
        Pool(
            name,
            Manifest(with_overrides(manifest.data, role["set"]), manifest.source, manifest.sha256),
            frozenset(role["set"]),
        )
        for name, role in sorted(roles.items())
    )


def facing(old: Sequence[Pool], new: Sequence[Pool]) -> Iterator[tuple[Pool, Pool]]:
    """Pair pools by name; one without a counterpart faces every pool of the other side."""
    names = ({pool.name for pool in old}, {pool.name for pool in new})
    for mine in old:
        for other in new:
            if mine.name == other.name or mine.name not in names[1] or other.name not in names[0]:
                yield mine, other


def crossing(old: Sequence[Pool], new: Sequence[Pool]) -> Iterator[tuple[Pool, Pool]]:
    """Pair every old pool with every new one that it does not face (:func:`facing`).

    Pools of one deployment are judged against each other where it is judged alone. So these pairs are needed only
    where the new pools are not what the old ones were, in whatever: then what the old prefill pool left may have the
    very keys of the new decode pool, also where there is no new prefill pool in front of that store any more.
    """
    faced = {(mine.name, other.name) for mine, other in facing(old, new)}
    for mine in old:
        for other in new:
            if (mine.name, other.name) not in faced:
                yield mine, other


def overlap(path: str, other: str) -> bool:
    """Whether one of two manifest paths lies below the other, or is the same."""
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")
