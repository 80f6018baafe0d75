"""How far one model differs from itself by arithmetic alone: by number format, attention and device, as data."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pydantic import Field

from kvgate.rules.packaged import DataModel, parse_data

_FILE = "tolerances.yaml"
_MARGIN = 4.0
FURTHEST = 0.1
"""Of a layer's largest value: keys and values that are further off are another tensor, whatever the reason."""


class Tolerance(DataModel):
    """What is allowed between two computations of the same thing.

    ``logprob``: nats. ``kv``: of the largest magnitude in a layer. Below either, a difference cannot be told from
    arithmetic: it is the floor of what the comparison sees. ``kv: null``: KV is never compared there.
    ``checked: null``: measured in the run itself.
    """

    logprob: float = Field(ge=0)
    kv: float | None = Field(ge=0)
    measured: str
    source: str
    checked: str | None


class _File(DataModel):
    rows: dict[str, Tolerance]


def tolerance_for(precision: str) -> Tolerance | None:
    """Return the row for ``dtype/attention/device``; ``None`` where nobody measured it."""
    return _rows().get(precision)


def measured_here(dtype: str, attention: str, device: str, logprob: float, kv: float) -> Tolerance | None:
    """Return the floor where a model was measured against itself in the run that needs it.

    Four times what was seen, as in the rows, and never less than on a CPU, where the same model is nearest to itself.

    Args:
        dtype: number format.
        attention: its implementation.
        device: what it ran on.
        logprob: the largest difference of a log-probability, in nats.
        kv: the largest difference of a key or value, of the largest magnitude in its layer.

    Returns:
        ``None`` where it is further from itself than any server may be, or nobody measured the format on a CPU: what
        is told by such a worker is chance.

    """
    least, most = tolerance_for(f"{dtype}/{attention}/cpu"), tolerance_for(f"{dtype}/any/server")
    if least is None or most is None or least.kv is None:
        return None
    if not (_MARGIN * logprob <= most.logprob and _MARGIN * kv <= FURTHEST):  # so is what is not a number
        return None
    return Tolerance(
        logprob=max(_MARGIN * logprob, least.logprob),
        kv=max(_MARGIN * kv, least.kv),
        measured=f"{logprob:.2g} nats, {kv:.2g}",
        source=f"measured in this run on {device}: prompts cut at other tokens, and in batches of other sizes",
        checked=None,
    )


@cache
def _rows() -> dict[str, Tolerance]:
    data = resources.files("kvgate.probes.evaluation").joinpath("data", _FILE).read_bytes()
    return parse_data(data, _FILE, _File).rows
