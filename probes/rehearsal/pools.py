"""A rehearsal of deployments with several pools: each old pool fills a store, and each new one comes up before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kvgate.probes.evaluation.prompts import Rendered
from kvgate.probes.rehearsal.backend import Backend
from kvgate.probes.rehearsal.claims import asks_of
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from kvgate.probes.rehearsal.seen import Part, Rehearsal
from kvgate.rules.evidence import State
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import Pool, pools
from kvgate.rules.progress import Progress, silent

_MOST = 16  # pairs of pools
_WORST_FIRST: tuple[State, ...] = ("refuted", "not-run", "inconclusive", "proved")


@dataclass(frozen=True)
class _Pair:
    name: str
    seen: Rehearsal


def rehearse_pools(
    old: Manifest,
    new: Manifest,
    backend: Callable[[Manifest, Manifest], Callable[[], Backend]],
    *,
    rendered: tuple[Rendered, Rendered] | None,
    size: Size,
    tear: bool = False,
    progress: Progress = silent,
) -> Rehearsal:
    """Stage every pair of pools, and say what was seen of all: proved only where each is.

    What the pools of one deployment read of each other is the new one's own affair, and is not staged.

    Args:
        old: the deployment that filled the store.
        new: the one that comes up in front of it.
        backend: makes what makes the back end of two deployments, each a pool or a whole.
        rendered: token ids of both sides' snapshots.
        size: how much is asked of each pair.
        tear: also whether half-written entries are taken for whole ones.
        progress: told how far it is.

    """
    sides = pools(old), pools(new)
    pairs = list(product(*sides))
    if len(pairs) == 1 and pairs[0][0].name is pairs[0][1].name is None:
        return rehearse(old, new, backend(old, new), rendered=rendered, size=size, tear=tear, progress=progress)
    if len(pairs) > _MOST:
        asks = asks_of(old, new)
        return Rehearsal(
            asks.claim, "not-run", f"{len(pairs)} pairs of pools are more than the {_MOST} that are staged"
        )
    found = []
    for before, after in pairs:
        made = backend(before.manifest, after.manifest)
        seen = rehearse(
            before.manifest, after.manifest, made, rendered=rendered, size=size, tear=tear, progress=progress
        )
        found.append(_Pair(f"{_named(before)} to {_named(after)}", seen))
        if seen.state == "refuted":
            break
    return _all(found)


def _named(pool: Pool) -> str:
    return pool.name or "the one pool"


def _all(pairs: Sequence[_Pair]) -> Rehearsal:
    """Put together what was seen of each pair; no more was shown of the whole than of the least of them."""
    worst = min(pairs, key=lambda pair: _WORST_FIRST.index(pair.seen.state))
    every = [pair.seen for pair in pairs]
    apart = {"pools": "what the new pools read of each other was not staged"}
    if worst.seen.state != "proved":
        reason = f"{worst.name}: {worst.seen.reason}"
        return replace(
            worst.seen, reason=reason, layers=None, missing={**worst.seen.missing, **apart}, torn=_worst(every)
        )
    return replace(
        worst.seen,
        reason=f"each of {len(pairs)} pairs of pools: {worst.seen.reason}",
        claim="separate" if any(seen.claim == "separate" for seen in every) else "reuse",
        control=_together([seen.control for seen in every]),
        isolation=_together([seen.isolation for seen in every]),
        equivalence=_together([seen.equivalence for seen in every]),
        tenants=_together([seen.tenants for seen in every]),
        torn=_worst(every),
        layers=None,
        staged={name: why for name, why in worst.seen.staged.items() if all(name in seen.staged for seen in every)},
        missing={name: why for seen in every for name, why in seen.missing.items()} | apart,
        asked=min(seen.asked for seen in every),
        longest=min(seen.longest for seen in every),
        of=tuple(one for one in worst.seen.of if all(one in seen.of for seen in every)),
        because=tuple(dict.fromkeys(one for seen in every for one in seen.because)),
    )


def _worst(every: Sequence[Rehearsal]) -> Part:
    """Return the worst of what became of torn entries: it is judged apart from what else was seen of a pair."""
    return min((seen.torn for seen in every), key=lambda part: ("failed", "open", "not-run", "held").index(part.state))


def _together(parts: Sequence[Part]) -> Part:
    ran = [part for part in parts if part.state != "not-run"]
    return replace(ran[0], hits=tuple(hit for part in ran for hit in part.hits)) if ran else parts[0]
