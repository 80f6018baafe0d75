"""Which pool of a deployment a worker is of: it is held against each, and never against what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.probes.readiness.items import Item
from kvgate.rules.errors import UsageError
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import Pool, pools

_NAMED = 8  # pools in one line


@dataclass(frozen=True)
class Fit:
    """What a worker answered, held against one pool.

    Attributes:
        pool: the pool; the deployment itself where it has none.
        items: what was compared.
    """

    pool: Pool
    items: tuple[Item, ...]

    @property
    def differing(self) -> int:
        """How many items are not as that pool has them."""
        return sum(item.state == "differs" for item in self.items)


def asked_pools(manifest: Manifest, name: str | None) -> tuple[Pool, ...]:
    """Return the pools that a worker may be of: all, or the one that the operator names.

    Raises:
        UsageError: there is no such pool.
    """
    found = pools(manifest)
    if name is None:
        return found
    named = tuple(pool for pool in found if pool.name == name)
    if not named:
        known = names_of(found)
        hint = f"pools: {listed(known)}" if known else "the deployment has no pools: leave it out"
        raise UsageError(f"there is no pool {name!r}", where="--pool", hint=hint)
    return named


def fitting(found: Sequence[Fit]) -> list[Fit]:
    """Return those from which nothing differs."""
    return [one for one in found if not one.differing]


def nearest(found: Sequence[Fit]) -> Fit:
    """Return the one from which least differs, the first by name where several are as near."""
    return min(found, key=lambda one: one.differing)


def pool_item(approved: Sequence[Pool], found: Sequence[Fit]) -> Item | None:
    """Say which pool a worker is of; ``None`` where there is one that it may be of, by the deployment or the operator.

    Args:
        approved: the pools that it may be of.
        found: what was held against those that come into question.
    """
    if len(approved) == 1:
        return None
    names = listed(names_of(approved))
    fits = fitting(found)
    if not fits:
        why = f"nearest: {nearest(found).pool.name}, which the other items are compared with"
        return Item("pool", "differs", why, names, "none of them")
    several = "nothing that was asked sets them apart; --pool NAME says which" if len(fits) > 1 else "no other fits"
    return Item("pool", "same", several, listed(names_of([one.pool for one in fits])))


def names_of(asked: Sequence[Pool]) -> list[str]:
    """Return the names of pools; none for a deployment that has none."""
    return [pool.name for pool in asked if pool.name is not None]


def listed(names: Sequence[str]) -> str:
    """Return names as a text, `a, b or c`; no more than a line holds."""
    shown = [*names[:_NAMED], f"{len(names) - _NAMED} more"] if len(names) > _NAMED else list(names)
    return " or ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
