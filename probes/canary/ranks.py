"""Whether one sample of times lies below another: Mann and Whitney's test, and what it would have found."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cache

_EXACT = 30  # of both samples together, without ties; beyond, the normal distribution is close enough
_DRAWS = 400


def probability_below(low: Sequence[float], high: Sequence[float]) -> float:
    """Return how probable it is that ``low`` lies as far below ``high`` as it does if both are drawn alike.

    One-sided. Exact for small samples without ties, else by the normal distribution with corrections for ties and for
    continuity. (Mann and Whitney, 1947.)

    Args:
        low: seconds, or whatever can be ordered.
        high: the same; neither is empty.
    """
    ordered = sorted(high)
    count = sum(bisect_left(ordered, one) + bisect_right(ordered, one) for one in low) / 2
    pooled = (*low, *high)
    ties = Counter(pooled).values()
    if max(ties) == 1 and len(pooled) <= _EXACT:
        arrangements = [_arrangements(len(low), len(high), u) for u in range(int(count) + 1)]
        return sum(arrangements) / math.comb(len(pooled), len(low))
    size = len(pooled)
    spread = size + 1 - sum(tie**3 - tie for tie in ties) / (size * (size - 1))
    variance = len(low) * len(high) / 12 * spread
    if variance <= 0:
        return 1.0
    distance = (count + 0.5 - len(low) * len(high) / 2) / math.sqrt(variance)
    return 0.5 * math.erfc(-distance / math.sqrt(2))


@cache
def _arrangements(low: int, high: int, count: int) -> int:
    """Return in how many orders of two samples exactly ``count`` pairs have the first one's above."""
    if count < 0 or count > low * high:
        return 0
    if low == 0 or high == 0:
        return int(count == 0)
    return _arrangements(low - 1, high, count - high) + _arrangements(low, high - 1, count)


def power_of(low: Sequence[float], high: Sequence[float], level: float, seed: int) -> float:
    """Return how often the test would tell two samples apart that are drawn from these.

    Args:
        low: times where something is known to be there.
        high: times where nothing is.
        level: at which the test says that there is something.
        seed: of the draws.
    """
    drawn = random.Random(seed)  # noqa: S311 - draws of a bootstrap, no secret
    found = sum(
        probability_below(drawn.choices(low, k=len(low)), drawn.choices(high, k=len(high))) < level
        for _ in range(_DRAWS)
    )
    return found / _DRAWS
