"""A comparison as figures: what evidence, records and reports hold of it. Prompt text is left out unless asked for.

Token ids are prompt text as well (whoever has the vocabulary reads them), so they go with it, and so do the messages of
render errors, which quote what they could not render.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from kvgate.corpora.conversations.corpus import DIAGNOSTIC, load_corpus
from kvgate.corpora.divergence.cause import Kind
from kvgate.corpora.divergence.description import Divergence
from kvgate.corpora.divergence.holding import Holding
from kvgate.corpora.divergence.tally import Group, Tally
from kvgate.corpora.divergence.window import Token
from kvgate.corpora.snapshots.comparison import CoverageComparison, SnapshotComparison, Unexamined
from kvgate.rules.packaged import DataModel

_NAMED = 20  # conversations of one kind


class _Figures(DataModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True, alias_generator=to_camel, validate_by_name=True
    )


class Names(_Figures):
    """How many there are, and the first: ids of conversations, or whatever else is named."""

    count: int
    first: list[str]


class TokenFigure(_Figures):
    """One token of one side; ``text`` is ``None`` where its vocabulary string was not saved."""

    index: int
    id: int
    text: str | None


class RowFigure(_Figures):
    """What stands side by side; ``None``: that side has nothing there."""

    old: TokenFigure | None
    new: TokenFigure | None


class Parting(_Figures):
    """One conversation whose token ids differ; see :class:`kvgate.corpora.divergence.description.Divergence`.

    ``rows`` is ``None`` where prompt text is left out, or where this one is named without its tokens.
    """

    conversation: str
    date: int
    token: int
    old_tokens: int
    new_tokens: int
    character: int | None
    character_unknown: str | None
    same_text: bool | None
    begins: Literal["old", "new"] | None
    cause: Kind
    why: str
    old_blocks: int | None
    shared_blocks: int | None
    rows: list[RowFigure] | None


class PartingKind(_Figures):
    """Divergences that look alike: an example, how many there are, and in which conversations the first are."""

    example: Parting
    count: int
    conversations: list[str]


class FailureKind(_Figures):
    """Conversations that a side could not render, all in one way; an error is ``None`` where that side could."""

    old: str | None
    new: str | None
    same_error: bool
    count: int
    conversations: list[str]


class Failures(_Figures):
    """How many there are, and of which kinds, the most frequent first."""

    count: int
    kinds: list[FailureKind]


class BlockFigures(_Figures):
    """Leading blocks: tokens in each, how many the old side filled, how many of them the new side still asks for."""

    size: int
    old: int
    shared: int


class HoldingSide(_Figures):
    """See :class:`kvgate.corpora.divergence.holding.SideHolding`."""

    measured: int
    held: int
    unmeasured: int


class HoldingFigures(_Figures):
    """See :class:`kvgate.corpora.divergence.holding.Holding`."""

    old: HoldingSide
    new: HoldingSide
    broken: Names
    mended: Names
    failing: Names


class BranchFigures(_Figures):
    """Branches of one side's chat templates: how many there are, and how many ran."""

    branches: int
    executed: int


class CoverageFigures(_Figures):
    """Which branches ran, and what of a changed template that leaves open, in words."""

    old: BranchFigures
    new: BranchFigures
    open: Names


class RedefinedFigure(_Figures):
    """A token id and the string that it means on each side."""

    id: int
    old: str
    new: str


class RedefinedFigures(_Figures):
    """How many there are, and the first; none is named where prompt text is left out."""

    count: int
    first: list[RedefinedFigure]


class RendererFigure(_Figures):
    """What rendered one side: version by library, and how it was asked."""

    libraries: dict[str, str]
    made: str


class TokenFigures(_Figures):
    """Two snapshots compared; see :class:`kvgate.corpora.snapshots.comparison.SnapshotComparison`."""

    corpus: str
    conversations: int
    divergent: int
    by_template: int
    by_tokenizer: int
    kinds: list[PartingKind]
    first: list[Parting]
    unexamined: Failures
    only_old: Names
    only_new: Names
    blocks: BlockFigures | None
    turns: HoldingFigures | None
    answers: HoldingFigures | None
    redefined: RedefinedFigures
    coverage: CoverageFigures | None
    renderers: dict[Literal["old", "new"], RendererFigure]
    same_corpus: bool
    same_renderer: bool
    same_template: bool
    same_options: bool
    drifted: bool
    redacted: bool

    def as_data(self) -> dict[str, Any]:
        """Return the figures as plain JSON data."""
        return self.model_dump(mode="json", by_alias=True)


def is_public(found: SnapshotComparison) -> bool:
    """Whether both sides rendered the diagnostic corpus that this kvgate ships: anybody can read its text."""
    ours = load_corpus(DIAGNOSTIC).digest
    return found.old.corpus_digest == found.new.corpus_digest == ours


