"""Does a renderer still make what a snapshot holds? Where it does not, the snapshot says nothing of it any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvgate.corpora.snapshots.comparison import SnapshotComparison

State = Literal["reproduced", "drifted", "another-renderer", "another-question", "incomplete"]


@dataclass(frozen=True)
class Drift:
    """What became of a saved snapshot.

    Attributes:
        state: ``reproduced``: every conversation gives what was saved, errors included. ``drifted``: one does not, and
            the same libraries and options made both. ``another-renderer``, ``another-question``: other libraries
            or other options made the second, which therefore says nothing of the first. ``incomplete``: nothing
            differs, but not all was asked again.
        reason: one sentence.
        comparison: saved and made again, as old and new.

    """

    state: State
    reason: str
    comparison: SnapshotComparison


def drift(comparison: SnapshotComparison) -> Drift:
    """Judge a saved snapshot (the comparison's old side) by one that was made again (its new side)."""
    saved, again = comparison.old, comparison.new
    if not comparison.same_renderer:
        was, found = (_libraries(side.renderer, side.jinja2) for side in (saved, again))
        return Drift("another-renderer", f"{was} made it, and {found} made it again", comparison)
    if saved.options != again.options or saved.clocks != again.clocks:
        asked = "the rendering options or dates are not those that it was made with"
        return Drift("another-question", asked, comparison)
    failed = [one for one in comparison.unexamined.first if not one.same_error]
    if comparison.divergent or failed:
        first = comparison.divergences.first[0].id if comparison.divergent else failed[0].id
        count = comparison.divergent + len(failed)
        said = f"{count} conversations give something else, {first} first: {_why(comparison)}"
        return Drift("drifted", said, comparison)
    unseen = comparison.unexamined.count - len(comparison.unexamined.first)
    if left := comparison.only_old.count + unseen:
        return Drift("incomplete", f"{left} of its conversations were not asked again", comparison)
    return Drift("reproduced", f"{comparison.examined} renderings, every one as it was saved", comparison)


def _why(comparison: SnapshotComparison) -> str:
    saved, again = comparison.old, comparison.new
    if saved.made == "endpoint":
        return "the server has another tokenizer or template, or its template reads the clock"
    if saved.tokenizer != again.tokenizer:
        return "another tokenizer is built from the files"
    if saved.template != again.template:
        return "the chat template is another"
    return "tokenizer, template, options and library versions are the same, so the snapshot or a library was edited"


def _libraries(renderer: object, jinja2: str | None) -> str:
    versions = dict(renderer) if isinstance(renderer, dict) else {}
    named = {**versions, **({} if jinja2 is None else {"jinja2": jinja2})}
    return ", ".join(f"{name} {version}" for name, version in sorted(named.items())) or "an unknown renderer"
