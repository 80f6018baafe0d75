"""``kvgate fingerprint --endpoint``: what a running engine holds, rank by rank, and whether it is a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.rules.progress import Progress
    from kvgate.weights.fingerprint import Fingerprint
    from kvgate.weights.served.compare import ServedComparison
    from kvgate.weights.served.report import ServedRank

DIFFERENT, UNKNOWN = 10, 11
NAMED = 5  # tensors that the text names of each list


def fingerprint_served(
    endpoint: str, key: str | None, against: Path | None, *, as_json: bool, quiet: bool, progress: Progress
) -> tuple[str, int]:
    """Ask a running engine, and compare it with a checkpoint where one is given.

    Returns:
        What to print, and the exit code: 0, 10 (it holds other weights), or 11 (not known: a rank whose weights
        cannot be read, or tensors that could not be compared).

    Raises:
        InputError: as :func:`kvgate.deployments.served.ask_served`; the checkpoint cannot be read.
    """
    from kvgate.cli.listing import as_json as json_text
    from kvgate.deployments.served import ask_served

    stored = None if against is None else _stored(against, progress)  # before an engine is set to work for nothing
    progress("asking the engine", 0, None, "ranks")
    ranks = ask_served(endpoint, key)
    found = None if against is None or stored is None else _compared(ranks, against, stored)
    state = _state(ranks, found)
    code = {"equal": 0, "different": DIFFERENT, "unknown": UNKNOWN}[state]
    if quiet:
        return (f"{state}\n" if found is not None else "".join(f"{_digest(rank)}\n" for rank in ranks)), code
    if as_json:
        return json_text(_data(ranks, against, found, state)), code
    return "".join(f"{line}\n" for line in _lines(ranks, against, found, state)), code


def _stored(against: Path, progress: Progress) -> Fingerprint:
    from kvgate.deployments.config import effective_config, read_config
    from kvgate.weights.fingerprint import fingerprint_checkpoint

    config = effective_config(read_config(against)).config if (against / "config.json").exists() else None
    return fingerprint_checkpoint(against, config, progress)


def _compared(ranks: Sequence[ServedRank], against: Path, stored: Fingerprint) -> ServedComparison:
    from kvgate.weights.served.compare import compare_with_checkpoint
    from kvgate.weights.served.stretches import CheckpointStretches

    return compare_with_checkpoint(ranks, stored.entries, CheckpointStretches(against))


def _state(ranks: Sequence[ServedRank], found: ServedComparison | None) -> str:
    if found is None:
        return "unknown" if any(rank.unreadable for rank in ranks) else "equal"
    return "equal" if found.equal else "different" if found.different else "unknown"


def _digest(rank: ServedRank) -> str:
    return "unreadable" if rank.unreadable else rank.digest()


def _data(
    ranks: Sequence[ServedRank], against: Path | None, found: ServedComparison | None, state: str
) -> dict[str, Any]:
    first = ranks[0]
    data: dict[str, Any] = {
        "engine": first.engine,
        "engine_version": first.engine_version,
        "architecture": first.architecture,
        "form": first.form,
        "ranks": [
            {
                "rank": rank.world.rank,
                "digest": None if rank.unreadable else rank.digest(),
                "tensors": len(rank.tensors),
                "tensor_parallel": rank.tensor_parallel.model_dump(),
                "pipeline_parallel": rank.pipeline_parallel.model_dump(),
                "unreadable": list(rank.unreadable),
            }
            for rank in ranks
        ],
    }
    if found is None:
        return data
    different = [{"rank": rank, "tensor": name} for rank, name in found.different]
    compared = {"state": state, "different": different, "unknown": list(found.unknown), "own": list(found.own)}
    return {**data, "against": {"checkpoint": str(against), **compared}}


def _lines(
    ranks: Sequence[ServedRank], against: Path | None, found: ServedComparison | None, state: str
) -> Iterator[str]:
    from kvgate.cli.plain import visible

    first = ranks[0]
    yield visible(f"engine: {first.engine} {first.engine_version}, {first.architecture}, {first.form} form")
    for rank in ranks:
        places = [
            f"{name} {place.rank} of {place.size}"
            for name, place in (("tensor", rank.tensor_parallel), ("pipeline", rank.pipeline_parallel))
            if place.size > 1
        ]
        digest = _digest(rank)
        if rank.unreadable:
            digest += f": the engine keeps the weights of {len(rank.unreadable)} layers where nobody can read them"
            digest += f" (first: {rank.unreadable[0][:200]})"
        yield visible(f"rank {rank.world.rank}: {digest}" + (f" ({', '.join(places)})" if places else ""))
    if found is None:
        return
    yield visible(f"against {against}: {state}")
    yield from _named("different", [f"{name} (rank {rank})" for rank, name in found.different])
    yield from _named("unknown", found.unknown)


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    from kvgate.cli.plain import visible

    for name in names[:NAMED]:
        yield visible(f"  {what}: {name}")
    if len(names) > NAMED:
        yield f"  {what}: and {len(names) - NAMED} more"
