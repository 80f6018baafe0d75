"""How far log-probabilities of one computation may lie apart on a server whose kernels nobody here has measured."""

from __future__ import annotations

from kvgate.probes.evaluation.tolerances import tolerance_for


def step_of(compute: str | None) -> float:
    """Return the least difference that counts on any server: a step of the format, as it was measured on a CPU."""
    row = tolerance_for(f"{compute}/eager/cpu") or tolerance_for("bfloat16/eager/cpu")
    return 0.0 if row is None else row.logprob


def tolerance_of(compute: str | None) -> float:
    """Return the tolerance for a compute type, in nats; the widest where it is not known."""
    row = tolerance_for(f"{compute}/any/server") or tolerance_for("unknown/any/server")
    return float("inf") if row is None else row.logprob
