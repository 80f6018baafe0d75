"""One conversation that two renderers made different token ids of: where, how far, round what, and why."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.cause import Cause, Sides, begins, why
from kvgate.corpora.divergence.window import Window, window
from kvgate.corpora.snapshots.snapshot import Rendered


@dataclass(frozen=True)
class Divergence:
    """Where two renderings of one conversation part.

    Attributes:
        id: as in the corpus.
        date: index of the date that it was rendered on; 1 only where a template reads the clock.
        token: index of the first token id that differs, or of the end of the shorter side.
        old_tokens: how many ids the old side has.
        new_tokens: how many ids the new side has.
        character: index of the character of the rendered text at which that token begins; ``None``: unknown.
        character_unknown: why it is unknown.
        same_text: whether the rendered text is equal; ``None``: a side's was not saved.
        begins: the side whose ids are the whole beginning of the other's; ``None``: neither's.
        cause: why, as far as that can be shown.
        window: the tokens on both sides.

    """

    id: str
    date: int
    token: int
    old_tokens: int
    new_tokens: int
    character: int | None
    character_unknown: str | None
    same_text: bool | None
    begins: Literal["old", "new"] | None
    cause: Cause
    window: Window

    @property
    def kind(self) -> Hashable:
        """What is equal for divergences that look alike: the cause, and where it matters the tokens that differ."""
        if self.cause.kind in ("front", "end", "clock"):
            return self.cause
        row = self.window.rows[self.window.first]
        tokens = (row.old and row.old.id, row.new and row.new.id)
        return (self.cause.kind, self.begins, *tokens)


def describe(
    name: str, date: int, old: Rendered, new: Rendered, sides: Sides, *, only_on_this_date: bool
) -> Divergence:
    """Describe two renderings whose token ids differ; the arguments are those of :func:`why`."""
    token = common(old.ids, new.ids)
    seen = window(old.ids, new.ids, token, sides.old, sides.new)
    places = [sides.old.locate(old.text, old.ids, token), sides.new.locate(new.text, new.ids, token)]
    known = [place for place in places if isinstance(place, int)]
    return Divergence(
        id=name,
        date=date,
        token=token,
        old_tokens=len(old.ids),
        new_tokens=len(new.ids),
        character=known[0] if known else None,
        character_unknown=None if known else str(places[0]),
        same_text=old.same_text(new),
        begins=begins(old.ids, new.ids),
        cause=why(old, new, sides, seen, only_on_this_date=only_on_this_date),
        window=seen,
    )
