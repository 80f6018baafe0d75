"""How far one model differs from itself by arithmetic alone: by number format, attention and device, as data."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pydantic import Field

from kvgate.rules.packaged import DataModel, parse_data

_FILE = "tolerances.yaml"


class Tolerance(DataModel):
    """What is allowed between two computations of the same thing.

    ``logprob``: nats. ``kv``: of the largest magnitude in a layer. Below either, a difference cannot be told from
    arithmetic: it is the floor of what the comparison sees. ``kv: null``: KV is never compared there.
    """

    logprob: float = Field(ge=0)
    kv: float | None = Field(ge=0)
    measured: str
    source: str
    checked: str


class _File(DataModel):
    rows: dict[str, Tolerance]


def tolerance_for(precision: str) -> Tolerance | None:
    """Return the row for ``dtype/attention/device``; ``None`` where nobody measured it."""
    return _rows().get(precision)


@cache
def _rows() -> dict[str, Tolerance]:
    data = resources.files("kvgate.probes.evaluation").joinpath("data", _FILE).read_bytes()
    return parse_data(data, _FILE, _File).rows
