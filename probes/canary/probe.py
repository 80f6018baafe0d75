"""Whether what one tenant's request left in the cache is reached by another's: by cached tokens, and by time."""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvgate.probes.canary.ranks import power_of, probability_below
from kvgate.probes.completions.replicas import SEVERAL, Seen
from kvgate.probes.completions.server import AnsweringServer
from kvgate.rules.errors import UsageError
from kvgate.rules.progress import Progress, silent

LEVEL = 0.001
"""At which a difference in time counts."""

POWER = 0.9
"""How often a test must find what is there for its silence to mean something."""

FEWEST = 7
"""Tries that times are compared from: with six the smallest probability is 1/924."""

_SHARE = 0.25  # of the time that a hit saves: less is no residency of a prefix

State = Literal["leaks", "isolated", "cannot tell"]
_WORDS_SENT = 600
_TOKENS_OF_A_WORD = 6  # of the five letters that each has, and the space: the most that a tokenizer makes of one
_WORDS = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "larch")


@dataclass(frozen=True)
class Sample:
    """One prefix that nobody had sent before, and what came back of it.

    Attributes:
        cold: cached tokens and seconds of a tenant's first request with it.
        other: the other tenant's, with the same prefix, after that.
        fresh: the other tenant's, with a prefix that nobody has sent.
        warm: the first tenant's, with its prefix again.
    """

    cold: tuple[int | None, float]
    other: tuple[int | None, float]
    fresh: tuple[int | None, float]
    warm: tuple[int | None, float]


@dataclass(frozen=True)
class Timing:
    """What times to the first token say.

    Attributes:
        warm: how probable the times of hits are where nothing is cached: the control.
        other: the same for the other tenant's.
        power: how often the test finds a hit.
        saved: seconds that a hit saves, the medians' difference.
        gained: seconds that the other tenant gained.
    """

    warm: float
    other: float
    power: float
    saved: float
    gained: float

    @property
    def state(self) -> State:
        """What they say alone."""
        if self.warm >= LEVEL or self.saved <= 0:
            return "cannot tell"
        if self.other < LEVEL and self.gained >= _SHARE * self.saved:
            return "leaks"
        return "isolated" if self.power >= POWER and self.other >= LEVEL else "cannot tell"


@dataclass(frozen=True)
class Isolation:
    """What a probe found.

    Attributes:
        samples: one for each prefix.
        tokens: what cached tokens say; ``None``: the server does not tell them.
        timing: what times say; ``None``: too few samples.
        seed: of what is drawn for the test's power.
        who: answered.
    """

    samples: tuple[Sample, ...]
    tokens: State | None
    timing: Timing | None
    seed: int
    who: Seen = field(default_factory=Seen)

    @property
    def state(self) -> State:
        """What both say: tokens where they are told, and times do not speak against them; else times.

        Of several processes none has what another one keeps in its memory: that nothing was reached shows nothing.
        """
        timed = "cannot tell" if self.timing is None else self.timing.state
        found = timed if self.tokens is None else self.tokens
        if found == "isolated" and (timed == "leaks" or self.who.several):
            return "cannot tell"
        return found

    @property
    def why(self) -> str:
        """One clause."""
        if self.tokens == "leaks":
            reached = [one.other[0] or 0 for one in _hits(self.samples)]
            return (
                f"the other tenant was given up to {max(reached)} cached tokens of a prefix that it had not sent, "
                f"in {len(reached)} of {len(self.samples)} tries"
            )
        if self.tokens is None and self.state == "leaks":
            return "the other tenant was answered as fast as if its prefix were cached, which it had not sent"
        if self.who.several:
            return SEVERAL
        if self.tokens == "cannot tell" and any(_warm(one) for one in self.samples):
            hit = sum(map(_warm, self.samples))
            return (
                f"the tenant itself was given cached tokens in {hit} of {len(self.samples)} tries alone: entries are "
                "dropped, or several replicas take turns"
            )
        if self.tokens == "cannot tell":
            return "nothing was cached for the tenant itself either: the prefix is too short, or nothing is kept"
        if self.tokens is not None and self.state == "cannot tell":
            return "by its own account the other tenant was given no cached token, and it was answered as fast as a hit"
        if self.tokens == "isolated":
            return "the server gave the tenant itself cached tokens, and the other tenant none"
        if self.timing is None:
            return "the server does not tell cached tokens, and there are too few tries to go by time (7 at least)"
        if self.state == "isolated":
            return (
                f"the server does not tell cached tokens; by time the other tenant hit nothing "
                f"(power {self.timing.power:.2f})"
            )
        return (
            "the server does not tell cached tokens, and its times do not tell a hit from none "
            f"(power {self.timing.power:.2f})"
        )


Asked = Callable[[str], tuple[int | None, float]]
"""Sends a prefix as one tenant, and returns cached tokens and seconds."""


