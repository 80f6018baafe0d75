"""Why two renderings part, as far as that can be shown. No words in here quote a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvgate.corpora.coverage.explanation import Explainer
from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.pieces import Pieces
from kvgate.corpora.divergence.window import Window
from kvgate.corpora.snapshots.snapshot import Rendered
from kvgate.corpora.tokenizers.structure import PartDifference

Kind = Literal[
    "template",
    "clock",
    "front",
    "end",
    "vocabulary",
    "one-piece",
    "segmentation",
    "tokenizer-part",
    "unknown",
]

_FRONT = 4  # tokens that a post-processor may put in front; none puts more than two


@dataclass(frozen=True)
class Cause:
    """Why two renderings part.

    Attributes:
        kind: ``template``: the rendered text differs. ``clock``: it does on the second date alone. All others
            have equal text, so that the tokenizer parts them: ``front``, ``end``: it puts other tokens in
            front or behind (BOS, EOS). ``vocabulary``: another id stands for the same piece. ``one-piece``: one
            token on one side is several on the other. ``segmentation``: the text is cut otherwise.
            ``tokenizer-part``: it is known which part of the tokenizer differs. ``unknown``: the text of a
            side was not saved.
        words: the same for a reader.

    """

    kind: Kind
    words: str


@dataclass(frozen=True)
class Sides:
    """What is known of both sides as a whole.

    Attributes:
        old: vocabulary strings of the old side.
        new: of the new side.
        same_tokenizer: whether the same tokenizer was built; ``None``: not known.
        parts: in what the two tokenizers differ, where both are at hand.
        explainer: says which lines of the template changed; ``None``: the templates' branches were not recorded.

    """

    old: Pieces
    new: Pieces
    same_tokenizer: bool | None = None
    parts: Sequence[PartDifference] = ()
    explainer: Explainer | None = None


def why(old: Rendered, new: Rendered, sides: Sides, seen: Window, *, only_on_this_date: bool) -> Cause:
    """Say why two renderings have different token ids.

    Args:
        old: the old side's.
        new: the new side's.
        sides: what is known of both sides.
        seen: the tokens round the first difference.
        only_on_this_date: both are equal on the other date that they were rendered on.

    """
    same = old.same_text(new)
    if same is None:
        return _blind(old.ids, new.ids)
    if not same:
        return _text(old, new, sides, only_on_this_date=only_on_this_date)
    return _tokenizer(old, new, sides, seen)


def begins(old: array[int], new: array[int]) -> Literal["old", "new"] | None:
    """Tell which side's ids are the whole beginning of the other's; ``None``: neither's are (incident I07)."""
    shared = common(old, new)
    if shared == len(old) < len(new):
        return "old"
    return "new" if shared == len(new) < len(old) else None


def _blind(old: array[int], new: array[int]) -> Cause:
    words = "the rendered text of a side was not saved, so that template and tokenizer cannot be told apart"
    if (front := _front(old, new)) is not None:
        words = f"only the beginning differs: {_more(*front)}; {words}"
    return Cause("unknown", words)


def _text(old: Rendered, new: Rendered, sides: Sides, *, only_on_this_date: bool) -> Cause:
    if only_on_this_date:
        return Cause("clock", "equal on the first date and not on the second: one side's template reads the clock")
    if old.text is None or new.text is None:
        return Cause("template", "the rendered text differs")
    at = common(old.text, new.text)
    words = f"the rendered text differs from character {at} on"
    if at == len(old.text) or at == len(new.text):
        side, other = ("old", "new") if at == len(old.text) else ("new", "old")
        words = f"the {side} text is the beginning of the {other}, which goes on"
    if sides.explainer is not None and (found := sides.explainer.explain(old.text, new.text, at)):
        words += f" ({'' if found[0].only else 'most likely '}{found[0]})"
    if not sides.same_tokenizer:
        shared = common(old.ids, new.ids)
        ends = [
            pieces.locate(render.text, render.ids, shared + 1) if shared < len(render.ids) else at
            for render, pieces in ((old, sides.old), (new, sides.new))
        ]
        if all(isinstance(end, int) and end < at for end in ends):
            words += "; the tokens part before that, so that the tokenizer may differ too"
    return Cause("template", words)


def _tokenizer(old: Rendered, new: Rendered, sides: Sides, seen: Window) -> Cause:
    found = _seen(old, new, sides, seen)
    differing = [part for part in sides.parts if part.inert is None]
    fitting = [part for part in differing if part.part in _PARTS.get(found.kind, ())] or differing
    if not fitting:
        return found
    parts = ", ".join(f"{part.part} ({part.what})" for part in fitting)
    if len({part.part for part in fitting}) == 1:
        return Cause("tokenizer-part", f"{found.words}; of the tokenizer's parts only this can be why: {parts}")
    return Cause(found.kind, f"{found.words}; the tokenizers differ in {parts}")


# Which parts of a tokenizer can do what was seen, where several differ.
_PARTS: dict[Kind, tuple[str, ...]] = {
    "front": ("post-processor", "wrapper", "normalizer", "pre-tokenizer"),
    "end": ("post-processor", "wrapper"),
    "vocabulary": ("vocabulary", "added-tokens"),
}


def _seen(old: Rendered, new: Rendered, sides: Sides, seen: Window) -> Cause:
    if (front := _front(old.ids, new.ids)) is not None:
        return Cause("front", f"equal text, only the beginning differs: {_more(*front)} (BOS or prefix rule)")
    if not old.ids or not new.ids:
        side = "new" if new.ids else "old"
        return Cause("front", f"equal text of no tokens, and the {side} side adds its own (BOS or EOS rule)")
    if (first := begins(old.ids, new.ids)) is not None:
        return Cause(
            "end", f"equal text, the {'new' if first == 'old' else 'old'} side only adds at the end (EOS rule)"
        )
    if old.ids[1:] == new.ids[1:] and _zero_width(old, sides.old) and _zero_width(new, sides.new):
        return Cause("front", "equal text, and another token is put in front of it (BOS rule)")
    row = seen.rows[seen.first]
    if row.old is not None and row.new is not None and row.old.reads_as(row.new):
        return Cause("vocabulary", "equal text, and another id stands for the same piece of it")
    if seen.apart is not None and 1 in seen.apart and max(seen.apart) > 1:
        count, one = max(seen.apart), "old" if seen.apart[0] == 1 else "new"
        other = "new" if one == "old" else "old"
        words = f"equal text: what is one token on the {one} side is {count} on the {other}"
        return Cause("one-piece", f"{words} (an added token, or a merge)")
    return Cause("segmentation", "equal text, cut into other tokens (normaliser, pre-tokenizer, vocabulary or merges)")


def _zero_width(side: Rendered, pieces: Pieces) -> bool:
    """Whether the first token is no part of the text."""
    return len(side.ids) > 1 and pieces.locate(side.text, side.ids, 1) == 0


def _front(old: array[int], new: array[int]) -> tuple[str, int] | None:
    """Return the side with more tokens in front and how many, where all others are equal and there are others."""
    more = len(old) - len(new)
    if 0 < more <= _FRONT and new and old[more:] == new:
        return "old", more
    if 0 < -more <= _FRONT and old and new[-more:] == old:
        return "new", -more
    return None


def _more(side: str, count: int) -> str:
    return f"{count} more {'token stands' if count == 1 else 'tokens stand'} in front on the {side} side"
