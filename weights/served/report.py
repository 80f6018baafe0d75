"""What one rank of a running engine says it holds: the document that its worker hands out.

Served form is not the checkpoint's: layers are fused, sharded over ranks, padded, packed for a kernel. So a
report says twice what the rank holds. ``tensors`` are its own tensors as they are: they compare with those of
the same rank of the same engine. ``parts`` are the stretches of checkpoint tensors that they consist of,
where that is known exactly: they compare with the checkpoint.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kvgate.rules.errors import InputError
from kvgate.weights.digest import TensorEntry, root_digest, tensor_entries, unprinted
from kvgate.weights.safetensors import DTYPE_BITS

SCHEMA = "kvgate/served-weights/v1"
_MOST_RANKS = 1 << 20

_Content = Annotated[str, StringConstraints(pattern=r"^blake3:[0-9a-f]{64}$")]
_Size = Annotated[int, Field(ge=0, lt=2**63)]
_Name = Annotated[str, StringConstraints(max_length=1000)]
_Shape = Annotated[tuple[_Size, ...], Field(max_length=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Place(_Strict):
    """Where a rank stands in a group of ranks."""

    rank: Annotated[int, Field(ge=0, lt=_MOST_RANKS)]
    size: Annotated[int, Field(ge=1, le=_MOST_RANKS)]


class Held(_Strict):
    """One tensor as the rank holds it."""

    name: _Name
    dtype: _Name
    shape: _Shape
    content: _Content
    buffer: bool = Field(description="not a parameter: the engine may have made it itself")


class Stretch(_Strict):
    """What of one dimension of a checkpoint tensor a part holds."""

    dimension: _Size
    begin: _Size
    end: _Size
    of: _Size = Field(description="the size of that dimension in the checkpoint")


class Part(_Strict):
    """A checkpoint tensor, or a stretch of one, as the rank holds it."""

    name: _Name = Field(description="in the checkpoint")
    held: _Name = Field(description="the rank's tensor that it is in")
    dtype: _Name
    shape: _Shape = Field(description="of the part")
    stretch: Stretch | None = Field(description="null: the whole tensor")
    content: _Content
    certain: bool = Field(description="whether the layer is known to hold the stored bytes unchanged")


class ServedRank(_Strict):
    """One rank's report."""

    schema_: Literal["kvgate/served-weights/v1"] = Field(alias="schema")
    form: Literal["served"]
    engine: _Name
    engine_version: _Name
    architecture: _Name
    world: Place
    tensor_parallel: Place
    pipeline_parallel: Place
    tensors: tuple[Held, ...]
    parts: tuple[Part, ...]
    unreadable: tuple[_Name, ...] = Field(description="what holds weights where nobody can read them")

    def entries(self) -> tuple[TensorEntry, ...]:
        """Return the rank's tensors as a tensor map's entries, sorted by name."""
        return _entries(self.tensors)

    def unfused(self) -> tuple[TensorEntry, ...]:
        """Return the checkpoint tensors that the rank holds whole, taken out of what they are fused into.

        Buffers are left out: the engine may have made them itself. With one rank, and where every layer is
        recognised, this is the checkpoint, and its root the checkpoint's digest (a tied head under both names).
        """
        buffers = {held.name for held in self.tensors if held.buffer}
        return _entries([part for part in self.parts if part.stretch is None and part.held not in buffers])

    def digest(self) -> str:
        """Return the root over the rank's tensors in served form: a manifest's ``weights.served`` holds it.

        Raises:
            InputError: when the engine keeps weights where they cannot be read: a digest over the rest would
                be the same for other weights.
        """
        if self.unreadable:
            raise InputError(
                f"{self.engine} keeps the weights of {len(self.unreadable)} layers where they cannot be read "
                f"(first: {self.unreadable[0]})",
                where=f"rank {self.world.rank}",
                hint="serve them unpacked; on its CPU build vLLM packs linear layers for oneDNN",
            )
        return root_digest(self.entries())


def _entries(tensors: Sequence[Held | Part]) -> tuple[TensorEntry, ...]:
    return tuple(sorted(tensor_entries(tensors, [unprinted(tensor.content) for tensor in tensors])))


def read_ranks(replies: Sequence[Any], where: str) -> tuple[ServedRank, ...]:
    """Check what the workers of one engine replied; return the ranks in their order.

    Args:
        replies: one JSON object per worker.
        where: who replied, for messages.

    Raises:
        InputError: when a reply is no report, names a tensor twice, or the ranks are not those of one engine,
            each once.
    """
    try:
        ranks = sorted((ServedRank.model_validate(reply) for reply in replies), key=lambda rank: rank.world.rank)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        hint = "start the engine with the worker extension of this kvgate version"
        raise InputError(f"not a {SCHEMA} document: {at}: {first['msg']}", where=where, hint=hint) from error
    numbers = [rank.world.rank for rank in ranks]
    if not ranks or len(ranks) != ranks[0].world.size or numbers != list(range(len(ranks))):
        found = ", ".join(map(str, numbers)) or "none"
        raise InputError(f"every rank must report once; reported: {found}", where=where)
    forms = {(rank.engine, rank.engine_version, rank.architecture, rank.world.size) for rank in ranks}
    if len(forms) != 1:
        raise InputError("the ranks are of different engines", where=where)
    _check_places(ranks, where)
    for rank in ranks:
        _check(rank, where)
    return tuple(ranks)


def _check_places(ranks: Sequence[ServedRank], where: str) -> None:
    """Refuse ranks that are not one grid of tensor and pipeline parallel places, or several of it."""
    sizes = {(rank.tensor_parallel.size, rank.pipeline_parallel.size) for rank in ranks}
    places = Counter((rank.tensor_parallel.rank, rank.pipeline_parallel.rank) for rank in ranks)
    tensor, pipeline = next(iter(sizes))
    fits = len(sizes) == 1 and tensor * pipeline <= len(ranks)
    grid = set(itertools.product(range(tensor), range(pipeline))) if fits else set()
    if places.keys() != grid or len(set(places.values())) != 1:
        found = ", ".join(
            f"{rank.world.rank}: tensor {rank.tensor_parallel.rank} of {rank.tensor_parallel.size}, "
            f"pipeline {rank.pipeline_parallel.rank} of {rank.pipeline_parallel.size}"
            for rank in ranks[:4]
        )
        raise InputError(f"the ranks are in no order that shards a model ({found})", where=where)


def _check(rank: ServedRank, where: str) -> None:
    if not rank.tensors:
        raise InputError(f"rank {rank.world.rank} says that it holds nothing", where=where)
    names = [held.name for held in rank.tensors]
    if len(set(names)) != len(names):
        raise InputError(f"rank {rank.world.rank} names a tensor twice", where=where)
    for dtype in {each.dtype for each in rank.tensors} | {each.dtype for each in rank.parts}:
        if dtype not in DTYPE_BITS:
            raise InputError(f"rank {rank.world.rank} names the unknown dtype {dtype[:40]!r}", where=where)
