"""The bypass diff: every request twice, with the cache and without, and what that says of the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvgate.probes.bypass.judging import SETTLED, Row, judge
from kvgate.probes.bypass.methods import Bypass, Method
from kvgate.probes.bypass.noise import floor_of, own_noise, settle
from kvgate.probes.completions.replicas import SEVERAL, Seen
from kvgate.probes.completions.requests import Request
from kvgate.probes.completions.server import AnsweringServer
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

Verdict = Literal["cache implicated", "cache not implicated", "cannot tell"]
_IN_A_ROW = 3  # failures, after which nothing more is asked


@dataclass(frozen=True)
class BypassDiff:
    """What was found.

    Attributes:
        method: how the cache was left out.
        tolerance: in nats.
        rows: one for each request that was sent.
        not_sent: how many were not, because the server had stopped answering.
        noise: in nats, what the server's own entries change; ``None``: not measured.
        who: answered.

    """

    method: Method
    tolerance: float
    rows: tuple[Row, ...]
    not_sent: int
    noise: float | None = None
    who: Seen = field(default_factory=Seen)

    @property
    def counts(self) -> Counter[str]:
        """How many requests had each outcome."""
        return Counter(row.outcome for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        """What the requests say together.

        One that differs implicates the cache. It is not implicated where one or more were answered from it, whole
        and alike, with what was there before; no other leaves anything open, and not several processes took turns.
        """
        counts = self.counts
        if counts["differs"]:
            return "cache implicated"
        open_ = self.not_sent or self.who.several or any(row.outcome not in SETTLED for row in self.rows)
        left = any(row.outcome == "match" and row.there for row in self.rows)
        return "cache not implicated" if left and not open_ else "cannot tell"

    @property
    def why(self) -> str:
        """The reason, one clause."""
        counts = self.counts
        if counts["differs"]:
            first = next(row for row in self.rows if row.outcome == "differs")
            turns = f" ({SEVERAL})" if self.who.several else ""
            return (
                f"{counts['differs']} of {len(self.rows)} requests differ, first line {first.line}: {first.why}{turns}"
            )
        if self.not_sent:
            return f"the server stopped answering: {self.not_sent} requests were not sent"
        if self.who.several:
            return SEVERAL
        left = next((row for row in self.rows if row.outcome not in SETTLED), None)
        if left is not None:
            return f"line {left.line}: {left.why}"
        if not counts["match"]:
            return "no request was answered from the cache and compared whole"
        alike = [row for row in self.rows if row.outcome in ("match", "near-tie")]
        there = sum(row.there for row in alike)
        answered = f"{len(alike)} requests were answered alike with the cache and without"
        if not any(row.there for row in alike if row.outcome == "match"):
            return f"{answered}, but what was read is what this command had left itself: nothing was there before"
        return f"{answered}; {there} of them were in it before"


def bypass_diff(
    server: AnsweringServer,
    requests: Sequence[Request],
    method: Method,
    tolerance: float,
    progress: Progress = silent,
    step: float | None = None,
    *,
    alike: bool = False,
) -> BypassDiff:
    """Send every request with the cache and then without.

    Args:
        server: what answers. Nothing is changed in it, apart from what its cache keeps of the requests.
        requests: what is sent.
        method: how the cache is left out.
        tolerance: in nats, how far log-probabilities of one computation may lie apart.
        progress: called once for each request.
        step: in nats, the least that counts as a difference. One between that and the tolerance is held against what
            the server's own cache gives; ``None``: none is.
        alike: whether what filled the cache is known to compute as the server does.

    Raises:
        InputError: the server answered nothing at all.

    """
    bypass = Bypass(server, method)
    server.look()
    rows: list[Row] = []
    failed = 0
    last: InputError | None = None
    for number, request in enumerate(requests):
        progress("asking with and without the cache", number, len(requests), "requests")
        try:
            row = judge(
                request,
                lambda request=request: bypass.reusing(request),  # type: ignore[misc]
                lambda request=request: bypass.bypassing(request),  # type: ignore[misc]
                tolerance,
            )
            failed = 0
        except InputError as error:
            row, failed, last = Row(request.line, request.id, "failed", error.message), failed + 1, error
        rows.append(row)
        if failed == _IN_A_ROW:
            break
    if last is not None and all(row.outcome == "failed" for row in rows):
        raise last
    progress("asking with and without the cache", len(rows), len(requests), "requests")
    noise = None
    if step is not None and any(row.outcome in SETTLED and (row.difference or 0.0) > step for row in rows):
        noise = own_noise(bypass, requests)
        floor = floor_of(noise, step, tolerance)
        rows = [settle(row, floor, noise, tolerance, alike=alike) for row in rows]
    return BypassDiff(method, tolerance, tuple(rows), len(requests) - len(rows), noise, server.look_again())
