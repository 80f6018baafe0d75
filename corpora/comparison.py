"""Where two snapshots part: pure, and quick on long conversations."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from kvgate.corpora.snapshot import Rendered, SnapshotEntry, SnapshotFile


@dataclass(frozen=True)
class Compared:
    """One conversation that both sides rendered to token ids.

    Attributes:
        id: as in the corpus.
        clock: 0, or 1 for the second date of templates that read the clock.
        old_tokens: how many ids the old side has.
        new_tokens: how many ids the new side has.
        shared: how many leading ids are equal: the index of the first that differs, or of the end of
            the shorter side.
        shared_text: how many leading characters of the rendered text are equal.
        same_text: whether the rendered text is equal: then the tokenizer parted them, else the template
            did (or both).

    """

    id: str
    clock: int
    old_tokens: int
    new_tokens: int
    shared: int
    shared_text: int
    same_text: bool

    @property
    def equal(self) -> bool:
        """Whether all token ids are equal."""
        return self.shared == self.old_tokens == self.new_tokens

    @property
    def first_difference(self) -> int | None:
        """Index of the first token id that differs; ``None``: all are equal."""
        return None if self.equal else self.shared


@dataclass(frozen=True)
class Unexamined:
    """A conversation that at least one side could not render: equal errors are not equal tokens.

    Attributes:
        id: as in the corpus.
        clock: as in :class:`Compared`.
        old: the old side's error, class and message; ``None``: it rendered.
        new: the new side's.

    """

    id: str
    clock: int
    old: tuple[str, str] | None
    new: tuple[str, str] | None

    @property
    def same_error(self) -> bool:
        """Whether both sides failed in the same way."""
        return self.old == self.new


@dataclass(frozen=True)
class SnapshotComparison:
    """What two snapshots say about each other.

    Attributes:
        examined: conversations with token ids on both sides; one that was rendered on two dates twice.
        unexamined: conversations that a side could not render.
        only_old: ids of conversations that only the old snapshot has, or has with another content.
        only_new: the same for the new one.
        same_corpus: both rendered the same corpus.
        same_renderer: the same library versions rendered both, so that nothing is said about
            an upgrade of them.
        same_options: the same options were applied, and the same were not.

    """

    examined: tuple[Compared, ...]
    unexamined: tuple[Unexamined, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    same_corpus: bool
    same_renderer: bool
    same_options: bool

    @property
    def divergent(self) -> tuple[Compared, ...]:
        """The conversations whose token ids differ."""
        return tuple(one for one in self.examined if not one.equal)


@dataclass(frozen=True)
class SharedBlocks:
    """How many leading KV blocks of the old conversations the new token ids still reach.

    Attributes:
        block_size: tokens in a block.
        old: full blocks that the old side filled, over all examined conversations.
        shared: how many of them the new side asks for under the same key.

    """

    block_size: int
    old: int
    shared: int

    @property
    def share(self) -> float | None:
        """Shared blocks by old blocks, 0 to 1; ``None``: no conversation fills a block."""
        return self.shared / self.old if self.old else None


def compare_snapshots(old: SnapshotFile, new: SnapshotFile) -> SnapshotComparison:
    """Compare what two renderers made of the same conversations.

    A template that reads the clock has two renderings; where only one side has two, the other side's one
    stands for both dates.
    """
    ours_all = list(old.entries())
    theirs = {entry.id: entry for entry in new.entries()}
    pairs = [
        (entry, theirs[entry.id]) for entry in ours_all if entry.id in theirs and theirs[entry.id].input == entry.input
    ]
    common = {entry.id for entry, _ in pairs}
    examined: list[Compared] = []
    unexamined: list[Unexamined] = []
    for ours, other in pairs:
        for clock, (before, after) in enumerate(_renders(ours, other)):
            if before.ok and after.ok:
                examined.append(_compared(ours.id, clock, before, after))
            else:
                unexamined.append(Unexamined(ours.id, clock, before.error, after.error))
    return SnapshotComparison(
        examined=tuple(examined),
        unexamined=tuple(unexamined),
        only_old=tuple(entry.id for entry in ours_all if entry.id not in common),
        only_new=tuple(entry.id for entry in theirs.values() if entry.id not in common),
        same_corpus=old.header.corpus_digest == new.header.corpus_digest,
        same_renderer=old.header.renderer == new.header.renderer and old.header.jinja2 == new.header.jinja2,
        same_options=old.header.options == new.header.options and old.header.unapplied == new.header.unapplied,
    )


def shared_blocks(comparison: SnapshotComparison, block_size: int) -> SharedBlocks:
    """Add up the full leading blocks that old and new share.

    Args:
        comparison: of two snapshots.
        block_size: tokens in a block or chunk of the connector; at least 1.

    Raises:
        ValueError: ``block_size`` is less than 1.

    """
    if block_size < 1:
        raise ValueError("a block has at least one token")
    return SharedBlocks(
        block_size,
        sum(one.old_tokens // block_size for one in comparison.examined),
        sum(one.shared // block_size for one in comparison.examined),
    )


def _renders(old: SnapshotEntry, new: SnapshotEntry) -> Iterator[tuple[Rendered, Rendered]]:
    for clock in range(max(len(old.renders), len(new.renders))):
        yield (
            old.renders[min(clock, len(old.renders) - 1)],
            new.renders[min(clock, len(new.renders) - 1)],
        )


def _compared(name: str, clock: int, old: Rendered, new: Rendered) -> Compared:
    before, after = old.text or "", new.text or ""
    return Compared(
        id=name,
        clock=clock,
        old_tokens=len(old.ids),
        new_tokens=len(new.ids),
        shared=_shared(old.ids, new.ids),
        shared_text=_shared(before, after),
        same_text=before == after,
    )


def _shared(old: array[int] | str, new: array[int] | str) -> int:
    """Return the length of the common beginning, by halving: comparing slices runs at memory speed."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high:  # old[:low] is equal throughout, old[:high + 1] is not
        middle = (low + high) // 2
        if old[low : middle + 1] == new[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low
