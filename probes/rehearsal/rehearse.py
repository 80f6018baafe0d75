"""A rehearsal from two manifests to what was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvgate.probes.evaluation.own_words import Encode
from kvgate.probes.evaluation.prompts import Rendered, questions
from kvgate.probes.rehearsal.backend import Backend, CannotStageError, Speaks
from kvgate.probes.rehearsal.claims import asks_of
from kvgate.probes.rehearsal.filing import unit_of
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.probes.rehearsal.staging import stage
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import cover
from kvgate.rules.progress import Progress, silent

_SHORTEST = 128  # tokens: more than two windows of a stand-in
LONGEST = 8192  # tokens of a prompt; a connector that stores more than a third of it together is not staged
_LEFT = 24  # tokens behind the last whole block


@dataclass(frozen=True)
class Size:
    """How much is asked.

    Attributes:
        corpus: prompts made of the corpus.
        decidable: prompts that decide their answer.
        tokens: that are generated for each.
        length: tokens of each prompt, at least.

    """

    corpus: int = 2
    decidable: int = 1
    tokens: int = 8
    length: int = 0


def rehearse(
    old: Manifest,
    new: Manifest,
    backend: Callable[[], Backend],
    *,
    rendered: tuple[Rendered, Rendered] | None = None,
    size: Size = Size(),
    tear: bool = False,
    progress: Progress = silent,
) -> Rehearsal:
    """Stage the hit that must not happen, and say what was seen.

    Args:
        old: the deployment that filled the store.
        new: the one that comes up in front of it.
        backend: makes what runs them; it is closed in all cases.
        rendered: token ids of both sides' snapshots.
        size: how much is asked.
        tear: also whether half-written entries are taken for whole ones.
        progress: told how far it is.

    """
    asks = asks_of(old, new)
    unit = max(unit_of(old), unit_of(new))
    if unit > LONGEST // 3:
        why = f"{unit:,} tokens are stored together, and no more than {LONGEST // 3:,} are staged"
        return Rehearsal(asks.claim, "not-run", why, because=asks.because)
    if cover(new).in_worker:
        why = f"{new.value('cache.connector')}: entries end with their worker, and no new one reads them"
        return Rehearsal(asks.claim, "not-run", why, because=asks.because)
    length = max(_SHORTEST + _LEFT, 2 * unit + _LEFT, min(size.length, LONGEST))
    try:
        running = backend()
    except CannotStageError as error:
        return Rehearsal(asks.claim, "not-run", str(error), because=asks.because)
    try:
        size, words, missing = _decidable(running, size)
        asked = questions(
            old,
            new,
            rendered=rendered,
            length=length,
            count=size.corpus,
            decide=size.decidable,
            words=words,
            most=size.tokens,
        )
        return stage(
            old,
            new,
            running,
            asked.asked,
            staged=asked.staged,
            missing={**asked.missing, **missing},
            tokens=size.tokens,
            tear=tear,
            progress=progress,
        )
    finally:
        running.close()


def _decidable(running: Backend, size: Size) -> tuple[Size, tuple[Encode, Encode] | None, dict[str, str]]:
    """Say how much is asked, and in whose words; without a real model's tokenizer nothing is asked that decides."""
    if not isinstance(running, Speaks) or not size.decidable:
        return size, None, {}
    try:
        return size, running.words(), {}
    except CannotStageError as error:
        more = replace(size, corpus=size.corpus + size.decidable, decidable=0)
        return more, None, {"decidable": str(error)}
