"""How far log-probabilities of one computation may lie apart on a server whose kernels nobody here has measured."""

from __future__ import annotations

from collections.abc import Mapping

# Nats, by compute type. A server computes a prompt whole or continues it from cached blocks: it cuts it in another
# place and adds in another order. Measured, largest: 0.10 of a logit in bfloat16, 0.013 in float16, 1.4e-5 in float32
# (transformers 5.24.0, torch 2.13.0+cpu, SDPA, models of a few layers, 2026-11-29); a log-probability moves twice as
# far as a logit at most, and a deep model is given as much again.
_BY_TYPE: Mapping[str, float] = {"bfloat16": 0.4, "float16": 0.05, "float32": 1e-3}


def tolerance_of(compute: str | None) -> float:
    """Return the tolerance for a compute type, in nats; the widest where it is not known."""
    return _BY_TYPE.get(compute or "", max(_BY_TYPE.values()))
