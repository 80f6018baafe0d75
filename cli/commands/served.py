"""``kvgate fingerprint --endpoint``: what a running engine holds, rank by rank, and whether it is a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.rules.progress import Progress
    from kvgate.weights.digest import TensorEntry
    from kvgate.weights.served.compare import ServedComparison, StretchReader
    from kvgate.weights.served.report import ServedRank

_NAMED = 20  # tensors that the text names of each list


def fingerprint_served(
    endpoint: str, api_key_env: str | None, compare: str | None, *, form: str, quiet: bool, no_color: bool
) -> int:
    """Ask a running engine, compare it with a checkpoint where one is given, and print what was found.

    Returns:
        The exit code: 0, 10 (it holds other weights), or 11 (not known: a rank whose weights cannot be read, or
        tensors that could not be compared).

    Raises:
        InputError: as :func:`kvgate.deployments.served.ask_served`; the checkpoint cannot be read.
    """
    from kvgate.cli import console
    from kvgate.cli.api_key import api_key
    from kvgate.cli.listing import as_json
    from kvgate.cli.progress import shown
    from kvgate.deployments.served import ask_served
    from kvgate.weights.served.compare import compare_with_checkpoint

    key = api_key(api_key_env)
    with shown(quiet=quiet, no_color=no_color) as progress:
        # First, before an engine is set to work for nothing.
        stored = None if compare is None else _stored(Path(compare), progress)
        progress("asking the engine", 0, None, "ranks")
        ranks = ask_served(endpoint, key)
        found = None if stored is None else compare_with_checkpoint(ranks, *stored)
    state = _state(ranks, found)
    if quiet:
        console.emit(f"{state}\n" if found is not None else "".join(f"{_digest(rank)}\n" for rank in ranks))
    elif form == "json":
        console.emit(as_json(_data(ranks, compare, found, state)))
    else:
        console.emit("".join(f"{line}\n" for line in _lines(ranks, compare, found, state)))
    return {"equal": 0, "different": 10, "undecided": 11}[state]


def _stored(path: Path, progress: Progress) -> tuple[Sequence[TensorEntry], StretchReader]:
    """Return the tensors that an engine is compared with, and what reads parts of them: of a map nothing can."""
    from kvgate.cli.commands.stored import Stored, map_of
    from kvgate.weights.served.stretches import CheckpointStretches

    if (mapped := map_of(path)) is not None:
        return mapped.entries, lambda _name, _stretch: None
    found = Stored(None, False, progress).checkpoint(path)
    return found.entries, CheckpointStretches(path)


def _state(ranks: Sequence[ServedRank], found: ServedComparison | None) -> str:
    if found is None:
        return "undecided" if any(rank.unreadable for rank in ranks) else "equal"
    return "equal" if found.equal else "different" if found.different else "undecided"


def _digest(rank: ServedRank) -> str:
    return "unreadable" if rank.unreadable else rank.digest()


def _data(
    ranks: Sequence[ServedRank], compare: str | None, found: ServedComparison | None, state: str
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
    return {**data, "compared": {"with": compare, **compared}}


def _lines(
    ranks: Sequence[ServedRank], compare: str | None, found: ServedComparison | None, state: str
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
    yield visible(f"compared with {compare}: {state}")
    yield from _named("different", [f"{name} (rank {rank})" for rank, name in found.different])
    yield from _named("unknown", found.unknown)


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    from kvgate.cli.plain import visible

    for name in names[:_NAMED]:
        yield visible(f"  {what}: {name}")
    if len(names) > _NAMED:
        yield f"  {what}: and {len(names) - _NAMED} more"