def asking_as(server: AnsweringServer, api: str, carried: Mapping[str, Any], model: str | None = None) -> Asked:
    """Return what asks a server as one tenant.

    An answer of one token is complete when the first token is there, so that its time is the time to the first token.

    Args:
        server: what is asked.
        api: ``/v1/completions``, ``/v1/chat/completions`` or ``/v1/messages``.
        carried: fields of the request that say whose it is.
        model: what the request names; ``None``: what the server lists first.
    """

    def ask(prefix: str) -> tuple[int | None, float]:
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0, **carried}
        if (name := model or server.model) is not None:
            body["model"] = name
        if api == "/v1/completions":
            body["prompt"] = prefix
        elif api == "/v1/messages":  # a hosted API caches up to a mark
            marked = {"type": "text", "text": prefix, "cache_control": {"type": "ephemeral"}}
            body |= {"system": [marked], "messages": [{"role": "user", "content": "Go on."}]}
        else:
            body["messages"] = [{"role": "system", "content": prefix}, {"role": "user", "content": "Go on."}]
        began = time.perf_counter()
        answer = server.complete(api, body)
        return answer.usage.cached, time.perf_counter() - began

    return ask


def probe_isolation(
    first: Asked,
    other: Asked,
    *,
    words: int,
    tries: int,
    omits_zero: bool = False,
    settles: float = 0.0,
    progress: Progress = silent,
    seed: int | None = None,
) -> Isolation:
    """Send prefixes that nobody has sent before as one tenant, then as another, and compare.

    The other tenant's times are compared with its own for a prefix that nobody has sent, and the order of the three
    requests that follow the first one is drawn: nothing but the first tenant's request can make the difference. All
    first ones are sent before any that follows: stores are written in the background.

    Args:
        first: asks as one tenant.
        other: asks as the other.
        words: of a prefix.
        tries: prefixes.
        omits_zero: the server tells cached tokens where there are any, and says nothing where there are none: SGLang's
            APIs do (``_details_if_cached`` in sglang/srt/entrypoints/openai/usage_processor.py, 0.5.23; read, not run).
        settles: seconds between them, for a store to be written.
        progress: called once for each.
        seed: of what is drawn; ``None``: any. Prefixes are new in any case.

    Raises:
        InputError: the server does not answer.
        UsageError: no try, or no word.
    """
    if tries < 1 or words < 1:
        raise UsageError("nothing would be sent", where="--tries" if tries < 1 else "--words")
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    order = random.Random(seed)  # noqa: S311 - an order, no secret
    samples = []
    sent = []
    for number in range(tries):
        progress("sending prefixes as one tenant", number, tries, "prefixes")
        sent.append((prefix := _prefix(words), first(prefix)))
    time.sleep(settles)
    for number, (prefix, cold) in enumerate(sent):
        progress("sending prefixes as two tenants", number, tries, "prefixes")
        steps = [("other", other, prefix), ("fresh", other, _prefix(words)), ("warm", first, prefix)]
        order.shuffle(steps)
        found = {name: ask(text) for name, ask, text in steps}
        samples.append(Sample(cold, **found))
    progress("sending prefixes as two tenants", tries, tries, "prefixes")
    return Isolation(tuple(samples), _by_tokens(samples, omits_zero=omits_zero), _by_time(samples, seed), seed)


def fitting_words(server: AnsweringServer) -> int:
    """Return how many words a prefix has that is long and that a server takes, whatever its tokenizer makes of them.

    Raises:
        InputError: it cannot be reached.

    """
    longest = server.longest_prompt()
    return _WORDS_SENT if longest is None else max(1, min(_WORDS_SENT, longest // _TOKENS_OF_A_WORD))


def _prefix(words: int) -> str:
    """Return text that nobody has sent: random from its first word on, so that no block of it is anybody's."""
    return " ".join([secrets.token_hex(8), *(secrets.choice(_WORDS) for _ in range(words))])


def _hits(samples: Sequence[Sample]) -> list[Sample]:
    """Return the tries in which the other tenant got more than a prefix gets that nobody has sent.

    That is the template's beginning, say. Where a server is silent about some answers it is taken for what it told of
    others of the kind, none where it told of none: a leak that is told is one, whatever else is not.
    """
    told = [one for sample in samples for one in (sample.fresh[0], sample.cold[0]) if one is not None]
    usual = max(told, default=0)

    def unsent(sample: Sample) -> int:
        return max(usual if one is None else one for one in (sample.fresh[0], sample.cold[0]))

    return [one for one in samples if (one.other[0] or 0) > unsent(one)]


def _warm(sample: Sample) -> bool:
    """Whether the first tenant got more of its prefix when it sent it again."""
    return (sample.warm[0] or 0) > (sample.cold[0] or 0)


def _by_tokens(samples: Sequence[Sample], *, omits_zero: bool) -> State | None:
    if _hits(samples):
        return "leaks"
    silent_ = any(None in (one.cold[0], one.other[0], one.fresh[0], one.warm[0]) for one in samples)
    if silent_ and not (omits_zero and any(map(_warm, samples))):
        return None
    return "isolated" if all(map(_warm, samples)) else "cannot tell"


def _by_time(samples: Sequence[Sample], seed: int) -> Timing | None:
    if len(samples) < FEWEST:
        return None
    times = {name: [getattr(one, name)[1] for one in samples] for name in ("other", "fresh", "warm")}
    middle = {name: statistics.median(values) for name, values in times.items()}
    return Timing(
        warm=probability_below(times["warm"], times["fresh"]),
        other=probability_below(times["other"], times["fresh"]),
        power=power_of(times["warm"], times["fresh"], LEVEL, seed),
        saved=middle["fresh"] - middle["warm"],
        gained=middle["fresh"] - middle["other"],
    )
