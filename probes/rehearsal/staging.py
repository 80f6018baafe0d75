"""Stages the hit that must not happen, in order: with the boundary taken away, with it in force, and reuse itself.

The first is the control: it must go wrong, or nothing that follows could have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvgate.probes.evaluation.comparison import Agreement, compare_answers
from kvgate.probes.evaluation.prompts import Asked
from kvgate.probes.evaluation.tolerances import tolerance_for
from kvgate.probes.rehearsal.backend import (
    Backend,
    CannotStageError,
    Generation,
    Ground,
    LayerError,
    NoControlError,
    Prompt,
    Start,
    Worker,
)
from kvgate.probes.rehearsal.filing import salt_of
from kvgate.probes.rehearsal.mistakes import Mistake, name_mistakes
from kvgate.rules.case import Case
from kvgate.rules.decide import decide
from kvgate.rules.evidence import State
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from kvgate.rules.progress import Progress, silent

Claim = Literal["reuse", "separate"]

_FIRST, _OTHER = "kvgate-rehearsal-a", "kvgate-rehearsal-b"  # two tenants that nobody else is
_MOST_ADAPTERS = 2


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
        mistakes: what let stale entries through.
        layers: stored KV of the old deployment against the new one's, the worst of all prompts for each layer.
        ground: what it was staged on.
        staged: dimensions whose difference was really there.
        missing: what was not, and why.
        asked: how many prompts there were.

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


def claim_of(old: Manifest, new: Manifest) -> Claim:
    """Say what the manifests alone ask for: reuse where nothing in them demands anything else."""
    verdict = decide(Case(old=(old,), new=new, pack=shipped_pack("default"))).verdict
    return "reuse" if verdict == "verified-compatible-reuse" else "separate"


def stage(
    old: Manifest,
    new: Manifest,
    backend: Backend,
    asked: Sequence[Asked],
    *,
    staged: Mapping[str, str],
    missing: Mapping[str, str],
    tokens: int,
    progress: Progress = silent,
) -> Rehearsal:
    """Run a rehearsal.

    Args:
        old: the deployment that filled the store.
        new: the one that comes up in front of it.
        backend: what runs them; it is not closed here.
        asked: the requests.
        staged: what of the differences is in their tokens already.
        missing: what is not.
        tokens: how many are generated for each answer.
        progress: told how many answers were had.

    """
    claim = claim_of(old, new)
    if old.value("roles") or new.value("roles"):
        return Rehearsal(claim, "not-run", "several pools are not staged: rehearse them one by one")
    try:
        ground = backend.ground()
        return _Stage(old, new, backend, claim, ground, dict(staged), dict(missing), tokens, progress).run(asked)
    except CannotStageError as error:
        return Rehearsal(claim, "not-run", str(error), missing=dict(missing))


class _Stage:
    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        backend: Backend,
        claim: Claim,
        ground: Ground,
        staged: dict[str, str],
        missing: dict[str, str],
        tokens: int,
        progress: Progress,
    ) -> None:
        self._old, self._new, self._backend, self._claim, self._ground = old, new, backend, claim, ground
        tokens_staged = {name: what for name, what in staged.items() if name not in ground.staged}
        self._staged = {**ground.staged, **tokens_staged}
        self._missing = {**missing, **ground.missing}
        self._tokens, self._progress = tokens, progress
        self._done = 0
        self._lacking: dict[str, str] = {}
        self._apart = _keeps_tenants(old) or _keeps_tenants(new)
        if self._apart and _keeps_tenants(old) != _keeps_tenants(new):
            self._staged["cache.tenancy"] = "two tenants ask for one and the same"

    def run(self, asked: Sequence[Asked]) -> Rehearsal:
        tolerance = tolerance_for(self._ground.precision)
        if tolerance is None:
            raise CannotStageError(
                f"how far {self._ground.precision} differs from itself was never measured: nothing can be told from it"
            )
        self._tolerance = tolerance.logprob
        prompts = self._fill(asked)
        self._prompts = prompts
        with self._worker(Start(self._new, "none", "no-reuse")) as worker:
            self._fresh = {self._name(one): self._ask(worker, one) for one in prompts}
        control = self._where_it_can("control", self._planted if self._claim == "reuse" else self._unguarded, prompts)
        inside = self._hits(Start(self._new, "old"), prompts)
        own = inside
        if self._claim == "separate" or any(hit.wrong for hit in inside):
            again = self._where_it_can("own", self._own, prompts)
            own = again if self._claim == "separate" else inside
            self._repeatable(again)
        layers = self._layers(prompts)
        tenants, crossed = self._tenants(prompts[0]) if self._apart else (NOT_RUN, ())
        return self._judge(control, inside, own, layers, tenants, crossed)

    def _repeatable(self, again: Sequence[Hit]) -> None:
        """Refuse to tell anything by a worker that does not agree with itself: the model alone, its own entries."""
        plain = again[0] if again else None  # there may be no store for its own entries
        if plain is not None and plain.agreement.answer in ("different", "not comparable"):
            raise CannotStageError(
                f"the new deployment's own entries give answers that are {plain.agreement.difference:.2g} nats off its "
                f"own without a store, where {self._ground.precision} allows {self._tolerance:g}: nothing can be told"
            )

    def _fill(self, asked: Sequence[Asked]) -> list[Prompt]:
        """Have the old deployment fill the store; return what the new one is asked, a second turn included."""
        salts = [salt_of(side, _FIRST) for side in (self._old, self._new)]
        old_adapters, adapters = (_adapters(side) for side in (self._old, self._new))
        if len(adapters) > _MOST_ADAPTERS:
            self._missing["adapters"] = f"{len(adapters) - _MOST_ADAPTERS} of {len(adapters)} were not asked"
        prompts = []
        with self._worker(Start(self._old, "old", fills=True)) as worker:
            for number, one in enumerate(asked):
                before = Prompt(one.id, one.old, salts[0], None, one.old_answer)
                after = Prompt(one.id, one.new, salts[1], None, one.new_answer, before)
                said = self._ask(worker, before)
                prompts.append(after)
                if number == 0:
                    # What was generated is part of the next turn's prefix: its KV was computed token by token.
                    rest = one.new[:32]
                    turns = [
                        replace(first, id="second-turn", token_ids=(*first.token_ids, *said.token_ids, *rest))
                        for first in (before, after)
                    ]
                    self._ask(worker, turns[0])
                    prompts.append(replace(turns[1], filed=turns[0]))
                if one.old_answer is None and number < 1:
                    for name in adapters[:_MOST_ADAPTERS]:
                        theirs = replace(before, adapter=name if name in old_adapters else None)
                        self._ask(worker, theirs)
                        prompts.append(replace(after, adapter=name, filed=theirs))
        return prompts

    def _where_it_can(
        self, what: str, staged: Callable[[Sequence[Prompt]], list[Hit]], prompts: Sequence[Prompt]
    ) -> list[Hit]:
        """Stage what a back end may have no way to; without it the rest is seen all the same, and proves nothing."""
        try:
            return staged(prompts)
        except NoControlError as error:
            self._lacking[what] = str(error)
            return []

    def _planted(self, prompts: Sequence[Prompt]) -> list[Hit]:
        """Have what is known to be wrong read from a store."""
        with self._worker(Start(self._new, "foreign", fills=True, foreign=True)) as worker:
            for prompt in prompts:
                self._ask(worker, prompt)
        return self._hits(Start(self._new, "foreign"), prompts)

    def _unguarded(self, prompts: Sequence[Prompt]) -> list[Hit]:
        """Have the new deployment read old entries with the boundary taken away."""
        return self._hits(self._removed(), prompts)

    def _own(self, prompts: Sequence[Prompt]) -> list[Hit]:
        """Have the new deployment read what it wrote itself."""
        with self._worker(Start(self._new, "new", fills=True)) as worker:
            for prompt in prompts:
                self._ask(worker, prompt)
        return self._hits(Start(self._new, "new"), prompts)

    def _tenants(self, prompt: Prompt) -> tuple[Part, tuple[Hit, ...]]:
        """Ask as another tenant for what the first one has in the store, the old deployment's and the new one's."""
        other = replace(prompt, salt=salt_of(self._new, _OTHER))
        hits = self._where_it_can("control", self._unguarded, [other])
        if self._claim == "reuse":
            self._own([prompt])
        inside = [*self._hits(Start(self._new, "old"), [other]), *self._hits(Start(self._new, "new"), [other])]
        if any(hit.cached for hit in inside):
            return Part("failed", "one tenant's request read another's entry", tuple(inside)), tuple(hits)
        if not any(hit.cached for hit in hits):
            return Part("open", "with the boundary taken away nothing is read either", tuple(inside)), tuple(hits)
        return Part("held", "no tenant's request reads another's entry", tuple(inside)), tuple(hits)

    def _removed(self) -> Start:
        return Start(self._new, "old", "removed", instead_of=self._old)

    def _layers(self, prompts: Sequence[Prompt]) -> tuple[LayerError, ...] | None:
        """Hold stored KV against the new deployment's, where both were asked for the same tokens."""
        worst: dict[int, LayerError] = {}
        if "control" in self._lacking:
            return None
        with self._worker(self._removed()) as worker:
            for prompt in prompts:
                if prompt.answer is not None or prompt.filed is None or prompt.filed.token_ids != prompt.token_ids:
                    continue
                for one in worker.compare_blocks(prompt) or ():
                    before = worst.get(one.layer, one)
                    worst[one.layer] = LayerError(one.layer, max(before.error, one.error), max(before.noise, one.noise))
        return tuple(worst[layer] for layer in sorted(worst)) or None

    def _hits(self, start: Start, prompts: Sequence[Prompt]) -> list[Hit]:
        with self._worker(start) as worker:
            return [self._hit(prompt, self._ask(worker, prompt)) for prompt in prompts]

    def _hit(self, prompt: Prompt, found: Generation) -> Hit:
        if found.cached is None:
            raise CannotStageError("the worker does not say how many tokens came from the store")
        fresh = self._fresh[(prompt.id, prompt.adapter)]
        agreement = compare_answers((fresh.token_ids, fresh.top), (found.token_ids, found.top), self._tolerance)
        right = None
        if prompt.answer is not None and _right(fresh, prompt.answer):  # one that it cannot answer decides nothing
            right = _right(found, prompt.answer)
        if fresh.token_ids and not found.token_ids:  # the worker failed on what it read
            right = False
        return Hit(prompt.id, prompt.adapter, found.cached, agreement, right)

    @contextlib.contextmanager
    def _worker(self, start: Start) -> Iterator[Worker]:
        worker = self._backend.start(start)
        try:
            yield worker
        finally:
            worker.close()

    def _ask(self, worker: Worker, prompt: Prompt) -> Generation:
        self._done += 1
        self._progress("rehearsing", self._done, None, "answers")
        return worker.generate(prompt, self._tokens)

    @staticmethod
    def _name(prompt: Prompt) -> tuple[str, str | None]:
        return prompt.id, prompt.adapter

    def _judge(
        self,
        control: Sequence[Hit],
        inside: Sequence[Hit],
        own: Sequence[Hit],
        layers: tuple[LayerError, ...] | None,
        tenants: Part,
        crossed: Sequence[Hit],
    ) -> Rehearsal:
        must_not = {(hit.prompt, hit.adapter) for hit in control if hit.wrong}
        planted = set(self._staged) - {"cache.tenancy"}
        first = self._control(control, crossed, must_not, planted)
        # An entry that was right although it is old (an adapter changed, the model did not) may be read.
        stale = [
            hit for hit in inside if hit.wrong or (self._claim == "separate" and hit.cached and _key(hit) in must_not)
        ]
        second = self._isolation(inside, stale)
        third = _equivalence(own, "old entries" if self._claim == "reuse" else "the new deployment's own entries")
        if "own" in self._lacking:
            third = replace(third, why=self._lacking["own"])
        mistakes = name_mistakes(
            self._old,
            self._new,
            staged=self._staged,
            adapters={hit.adapter for hit in stale},
            own={hit.adapter for hit in own if hit.wrong},
            tenants=tenants.state == "failed",
        )
        parts = [first, second, third, *([tenants] if self._apart else [])]
        state, reason = _whole(parts, mistakes)
        return Rehearsal(
            self._claim,
            state,
            reason,
            first,
            second,
            third,
            tenants,
            mistakes,
            layers,
            self._ground,
            self._staged,
            self._missing,
            len(self._prompts),
        )

    def _control(
        self, control: Sequence[Hit], crossed: Sequence[Hit], must_not: set[tuple[str, str | None]], planted: set[str]
    ) -> Part:
        hits = tuple(control)
        if must_not:
            where = "other weights planted under its names" if self._claim == "reuse" else "the boundary taken away"
            return Part("held", f"with {where} the stale entry is hit, and the output is wrong", hits)
        if "control" in self._lacking:
            return Part("open", self._lacking["control"], hits)
        if self._apart and not planted and any(hit.cached for hit in crossed):
            return Part("held", "with the boundary taken away another tenant's entry is hit", (*hits, *crossed))
        if not any(hit.cached for hit in hits):
            return Part("open", "with the boundary taken away nothing is hit", hits)
        if not planted and self._claim == "separate":
            return Part("open", "nothing of what differs is staged here, so no output can be wrong", hits)
        floor = f"no output is further off than {self._tolerance:g} nats, the floor of this comparison"
        return Part("open", f"with the boundary taken away entries are hit, and {floor}", hits)

    def _isolation(self, inside: Sequence[Hit], stale: Sequence[Hit]) -> Part:
        hits = tuple(inside)
        if stale:
            cached = sum(hit.cached for hit in stale)
            return Part("failed", f"with the boundary in force {cached} tokens came from stale entries", hits)
        cached = sum(hit.cached for hit in hits)
        if self._claim == "reuse":
            return Part("held", f"{cached} tokens came from old entries, and none of them is stale", hits)
        if not cached:
            return Part("held", "with the boundary in force no old entry is read", hits)
        if all(hit.agreement.same for hit in hits):
            return Part(
                "held", f"{cached} tokens came from old entries that are still right, none from stale ones", hits
            )
        return Part("open", "what was read cannot be compared", hits)


