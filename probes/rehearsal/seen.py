"""What a rehearsal saw: prompt by prompt, part by part, and as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvgate.probes.evaluation.comparison import Agreement
from kvgate.probes.rehearsal.backend import Ground, LayerError
from kvgate.probes.rehearsal.mistakes import Mistake
from kvgate.rules.evidence import State
from kvgate.rules.shown import Entries

Claim = Literal["reuse", "separate"]
Request = tuple[str, "str | None"]
"""What tells one request from another: the prompt's id, and the adapter that answers."""


@dataclass(frozen=True)
class Hit:
    """One prompt under one boundary.

    Attributes:
        prompt: its id.
        adapter: that answered.
        cached: tokens that came from the store.
        agreement: with the answer that was computed without any store.
        right: whether the answer is the right one; ``None`` where the prompt decides nothing.

    """

    prompt: str
    adapter: str | None
    cached: int
    agreement: Agreement
    right: bool | None

    @property
    def wrong(self) -> bool:
        """Whether it was answered from the store, and otherwise than without it."""
        return self.cached > 0 and (self.agreement.answer == "different" or self.right is False)

    @property
    def key(self) -> Request:
        """What tells one request from another."""
        return self.prompt, self.adapter


@dataclass(frozen=True)
class Part:
    """One of the things that are proved.

    Attributes:
        state: ``held``; ``failed``; ``open``: it shows nothing; ``not-run``.
        why: one clause.
        hits: prompt by prompt.

    """

    state: Literal["held", "failed", "open", "not-run"]
    why: str
    hits: tuple[Hit, ...] = ()

    @property
    def cached(self) -> int:
        """Tokens that came from the store, in all."""
        return sum(hit.cached for hit in self.hits)


NOT_RUN = Part("not-run", "not run")


@dataclass(frozen=True)
class Rehearsal:
    """What was seen.

    Attributes:
        claim: whether the manifests ask for reuse, or for separation.
        state: of the whole; ``reason`` says why.
        control: held where the stale entry was hit and the output was wrong: so the test can fail.
        isolation: held where nothing stale was hit with the boundary in force.
        equivalence: held where hits happen, and answers are those without a store.
        tenants: the same as isolation, between two tenants; not run where the deployments keep none apart.
        torn: held where entries that a writer left half-written are not taken for whole ones; not run unless asked for.
        mistakes: what let stale entries through.
        layers: stored KV of the old deployment against the new one's, the worst of all prompts for each layer.
        ground: what it was staged on.
        staged: dimensions whose difference was really there.
        missing: what was not, and why.
        asked: how many prompts there were.
        of: which entries were read wrongly where it is refuted, and all rightly where it is proved.
        because: dimensions that make the manifests ask for separation.
        compared: tokens of the longest prompt whose stored KV was held against computed KV.
        longest: tokens of the longest prompt, a second turn aside.

    """

    claim: Claim
    state: State
    reason: str
    control: Part = NOT_RUN
    isolation: Part = NOT_RUN
    equivalence: Part = NOT_RUN
    tenants: Part = NOT_RUN
    mistakes: tuple[Mistake, ...] = ()
    layers: tuple[LayerError, ...] | None = None
    ground: Ground | None = None
    staged: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    of: tuple[Entries, ...] = ()
    because: tuple[str, ...] = ()
    torn: Part = NOT_RUN
    compared: int = 0
    longest: int = 0
