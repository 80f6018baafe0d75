"""Stages the hit that must not happen, in order: with the boundary taken away, with it in force, and reuse itself.

The first is the control: it must go wrong, or nothing that follows could have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvgate.probes.evaluation.comparison import compare_answers
from kvgate.probes.evaluation.prompts import Asked
from kvgate.probes.evaluation.tolerances import FURTHEST
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
from kvgate.probes.rehearsal.claims import Asks, asks_of
from kvgate.probes.rehearsal.filing import salt_of, salt_of_no_tenant
from kvgate.probes.rehearsal.judging import Observed, Tenants, Torn, judge
from kvgate.probes.rehearsal.reach import turns_at
from kvgate.probes.rehearsal.seen import Hit, Rehearsal
from kvgate.rules.change import same
from kvgate.rules.discharge import TOKEN_DIMENSIONS
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress, silent

_FIRST, _OTHER = "kvgate-rehearsal-a", "kvgate-rehearsal-b"  # two tenants that nobody else is
_MOST_ADAPTERS, _MOST_CHANGED = 8, 64


def stage(
    old: Manifest,
    new: Manifest,
    backend: Backend,
    asked: Sequence[Asked],
    *,
    staged: Mapping[str, str],
    missing: Mapping[str, str],
    tokens: int,
    tear: bool = False,
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
        tear: also whether half-written entries are taken for whole ones.
        progress: told how many answers were had.

    """
    asks = asks_of(old, new)
    if old.value("roles") or new.value("roles"):
        return Rehearsal(asks.claim, "not-run", "several pools are staged where each is started by itself")
    try:
        ground = backend.ground()
        return _Stage(old, new, backend, asks, ground, dict(staged), dict(missing), tokens, progress).run(
            asked, tear=tear
        )
    except CannotStageError as error:
        return Rehearsal(asks.claim, "not-run", str(error), because=asks.because)