def _equivalence(hits: Sequence[Hit], what: str) -> Part:
    found = tuple(hits)
    cached = sum(hit.cached for hit in found)
    if any(hit.wrong for hit in found):
        return Part("failed", f"answers from {what} are not those without a store", found)
    if not cached:
        return Part("open", f"nothing of {what} is hit", found)
    if not all(hit.agreement.same for hit in found):
        return Part("open", "answers without a hit differ among themselves: this worker is not repeatable", found)
    return Part("held", f"{cached} tokens came from {what}, and every answer is the one without a store", found)


def _whole(parts: Sequence[Part], mistakes: Sequence[Mistake]) -> tuple[State, str]:
    failed = [part for part in parts if part.state == "failed"]
    if failed:
        named = "; ".join(mistake.what for mistake in mistakes)
        return "refuted", f"{failed[0].why}" + (f" ({named})" if named else "")
    undecided = [part for part in parts if part.state != "held"]
    if undecided:
        return "inconclusive", undecided[0].why
    return "proved", "; ".join(part.why for part in parts)


def _key(hit: Hit) -> tuple[str, str | None]:
    return hit.prompt, hit.adapter


def _right(found: Generation, answer: tuple[int, ...]) -> bool:
    return found.token_ids[: len(answer)] == answer


def _keeps_tenants(manifest: Manifest) -> bool:
    tenancy = manifest.value("cache.tenancy")
    return tenancy is not None and tenancy.get("boundary") != "shared"


def _adapters(manifest: Manifest) -> list[str]:
    entries = manifest.value("adapters") or {}
    return [name for name, entry in entries.items() if entry.get("removed") is not True]
