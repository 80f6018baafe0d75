"""Whether two greedy answers to one prompt are the same: by token ids, and by log-probabilities before anything else.

Log-probabilities are compared up to the first step at which the tokens differ, that step included: until there both
models saw the same context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Answer = Literal["same", "near-tie", "different", "not comparable"]


@dataclass(frozen=True)
class Agreement:
    """What two answers have in common.

    Attributes:
        answer: ``same``: equal tokens, log-probabilities within the tolerance; ``near-tie``: the tokens part where the
            two likeliest were closer than twice the tolerance, and everything up to there is within it; ``different``:
            another context, or another model; ``not comparable``: nothing in common to compare.
        divergence: the first step at which tokens differ; ``None`` where they do not.
        difference: the largest difference of a log-probability, in nats.
        steps: how many steps were compared.

    """

    answer: Answer
    divergence: int | None
    difference: float
    steps: int

    @property
    def same(self) -> bool:
        """Whether nothing speaks against one and the same model in one and the same context."""
        return self.answer in ("same", "near-tie")


def compare_answers(
    first: tuple[Sequence[int], Sequence[Mapping[int, float]]],
    second: tuple[Sequence[int], Sequence[Mapping[int, float]]],
    tolerance: float,
) -> Agreement:
    """Compare two answers.

    Args:
        first: token ids, and of each step the log-probabilities of the likeliest tokens.
        second: the other's.
        tolerance: how far log-probabilities of one model differ for reasons of arithmetic alone, in nats.

    """
    (ids, top), (other_ids, other_top) = first, second
    divergence = next((step for step, (one, two) in enumerate(zip(ids, other_ids, strict=False)) if one != two), None)
    if divergence is None and len(ids) != len(other_ids):
        divergence = min(len(ids), len(other_ids))
    steps = min(len(top), len(other_top)) if divergence is None else divergence + 1
    pairs = list(zip(top[:steps], other_top[:steps], strict=False))
    if not pairs:
        return Agreement("not comparable", divergence, 0.0, 0)
    worst = max(_difference(one, two) for one, two in pairs)
    if not worst <= tolerance:  # a NaN is no agreement
        return Agreement("different", divergence, worst, len(pairs))
    if divergence is None:
        return Agreement("same", None, worst, len(pairs))
    tie = divergence < len(pairs) and all(_gap(one) <= 2 * tolerance for one in pairs[divergence])
    return Agreement("near-tie" if tie else "different", divergence, worst, len(pairs))


def worst_of(agreements: Iterable[Agreement]) -> float:
    """Return the largest difference in any of them, in nats; zero where there are none."""
    return max((one.difference for one in agreements), default=0.0)


def _difference(one: Mapping[int, float], two: Mapping[int, float]) -> float:
    """The largest difference at one step; of a token that one side does not list, the least that it can be."""
    shared = [abs(one[token] - two[token]) for token in one.keys() & two.keys()]
    apart = [
        listed[token] - min(other.values())
        for listed, other in ((one, two), (two, one))
        for token in listed.keys() - other.keys()
    ]
    found = [*shared, *apart]
    return float("nan") if any(value != value for value in found) else max(found, default=float("nan"))


def _gap(top: Mapping[int, float]) -> float:
    likeliest = sorted(top.values(), reverse=True)
    return likeliest[0] - likeliest[1] if len(likeliest) > 1 else float("inf")
