"""Served weights against a checkpoint, and against what the same rank served before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvgate.rules.errors import InputError
from kvgate.weights.digest import TensorEntry
from kvgate.weights.served.report import Part, ServedRank, Stretch
from kvgate.weights.tables import tied_heads
from kvgate.weights.tensor_map import MapDifference, TensorMap, compare_maps


class StretchReader(Protocol):
    """Hashes a stretch of a checkpoint tensor."""

    def __call__(self, name: str, stretch: Stretch) -> str | None:
        """Return ``blake3:<64 hex>`` over the stretch's bytes in C order; ``None`` where they are not at hand."""


@dataclass(frozen=True)
class ServedComparison:
    """How an engine's weights stand to a checkpoint.

    Attributes:
        equal: every tensor of the checkpoint is held whole by the ranks together, byte for byte, and nothing
            else is; the engine's own buffers aside.
        different: (rank, checkpoint tensor) whose bytes are others.
        unknown: what could not be compared, and is therefore not known to be equal: a checkpoint tensor of
            which not everything was recognised, a parameter of an unknown form, an unreadable layer.
        own: buffers that the checkpoint does not have (scales at their default, say).
    """

    equal: bool
    different: tuple[tuple[int, str], ...]
    unknown: tuple[str, ...]
    own: tuple[str, ...]


def compare_with_checkpoint(
    ranks: Sequence[ServedRank], entries: Sequence[TensorEntry], read: StretchReader
) -> ServedComparison:
    """Say whether the ranks of one engine together hold a checkpoint.

    Args:
        ranks: all of them, as :func:`kvgate.weights.served.report.read_ranks` returns them.
        entries: the checkpoint's tensors, as its fingerprint or tensor map lists them.
        read: hashes a stretch of a tensor where a rank holds no whole one.

    Raises:
        InputError: from ``read``, where the checkpoint cannot be read.
    """
    stored = {entry.name: entry for entry in entries}
    tied = {pair.head: pair.embedding for pair in tied_heads().pairs if pair.embedding in stored}
    held: dict[str, list[Stretch | None]] = {name: [] for name in stored}
    different: set[tuple[int, str]] = set()
    unknown: set[str] = set()
    own: set[str] = set()
    for rank in ranks:
        recognised: set[str] = set()
        buffers = {each.name for each in rank.tensors if each.buffer}
        for part in rank.parts:
            # A tied head is the embedding under a second name, which the checkpoint may leave out.
            name = part.name if part.name in stored else tied.get(part.name, part.name)
            if name not in stored:
                continue
            recognised.add(part.held)
            equal = _equals(part, stored[name], read)
            if equal:
                held[name].append(part.stretch)
            elif part.certain and equal is not None:
                different.add((rank.world.rank, name))
            else:
                unknown.add(name)
        rest = {each.name for each in rank.tensors} - recognised
        own |= rest & buffers
        unknown |= (rest - buffers) | set(rank.unreadable)
    changed = {name for _, name in different}
    unknown |= {name for name, stretches in held.items() if name not in changed and not _covered(stretches)}
    return ServedComparison(
        equal=not different and not unknown,
        different=tuple(sorted(different)),
        unknown=tuple(sorted(unknown)),
        own=tuple(sorted(own)),
    )


def _equals(part: Part, entry: TensorEntry, read: StretchReader) -> bool | None:
    """Say whether a part is what the checkpoint has there; ``None`` where that cannot be told."""
    shape = list(part.shape)
    if part.stretch is not None:
        stretch = part.stretch
        if not (stretch.dimension < len(shape) and stretch.begin < stretch.end <= stretch.of):
            return False
        if shape[stretch.dimension] != stretch.end - stretch.begin:
            return False
        shape[stretch.dimension] = stretch.of
    if (part.dtype, tuple(shape)) != (entry.dtype, entry.shape):
        return False
    there = entry.content if part.stretch is None else read(entry.name, part.stretch)
    return None if there is None else part.content == there


def _covered(stretches: Sequence[Stretch | None]) -> bool:
    """Say whether stretches of one tensor leave nothing out."""
    if None in stretches:
        return True
    known = sorted((each.dimension, each.begin, each.end, each.of) for each in stretches if each is not None)
    if not known or len({(dimension, of) for dimension, _, _, of in known}) != 1:
        return False
    reached = 0
    for _, begin, end, _ in known:
        if begin > reached:
            return False
        reached = max(reached, end)
    return reached == known[0][3]


def compare_served(old: Sequence[ServedRank], new: Sequence[ServedRank]) -> Mapping[int, MapDifference]:
    """Say rank by rank what differs between two reports in one served form.

    Raises:
        InputError: when they are of different forms (engine, version, architecture, ranks), which are not
            comparable, or when a rank holds weights that cannot be read.
    """
    if [_form(rank) for rank in old] != [_form(rank) for rank in new]:
        hint = "compare each with the checkpoint instead"
        raise InputError("served weights of two forms: engine, version, model class or ranks differ", hint=hint)
    return {
        before.world.rank: compare_maps(
            TensorMap(before.digest(), before.entries()), TensorMap(after.digest(), after.entries())
        )
        for before, after in zip(old, new, strict=True)
    }


def _form(rank: ServedRank) -> tuple[object, ...]:
    return (
        *(rank.engine, rank.engine_version, rank.architecture),
        *(rank.world, rank.tensor_parallel, rank.pipeline_parallel),
    )
