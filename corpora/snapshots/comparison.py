"""Where two snapshots part: read side by side as streams, so that millions take no more memory than a hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.corpora.coverage.changes import UncoveredArm, uncovered_changes
from kvgate.corpora.coverage.covered import Coverage, coverage_from
from kvgate.corpora.coverage.explanation import Explainer
from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.cause import Sides
from kvgate.corpora.divergence.description import Divergence, describe
from kvgate.corpora.divergence.generated import answers_from
from kvgate.corpora.divergence.holding import Holding, HoldingTally
from kvgate.corpora.divergence.pairing import paired, renderings
from kvgate.corpora.divergence.pieces import Pieces
from kvgate.corpora.divergence.stability import turns_from
from kvgate.corpora.divergence.tally import Group, Grouping, Tally, Tallying
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotFile, SnapshotHeader
from kvgate.corpora.tokenizers.structure import PartDifference
from kvgate.rules.progress import Progress, silent


@dataclass(frozen=True)
class Unexamined:
    """A conversation that at least one side could not render: equal errors are not equal tokens.

    Attributes:
        id: as in the corpus.
        date: index of the date that it was rendered on.
        old: the old side's error, class and message; ``None``: it rendered.
        new: the new side's.

    """

    id: str
    date: int
    old: tuple[str, str] | None
    new: tuple[str, str] | None

    @property
    def same_error(self) -> bool:
        """Whether both sides failed in the same way."""
        return self.old == self.new


@dataclass(frozen=True)
class SharedBlocks:
    """How many leading KV blocks of the old conversations the new token ids still reach.

    Attributes:
        size: tokens in a block.
        old: full blocks that the old side filled, over all examined conversations.
        shared: how many of them the new side asks for under the same key.

    """

    size: int
    old: int
    shared: int

    @property
    def share(self) -> float | None:
        """Shared blocks by old blocks, 0 to 1; ``None``: no conversation fills a block."""
        return self.shared / self.old if self.old else None


@dataclass(frozen=True)
class Redefined:
    """A token id that means another string on each side: equal ids would not be equal input."""

    id: int
    old: str
    new: str


@dataclass(frozen=True)
class CoverageComparison:
    """Which branches of the chat templates ran.

    Attributes:
        old: of the old side.
        new: of the new one.
        open: what of a changed template equal output on this corpus does not show.

    """

    old: Coverage
    new: Coverage
    open: tuple[UncoveredArm, ...]


@dataclass(frozen=True)
class SnapshotComparison:
    """What two snapshots say about each other. Counts are exact; what is named is the first of it.

    Attributes:
        old: what rendered the old side.
        new: what rendered the new one.
        examined: conversations with token ids on both sides; one that was rendered on two dates counts twice.
        divergences: those whose token ids differ.
        kinds: what of them looks alike, the most frequent first.
        by_template: how many of them have another text on each side.
        by_tokenizer: how many have the same text.
        unexamined: conversations that a side could not render.
        failures: those that failed alike, the most frequent first.
        only_old: ids of conversations that only the old snapshot has, or has with another content.
        only_new: the same for the new one.
        blocks: what stays reachable; ``None``: no block size was given.
        turns: how many chats, cut at the end of a turn, are the beginning of what they become; ``None``:
            not measured.
        answers: how many generated answers re-tokenize to the ids that were generated; ``None``: likewise.
        redefined: ids that mean another string on each side.
        coverage: which branches of the templates ran; ``None``: a side did not record it.

    """

    old: SnapshotHeader
    new: SnapshotHeader
    examined: int
    divergences: Tally[Divergence]
    kinds: tuple[Group[Divergence], ...]
    by_template: int
    by_tokenizer: int
    unexamined: Tally[Unexamined]
    failures: tuple[Group[Unexamined], ...]
    only_old: Tally[str]
    only_new: Tally[str]
    blocks: SharedBlocks | None
    turns: Holding | None
    answers: Holding | None
    redefined: Tally[Redefined]
    coverage: CoverageComparison | None

    @property
    def divergent(self) -> int:
        """How many conversations have different token ids."""
        return self.divergences.count

    @property
    def complete(self) -> bool:
        """Whether everything that either side has was compared, and no branch of a changed template is left open."""
        left = self.unexamined.count or self.only_old.count or self.only_new.count
        return not left and not (self.coverage is not None and self.coverage.open)

    @property
    def same_corpus(self) -> bool:
        """Whether both rendered the same corpus."""
        return self.old.corpus_digest == self.new.corpus_digest

    @property
    def same_renderer(self) -> bool:
        """Whether the same library versions rendered both, so that nothing is said about an upgrade of them."""
        return self.old.renderer == self.new.renderer and self.old.jinja2 == self.new.jinja2

    @property
    def same_template(self) -> bool:
        """Whether both are known to have rendered the same chat template."""
        return self.old.template is not None and self.old.template == self.new.template

    @property
    def same_options(self) -> bool:
        """Whether the same options were applied, and the same were not."""
        return self.old.options == self.new.options and self.old.unapplied == self.new.unapplied

    @property
    def drifted(self) -> bool:
        """Whether ids differ although all that makes them is recorded as equal.

        One of the files was edited or exchanged, or something outside the record has a say.
        """
        known = None not in (self.old.tokenizer, self.old.jinja2) and bool(self.old.renderer)
        return (
            self.divergent > 0
            and known
            and self.same_renderer
            and self.same_options
            and self.old.tokenizer == self.new.tokenizer
            and self.same_template
        )


def compare_snapshots(
    old: SnapshotFile,
    new: SnapshotFile,
    *,
    block_size: int | None = None,
    parts: Sequence[PartDifference] = (),
    progress: Progress = silent,
) -> SnapshotComparison:
    """Compare what two renderers made of the same conversations.

    A template that reads the clock has two renderings; where only one side has two, the other side's one
    stands for both dates.

    Args:
        old: the old side.
        new: the new side.
        block_size: tokens in a block or chunk of the connector, at least 1; ``None``: blocks are not counted.
        parts: in what the two tokenizers differ, where that is known; it makes the causes of divergences more exact.
        progress: told how many conversations were compared.

    Raises:
        InputError: a snapshot is malformed, or the two cannot be compared in bounded memory.
        ValueError: ``block_size`` is less than 1.

    """
    if block_size is not None and block_size < 1:
        raise ValueError("a block has at least one token")
    comparing = _Comparing(old, new, block_size, parts)
    for done, pair in enumerate(paired(old, new), 1):
        if pair.old is not None and pair.new is not None and pair.old.input == pair.new.input:
            comparing.pair(pair.old, pair.new)
        else:
            comparing.apart(pair.id, old=pair.old is not None, new=pair.new is not None)
        progress("comparing snapshots", done, old.footer.conversations, "conversations")
    return comparing.done()


class _Comparing:
    """The sums, while the files are read."""

    def __init__(
        self, old: SnapshotFile, new: SnapshotFile, block_size: int | None, parts: Sequence[PartDifference]
    ) -> None:
        self._old = old
        self._new = new
        self._size = block_size
        self._coverage = _coverage(old, new)
        self._sides = Sides(
            Pieces(old.footer.pieces),
            Pieces(new.footer.pieces),
            None
            if None in (old.header.tokenizer, new.header.tokenizer)
            else old.header.tokenizer == new.header.tokenizer,
            parts,
            None if self._coverage is None else Explainer(self._coverage.old, self._coverage.new),
        )
        self._examined = 0
        self._blocks = [0, 0]
        self._texts: Counter[bool | None] = Counter()
        self._divergences: Tallying[Divergence] = Tallying()
        self._kinds: Grouping[Divergence] = Grouping()
        self._unexamined: Tallying[Unexamined] = Tallying()
        self._failures: Grouping[Unexamined] = Grouping()
        self._only_old: Tallying[str] = Tallying()
        self._only_new: Tallying[str] = Tallying()
        self._turns = HoldingTally()
        self._answers = HoldingTally()

    def apart(self, name: str, *, old: bool, new: bool) -> None:
        if old:
            self._only_old.add(name)
        if new:
            self._only_new.add(name)

    def pair(self, old: SnapshotEntry, new: SnapshotEntry) -> None:
        equal_before = False
        for date, (before, after) in enumerate(renderings(old, new)):
            if not (before.ok and after.ok):
                failed = Unexamined(old.id, date, before.error, after.error)
                self._unexamined.add(failed)
                self._failures.add((failed.old, failed.new), old.id, failed)
                continue
            self._examined += 1
            shared = common(before.ids, after.ids)
            if self._size is not None:
                self._blocks[0] += len(before.ids) // self._size
                self._blocks[1] += shared // self._size
            if shared == len(before.ids) == len(after.ids):
                equal_before = True
            else:
                self._part(old.id, date, before, after, only_on_this_date=equal_before)
        self._turns.add(old.id, self._turns_of(old, self._old), self._turns_of(new, self._new))
        self._answers.add(old.id, self._answers_of(old, self._old), self._answers_of(new, self._new))

    @staticmethod
    def _turns_of(entry: SnapshotEntry, file: SnapshotFile) -> list[bool | None] | None:
        where = f"{file.path}: {entry.id}"
        return None if entry.turns is None else [turn.stable for turn in turns_from(entry.turns, where)]

    @staticmethod
    def _answers_of(entry: SnapshotEntry, file: SnapshotFile) -> list[bool | None] | None:
        where = f"{file.path}: {entry.id}"
        return None if entry.generated is None else [answer.same for answer in answers_from(entry.generated, where)]

    def _part(self, name: str, date: int, old: Rendered, new: Rendered, *, only_on_this_date: bool) -> None:
        found = describe(name, date, old, new, self._sides, only_on_this_date=only_on_this_date)
        self._texts[found.same_text] += 1
        self._divergences.add(found)
        self._kinds.add(found.kind, name, found)

    def done(self) -> SnapshotComparison:
        return SnapshotComparison(
            old=self._old.header,
            new=self._new.header,
            examined=self._examined,
            divergences=self._divergences.done(),
            kinds=self._kinds.done(),
            by_template=self._texts[False],
            by_tokenizer=self._texts[True],
            unexamined=self._unexamined.done(),
            failures=self._failures.done(),
            only_old=self._only_old.done(),
            only_new=self._only_new.done(),
            blocks=None if self._size is None else SharedBlocks(self._size, *self._blocks),
            turns=self._turns.done(),
            answers=self._answers.done(),
            redefined=self._redefined(),
            coverage=self._coverage,
        )

    def _redefined(self) -> Tally[Redefined]:
        tally: Tallying[Redefined] = Tallying()
        new = self._new.footer.pieces
        for number, piece in sorted(self._old.footer.pieces.items()):
            if (other := new.get(number, piece)) != piece:
                tally.add(Redefined(number, piece, other))
        return tally.done()


def _coverage(old: SnapshotFile, new: SnapshotFile) -> CoverageComparison | None:
    sides = [
        None if file.footer.coverage is None else coverage_from(file.footer.coverage, f"{file.path}: last line")
        for file in (old, new)
    ]
    before, after = sides
    if before is None or after is None:
        return None
    return CoverageComparison(before, after, uncovered_changes(before, after))
