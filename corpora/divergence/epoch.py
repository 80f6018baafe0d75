"""Does bumping the epoch put every conversation out of reach of what was cached before?

Where an application cannot name a namespace (hosted APIs, engines without a knob) it writes ``cache.epoch`` into the
prompt as a marker, most often at the start of the system prompt. Blocks are found by everything that stands before
their end, so the marker works only where it changes the very first block; one that comes later leaves the first
blocks of old and new shared.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.pairing import paired, renderings
from kvgate.corpora.divergence.tally import Tally, Tallying
from kvgate.corpora.snapshots.snapshot import SnapshotFile
from kvgate.rules.progress import Progress, silent


@dataclass(frozen=True)
class Reached:
    """A conversation whose first block is the same before and after the bump.

    Attributes:
        id: as in the corpus.
        shared: how many leading token ids are equal.
        tokens: how many the old side has.

    """

    id: str
    shared: int
    tokens: int


@dataclass(frozen=True)
class EpochCheck:
    """What an epoch marker did.

    Attributes:
        block_size: tokens in a block.
        examined: conversations with token ids on both sides; rendered on two dates, twice.
        reached: those whose first block stays the same: the marker does not protect them.
        unexamined: ids of conversations that a side does not have or could not render.

    """

    block_size: int
    examined: int
    reached: Tally[Reached]
    unexamined: Tally[str]


def check_epoch(old: SnapshotFile, new: SnapshotFile, block_size: int, progress: Progress = silent) -> EpochCheck:
    """Compare snapshots that were rendered before and after the epoch was bumped.

    What was rendered differs in the marker, so conversations are paired by id alone. A conversation counts as
    reached where the ids do not differ within the first ``block_size`` of them: where one side merely ends
    there, whatever follows it may be equal.

    Args:
        old: with the old epoch in its prompts, or in the options of its template.
        new: with the new one.
        block_size: tokens in a block or chunk; at least 1.
        progress: told how many conversations were compared.

    Raises:
        InputError: a snapshot is malformed.
        ValueError: ``block_size`` is less than 1.

    """
    if block_size < 1:
        raise ValueError("a block has at least one token")
    examined = 0
    reached: Tallying[Reached] = Tallying()
    unexamined: Tallying[str] = Tallying()
    for done, pair in enumerate(paired(old, new), 1):
        progress("comparing snapshots", done, old.footer.conversations, "conversations")
        if pair.old is None or pair.new is None:
            unexamined.add(pair.id)
            continue
        for before, after in renderings(pair.old, pair.new):
            if not (before.ok and after.ok):
                unexamined.add(pair.id)
                continue
            examined += 1
            shared = common(before.ids, after.ids)
            if shared >= min(block_size, len(before.ids), len(after.ids)):
                reached.add(Reached(pair.id, shared, len(before.ids)))
    return EpochCheck(block_size, examined, reached.done(), unexamined.done())