def figures_of(
    found: SnapshotComparison, *, redact: bool | None, named: int, detailed: int, rows: bool = False
) -> TokenFigures:
    """Return the figures of a comparison.

    Args:
        found: the comparison.
        redact: leave prompt text out; ``None``: unless the corpus is public.
        named: how many kinds of divergence, and how many divergent conversations, are named; all are counted.
        detailed: how many of the kinds are shown with their tokens.
        rows: show the conversations with their tokens as well.

    """
    hidden = not is_public(found) if redact is None else redact
    blocks = found.blocks
    size = None if blocks is None else blocks.size
    return TokenFigures(
        corpus=found.old.corpus if found.same_corpus else f"{found.old.corpus}, {found.new.corpus}",
        conversations=found.examined,
        divergent=found.divergent,
        by_template=found.by_template,
        by_tokenizer=found.by_tokenizer,
        kinds=[
            PartingKind(
                example=_parting(kind.example, size, rows=not hidden and number < detailed),
                count=kind.count,
                conversations=list(kind.names),
            )
            for number, kind in enumerate(found.kinds[:named])
        ],
        first=[_parting(one, size, rows=rows and not hidden) for one in found.divergences.first[:named]],
        unexamined=Failures(
            count=found.unexamined.count,
            kinds=_failures(found.failures[:named], hidden=hidden),
        ),
        only_old=_names(found.only_old, named),
        only_new=_names(found.only_new, named),
        blocks=None if blocks is None else BlockFigures(size=blocks.size, old=blocks.old, shared=blocks.shared),
        turns=_holding(found.turns, named),
        answers=_holding(found.answers, named),
        redefined=RedefinedFigures(
            count=found.redefined.count,
            first=[]
            if hidden
            else [RedefinedFigure(id=one.id, old=one.old, new=one.new) for one in found.redefined.first[:named]],
        ),
        coverage=_coverage(found.coverage, named),
        renderers={
            "old": RendererFigure(libraries=dict(found.old.renderer), made=found.old.made),
            "new": RendererFigure(libraries=dict(found.new.renderer), made=found.new.made),
        },
        same_corpus=found.same_corpus,
        same_renderer=found.same_renderer,
        same_template=found.same_template,
        same_options=found.same_options,
        drifted=found.drifted,
        redacted=hidden,
    )


def evidence_figures(comparisons: Sequence[SnapshotComparison], *, redact: bool | None) -> dict[str, Any]:
    """Return the figures of ``token-identity`` evidence: sums over all corpora, and each corpus by itself.

    Args:
        comparisons: one for each corpus.
        redact: as for :func:`figures_of`.

    """
    each = [figures_of(one, redact=redact, named=10, detailed=3) for one in comparisons]
    blocks = [one.blocks for one in each if one.blocks is not None]
    return {
        "conversations": sum(one.conversations for one in each),
        "divergent": sum(one.divergent for one in each),
        **(
            {
                "blocks": {
                    "size": blocks[0].size,
                    "old": sum(one.old for one in blocks),
                    "shared": sum(one.shared for one in blocks),
                }
            }
            if blocks
            else {}
        ),
        "corpora": [one.as_data() for one in each],
    }


def _parting(one: Divergence, size: int | None, *, rows: bool) -> Parting:
    return Parting(
        conversation=one.id,
        date=one.date,
        token=one.token,
        old_tokens=one.old_tokens,
        new_tokens=one.new_tokens,
        character=one.character,
        character_unknown=one.character_unknown,
        same_text=one.same_text,
        begins=one.begins,
        cause=one.cause.kind,
        why=one.cause.words,
        old_blocks=None if size is None else one.old_tokens // size,
        shared_blocks=None if size is None else one.token // size,
        rows=[RowFigure(old=_token(row.old), new=_token(row.new)) for row in one.window.rows] if rows else None,
    )


def _token(token: Token | None) -> TokenFigure | None:
    return None if token is None else TokenFigure(index=token.index, id=token.id, text=token.text)


def _failures(found: Sequence[Group[Unexamined]], *, hidden: bool) -> list[FailureKind]:
    kinds: dict[tuple[str | None, str | None, bool], tuple[int, list[str]]] = {}
    for group in found:
        one = group.example
        old, new = (
            None if error is None else error[0] if hidden or not error[1] else ": ".join(error)
            for error in (one.old, one.new)
        )
        count, names = kinds.get((old, new, one.same_error), (0, []))
        kinds[old, new, one.same_error] = (count + group.count, [*names, *group.names])
    return [
        FailureKind(old=old, new=new, same_error=same, count=count, conversations=names[:_NAMED])
        for (old, new, same), (count, names) in kinds.items()
    ]


def _coverage(found: CoverageComparison | None, named: int) -> CoverageFigures | None:
    if found is None:
        return None
    old, new = (
        BranchFigures(branches=len(side.arms), executed=sum(arm.executed for arm in side.arms))
        for side in (found.old, found.new)
    )
    return CoverageFigures(
        old=old, new=new, open=Names(count=len(found.open), first=[str(arm) for arm in found.open[:named]])
    )


def _names(tally: Tally[str], named: int) -> Names:
    return Names(count=tally.count, first=list(tally.first[:named]))


def _holding(found: Holding | None, named: int) -> HoldingFigures | None:
    if found is None:
        return None
    old, new = (
        HoldingSide(measured=side.measured, held=side.held, unmeasured=side.unmeasured)
        for side in (found.old, found.new)
    )
    return HoldingFigures(
        old=old,
        new=new,
        broken=_names(found.broken, named),
        mended=_names(found.mended, named),
        failing=_names(found.failing, named),
    )
