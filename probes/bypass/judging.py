"""What the answers to one request say about the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvgate.probes.completions.completion import Completion
from kvgate.probes.completions.requests import Request
from kvgate.probes.evaluation.comparison import Agreement, compare_answers

Outcome = Literal[
    "match", "near-tie", "differs", "unstable", "unclear", "not reused", "not bypassed", "not told", "failed"
]
SETTLED: frozenset[Outcome] = frozenset({"match", "near-tie", "not reused"})
"""Outcomes that leave nothing open."""


@dataclass(frozen=True)
class Row:
    """One request.

    Attributes:
        line: its line in the file.
        id: its name.
        outcome: what was found.
        why: one clause.
        prompt: tokens of the prompt; ``None``: not told.
        cached: tokens that came from the cache where it was to be used; ``None``: not told.
        bypassed: the same where it was not.
        there: whether most of it was in the cache before it was sent with it for the first time.
        divergence: the first token (without log-probabilities: character) that differs; ``None``: none does.
        unit: ``"token"`` or ``"character"``.
        difference: the largest difference of a log-probability up to there, in nats; ``None``: not told.

    """

    line: int
    id: str
    outcome: Outcome
    why: str
    prompt: int | None = None
    cached: int | None = None
    bypassed: int | None = None
    there: bool = False
    divergence: int | None = None
    unit: Literal["token", "character"] = "token"
    difference: float | None = None


def agreement(one: Completion, other: Completion, tolerance: float) -> Agreement:
    """Compare two answers: by tokens and log-probabilities, by characters where neither is told."""
    if one.top and other.top:
        found = compare_answers((one.tokens, one.top), (other.tokens, other.top), tolerance)
        if found.divergence is not None or one.text == other.text:
            return found
    # What is told of the tokens cannot be of both texts, or nothing is told.
    pairs = enumerate(zip(one.text, other.text, strict=False))
    first = next((place for place, (a, b) in pairs if a != b), None)
    if first is None and len(one.text) != len(other.text):
        first = min(len(one.text), len(other.text))
    # Without log-probabilities equal texts are all that can be had; different ones may be a near-tie.
    return Agreement("same" if first is None else "not comparable", first, 0.0, 0)


Ask = Callable[[], Completion]


def judge(request: Request, reusing: Ask, bypassing: Ask, tolerance: float) -> Row:
    """Send a request with the cache and without, again where that decides something, and say what was found.

    With the cache first: what comes from there the first time was there before, and a store whose names hold no salt
    keeps what an answer without the cache leaves, too. It is sent with the cache again where the first time nothing
    came from there: the second finds what the first left. Where answers differ it is sent without the cache again: an
    answer that is not even the same as itself shows nothing.

    Args:
        request: what is asked.
        reusing: asks with the cache.
        bypassing: asks without it.
        tolerance: in nats, how far log-probabilities of one computation may lie apart.

    Raises:
        InputError: the server did not answer.

    """
    reused = [reusing()]
    off = bypassing()
    if not _mostly_cached(reused[0]):  # none, next to none, or not told
        reused.append(reusing())
    told = [one.usage.cached for one in reused]
    examined = [one for one, cached in zip(reused, told, strict=True) if cached != 0]
    worst, found = max(
        ((one, agreement(one, off, tolerance)) for one in examined or reused[:1]), key=lambda pair: _severity(pair[1])
    )

    def row(outcome: Outcome, why: str) -> Row:
        logged = bool(worst.top and off.top)
        return Row(
            request.line,
            request.id,
            outcome,
            why,
            prompt=worst.usage.prompt if worst.usage.prompt is not None else off.usage.prompt,
            cached=worst.usage.cached,
            bypassed=off.usage.cached,
            there=_mostly_cached(reused[0]),
            divergence=found.divergence,
            unit="token" if logged else "character",
            difference=found.difference if logged else None,
        )

    if not examined:
        return row("not reused", "nothing of the prompt came from the cache: too short, or nothing is kept")
    content = request.expect is not None and request.expect in off.text and request.expect not in worst.text
    if content or not found.same:
        again = bypassing()
        if not agreement(off, again, tolerance).same:
            return row("unstable", "without the cache it is not even the same twice")
        if content:
            return row("differs", "what the answer must contain is there only without the cache")
        if found.answer == "not comparable":
            return row("unclear", "the texts differ, and without log-probabilities nobody can say how nearly")
        if None in told and not agreement(worst, reusing(), tolerance).same:
            return row("unstable", "with the cache it is not even the same twice")
        return row("differs", "it is another answer, by more than arithmetic explains")
    if off.usage.cached:
        return row("not bypassed", "the server used its cache although it was asked not to")
    if worst.usage.cached is None or off.usage.cached is None:
        return row("not told", "the answers agree, but the server does not tell what came from the cache")
    if not any(map(_mostly_cached, reused)):
        return row("not reused", "most of the prompt did not come from the cache: what it begins with, say")
    if not (worst.top and off.top):
        if not off.text:
            return row("unclear", "the answers are empty: there is nothing to compare")
        if request.expect is None or request.expect not in off.text:
            return row(
                "unclear", "the words are alike, which proves little without log-probabilities or what to expect"
            )
    return row("match" if found.answer == "same" else "near-tie", "")


def _mostly_cached(one: Completion) -> bool:
    """Whether half of a prompt and more came from the cache: less may be what every prompt begins with."""
    usage = one.usage
    return bool(usage.cached) and (usage.prompt is None or 2 * (usage.cached or 0) >= usage.prompt)


def _severity(found: Agreement) -> tuple[int, float]:
    return ("same", "near-tie", "not comparable", "different").index(found.answer), found.difference