class _Stage:
    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        backend: Backend,
        asks: Asks,
        ground: Ground,
        staged: dict[str, str],
        missing: dict[str, str],
        tokens: int,
        progress: Progress,
    ) -> None:
        self._old, self._new, self._backend, self._asks, self._ground = old, new, backend, asks, ground
        self._claim = asks.claim
        tokens_staged = {name: what for name, what in staged.items() if name not in ground.staged}
        self._staged = {**ground.staged, **tokens_staged}
        equal = {name for name in TOKEN_DIMENSIONS if name not in asks.touched}
        self._missing = {**{name: why for name, why in missing.items() if name not in equal}, **ground.missing}
        self._tokens, self._progress = tokens, progress
        self._phase, self._done, self._total = "", 0, 0
        self._lacking: dict[str, str] = {}
        self._compared = 0
        self._apart = _keeps_tenants(old) or _keeps_tenants(new)
        if self._apart and _keeps_tenants(old) != _keeps_tenants(new):
            self._staged["cache.tenancy"] = "two tenants ask for one and the same"
        self._unstaged = tuple(name for name in asks.reachable if name not in self._staged)
        for name in self._unstaged:
            unknown = "not known on both sides" if name in asks.unknown else "differs"
            self._missing.setdefault(name, f"{unknown}, and nothing here stands for it")

    def run(self, asked: Sequence[Asked], *, tear: bool) -> Rehearsal:
        tolerance = self._ground.tolerance
        if tolerance is None:
            raise CannotStageError(
                f"how far {self._ground.precision} differs from itself was never measured: nothing can be told from it"
            )
        self._tolerance = tolerance.logprob
        longest = max((len(one.new) for one in asked), default=0)
        if self._ground.model == "real" and (turn := turns_at(self._old, self._new)) >= longest:
            self._missing["prompts"] = (
                f"their {longest:,} tokens do not reach past {turn:,}, where the config has KV made otherwise "
                "(--prompt-tokens)"
            )
        self._enter("filling the store", len(asked))
        prompts = self._fill(asked)
        self._enter("without a store", len(prompts))
        with self._worker(Start(self._new, "none", "no-reuse")) as worker:
            self._fresh = {(one.id, one.adapter): self._ask(worker, one) for one in prompts}
        self._enter("control", len(prompts))
        control = self._where_it_can("control", self._planted if self._claim == "reuse" else self._unguarded, prompts)
        self._enter("isolation", len(prompts))
        inside = self._hits(Start(self._new, "old"), prompts)
        own: list[Hit] = []
        if self._claim == "separate" or any(hit.wrong for hit in inside):
            self._enter("equivalence", 2 * len(prompts))
            own = self._where_it_can("own", self._own, prompts)
            self._repeatable(own)
        layers = self._layers(prompts)
        self._steady(layers or ())
        self._enter("torn entries", 3)
        torn = self._torn(prompts[:1]) if tear else None
        self._enter("tenants", 4)
        observed = Observed(
            self._claim,
            tuple(control),
            tuple(inside),
            tuple(own),
            self._tenants(prompts[0]) if self._apart else None,
            self._lacking,
            self._tolerance,
            alike=frozenset(
                (one.id, one.adapter) for one in prompts if one.filed and one.filed.token_ids == one.token_ids
            ),
            unstaged=self._unstaged,
            layers=layers,
            ground=self._ground,
            staged=self._staged,
            missing=self._missing,
            asked=len(prompts),
            because=self._asks.because,
            torn=torn,
            compared=self._compared,
            longest=longest,
        )
        return judge(self._old, self._new, observed)

    def _enter(self, phase: str, total: int) -> None:
        """Count answers anew: a rehearsal takes minutes with a real engine, and each part says how far it is."""
        self._phase, self._done, self._total = phase, 0, total

    def _repeatable(self, again: Sequence[Hit]) -> None:
        """Refuse to tell anything by a worker that does not agree with itself: the model alone, its own entries."""
        plain = again[0] if again else None  # there may be no store for its own entries
        if plain is not None and plain.agreement.answer in ("different", "not comparable"):
            raise CannotStageError(
                f"the new deployment's own entries give answers that are {plain.agreement.difference:.2g} nats off its "
                f"own without a store, where {self._ground.precision} allows {self._tolerance:g}: nothing can be told"
            )

    def _steady(self, layers: Sequence[LayerError]) -> None:
        """Refuse to tell anything by a model whose KV depends on where a prompt is cut, without any store."""
        noise = max((one.noise for one in layers), default=0.0)
        if not noise <= FURTHEST:
            raise CannotStageError(
                f"keys and values are {noise:.2g} of a layer's largest off where a prompt is cut elsewhere, without "
                "any store: nothing can be told"
            )

    def _fill(self, asked: Sequence[Asked]) -> list[Prompt]:
        """Have the old deployment fill the store; return what the new one is asked, a second turn included."""
        salts = [salt_of(side, _FIRST) for side in (self._old, self._new)]
        old_adapters, adapters = (_adapters(side) for side in (self._old, self._new))
        adapters = self._whose(old_adapters, adapters)
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
                    for name in adapters:
                        theirs = replace(before, adapter=name if name in old_adapters else None)
                        self._ask(worker, theirs)
                        prompts.append(replace(after, adapter=name, filed=theirs))
            if salts[0] != salts[1] and set(self._staged) - {"cache.tenancy", *TOKEN_DIMENSIONS}:
                # A request without a tenant: what keeps tenants apart is no boundary between deployments.
                bare = Prompt("no-tenant", asked[0].old, salt_of_no_tenant(self._old))
                self._ask(worker, bare)
                prompts.append(Prompt("no-tenant", asked[0].new, salt_of_no_tenant(self._new), filed=bare))
        return prompts

    def _whose(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        """Return the adapters that are asked: every one that is not known to be what it was, and some that are."""
        alike = [name for name in new if name in old and self._same_adapter(name)]
        changed = [name for name in new if name not in alike]
        if len(changed) > _MOST_CHANGED:
            raise CannotStageError(f"{len(changed)} adapters changed, and {_MOST_CHANGED} are asked at most")
        asked = [*changed, *alike[: max(0, _MOST_ADAPTERS - len(changed))]]
        if len(asked) < len(new):
            self._missing["adapters"] = f"{len(new) - len(asked)} of {len(new)} were not asked: they are what they were"
        return asked

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

    def _torn(self, prompts: Sequence[Prompt]) -> Torn:
        """Have the new deployment read what it wrote itself, as a writer leaves it that ends half-way."""
        whole = self._where_it_can("torn", self._own, prompts)
        half = self._where_it_can("torn", lambda these: self._hits(Start(self._new, "new", torn=True), these), prompts)
        return Torn(tuple(whole), tuple(half))

    def _tenants(self, prompt: Prompt) -> Tenants:
        """Ask as another tenant for what the first one has in the store, the old deployment's and the new one's."""
        other = replace(prompt, salt=salt_of(self._new, _OTHER))
        unguarded = self._where_it_can("control", self._unguarded, [other])
        old = self._hits(Start(self._new, "old"), [other])
        return Tenants(tuple(unguarded), tuple(old), tuple(self._where_it_can("tenants", self._crossing, [other])))

    def _crossing(self, others: Sequence[Prompt]) -> list[Hit]:
        """Have another tenant ask for what the new deployment stored for the first one."""
        with self._worker(Start(self._new, "new", fills=True)) as worker:
            for one in others:
                self._ask(worker, replace(one, salt=salt_of(self._new, _FIRST)))
        return self._hits(Start(self._new, "new"), others)

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
                if not self._same_adapter(prompt.adapter):
                    continue  # its entries differ, as they must: that is no news of the model's own
                found = worker.compare_blocks(prompt) or ()
                self._compared = max(self._compared, len(prompt.token_ids) if found else 0)
                for one in found:
                    before = worst.get(one.layer, one)
                    worst[one.layer] = LayerError(one.layer, max(before.error, one.error), max(before.noise, one.noise))
        return tuple(worst[layer] for layer in sorted(worst)) or None

    def _same_adapter(self, name: str | None) -> bool:
        digest = f"adapters.{name}.digest"
        return name is None or same(self._old.get(digest), self._new.get(digest)) is True

    def _hits(self, start: Start, prompts: Sequence[Prompt]) -> list[Hit]:
        with self._worker(start) as worker:
            return [self._hit(prompt, self._ask(worker, prompt)) for prompt in prompts]

    def _hit(self, prompt: Prompt, found: Generation) -> Hit:
        if found.cached is None:
            raise CannotStageError("the worker does not say how many tokens came from the store")
        fresh = self._fresh[(prompt.id, prompt.adapter)]
        agreement = compare_answers((fresh.token_ids, fresh.top), (found.token_ids, found.top), self._tolerance)
        right = None
        if prompt.answer is not None and _answers(fresh, prompt.answer):  # one that it cannot answer decides nothing
            right = _answers(found, prompt.answer)
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
        self._progress(f"rehearsing, {self._phase}", self._done, max(self._done, self._total), "answers")
        return worker.generate(prompt, self._tokens)


def _answers(found: Generation, answer: tuple[int, ...]) -> bool:
    return found.token_ids[: len(answer)] == answer


def _keeps_tenants(manifest: Manifest) -> bool:
    tenancy = manifest.value("cache.tenancy")
    return tenancy is not None and tenancy.get("boundary") != "shared"


def _adapters(manifest: Manifest) -> list[str]:
    entries = manifest.value("adapters") or {}
    return [name for name, entry in entries.items() if entry.get("removed") is not True]
