"""How far a running server is from itself: what its own entries change of its answers, measured before all else."""

from __future__ import annotations

import secrets
from dataclasses import replace

from kvgate.probes.endpoints.asking import Asked
from kvgate.probes.evaluation.comparison import compare_answers
from kvgate.probes.evaluation.tolerances import Tolerance, tolerance_for
from kvgate.probes.rehearsal.backend import Prompt

_PROMPTS = 3
_LENGTH = 160  # tokens, behind those that every prompt begins with: as long as what is asked
_STEPS = 8
_MARGIN = 4.0  # times what was seen on so few, as for the rows of the table


def measured_on(asked: Asked, salt: str | None, compute: object, most: float) -> Tolerance | None:
    """Return the floor of what a server's answers can tell.

    Prompts that nobody has sent are asked, asked again, which reads the entries that were computed a moment ago, and
    asked without the cache.

    Args:
        asked: the server.
        salt: that its requests carry.
        compute: its number format.
        most: what any server is allowed, in nats.

    Returns:
        ``None`` where it cannot be measured: it does not read its own entries back, or is further from itself than any
        server may be, or nobody measured the format.

    Raises:
        CannotStageError: it does not answer, or reads although it is asked not to.

    """
    least = tolerance_for(f"{compute}/eager/cpu")
    # It keeps these in its memory: nothing of them may be the beginning of what is asked later.
    asked = replace(asked, prefix=tuple(secrets.token_bytes(len(asked.prefix))))
    found = []
    for number in range(_PROMPTS if least is not None else 0):
        prompt = Prompt(f"measured-{number}", tuple(secrets.token_bytes(_LENGTH)))
        first, again = (asked.reading(prompt, salt, _STEPS) for _ in range(2))
        without = asked.bypassing(prompt, _STEPS)
        if first.cached == 0 and again.cached:
            both = (again.token_ids, again.top), (without.token_ids, without.top)
            found.append(compare_answers(*both, float("inf")).difference)
    if least is None or not found or not _MARGIN * max(found) <= most:  # so is what is not a number
        return None
    return Tolerance(
        logprob=min(most, max(least.logprob, _MARGIN * max(found))),
        kv=None,
        measured=f"{max(found):.2g} nats",
        source=f"measured in this run on {asked.name}: {len(found)} prompts, its own entries read back and left out",
        checked=None,
    )
