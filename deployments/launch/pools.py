"""Several servers of one model in one deployment: pools, and what each of them sets differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.rules.canonical import canonical_json
from kvgate.rules.errors import InputError

_ONE_ANSWER = (
    "engine",
    "model",
    "overrides",
    "adapters",
    "tokenizer",
    "tokenizer_revision",
    "chat_template",
    "remote_code",
    "language_model_only",
)
# What is settled by the checkpoint afterwards, once for all pools.
_SETTLED_LATER = frozenset(
    {"model.quantization", "request_features", "precision.compute", "precision.kv_cache", "precision.kv_scales"}
)


def pools_differ_in(pools: Sequence[LaunchFacts]) -> str | None:
    """Name what keeps servers from being pools of one deployment: another model, template, adapters."""
    for name in _ONE_ANSWER:
        if any(getattr(one, name) != getattr(pools[0], name) for one in pools[1:]):
            return name.replace("_", " ")
    return None


def with_workers(leader: LaunchFacts, workers: Sequence[LaunchFacts]) -> LaunchFacts:
    """Return a server's facts without what a worker of its own group, which computes with it, has otherwise.

    Args:
        leader: the server that answers requests.
        workers: what the lines of the others say that join it (``--headless``).

    Raises:
        InputError: one of them serves another model, or with another template, tokenizer, or adapters.
    """
    unknown = dict(leader.unknown)
    for worker in workers:
        if (why := pools_differ_in([leader, worker])) is not None:
            raise InputError(
                f"works for {leader.source} with another {why}",
                where=worker.source,
                hint="give every pod of a group the same",
            )
        reason = f"{worker.source} works for the same server and has it otherwise"
        told = dict(worker.unknown)
        for path in {*leader.values, *worker.values, *told}:
            alike = (path in leader.values) == (path in worker.values) and leader.values.get(path) == worker.values.get(
                path
            )
            if path in told or not alike or (path in leader.pending) != (path in worker.pending):
                unknown.setdefault(path, reason)
    known = {path: value for path, value in leader.values.items() if path not in unknown}
    pending = tuple(path for path in leader.pending if path not in unknown)
    return replace(leader, values=known, pending=pending, unknown=tuple(unknown.items()))


def _unknown(pools: Mapping[str, LaunchFacts]) -> dict[str, str]:
    """Return what a pool leaves unknown and why; of whom, where it is not the same of all."""
    reasons = {name: {path: why for path, why in one.unknown if path != "roles"} for name, one in pools.items()}
    unknown: dict[str, str] = {}
    for path in dict.fromkeys(path for found in reasons.values() for path in found):
        said = {name: found[path] for name, found in reasons.items() if path in found}
        alike = len(set(said.values())) == 1 and len(said) == len(pools)
        each = "; ".join(f"{name}: {why}" for name, why in sorted(said.items()))
        unknown[path] = next(iter(said.values())) if alike else each
    return unknown


def as_pools(pools: Mapping[str, LaunchFacts], source: str) -> LaunchFacts:
    """Return one deployment whose ``roles`` hold what its pools set differently.

    What one of them leaves unknown is unknown, and so is a difference in what the checkpoint settles later.

    Args:
        pools: the facts by the name of the pool; :func:`pools_differ_in` finds nothing.
        source: what to call them together.
    """
    ordered = sorted(pools)
    first = pools[ordered[0]]
    unknown = _unknown(pools)
    pending = {path for one in pools.values() for path in one.pending}
    sets: dict[str, dict[str, Any]] = {name: {} for name in ordered}
    for path in sorted({path for one in pools.values() for path in one.values} - {"roles"}):
        given = {name: one.values[path] for name, one in pools.items() if path in one.values}
        if len({canonical_json(value) for value in given.values()}) == 1 and len(given) == len(pools):
            continue
        if path in pending or path in _SETTLED_LATER or len(given) < len(pools):
            unknown.setdefault(path, f"the pools {' and '.join(ordered)} differ in it, or one does not tell")
            continue
        for name, value in given.items():
            sets[name][path] = value
    for path in pending:
        if not all(path in one.pending for one in pools.values()):
            unknown.setdefault(path, f"the pools {' and '.join(ordered)} differ in it")
    roles = [{"name": name, "set": sets[name]} for name in ordered]
    values = {path: value for path, value in first.values.items() if path not in unknown}
    return replace(
        first,
        source=source,
        values={**values, "roles": roles},
        pending=tuple(path for path in first.pending if path not in unknown),
        unknown=tuple(unknown.items()),
        ignored=tuple(sorted({name for one in pools.values() for name in one.ignored})),
        notes=tuple(dict.fromkeys(note for one in pools.values() for note in one.notes)),
    )
