"""``kvgate corpus sweep``: look for a text that two tokenizers give other ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.cli.formats.page import Page
    from kvgate.corpora.sweeps.result import SweepResult, SweptDivergence

DIFFERENT = 10
OPEN = 11
_AROUND = 3  # ids shown on each side of the first that differs


def sweep_corpus(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A model folder with its tokenizer files.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another one.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing; the exit code says it.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Encode strings made from two tokenizers with both, and say where they part.

    Every vocabulary entry, every added token with all sorts of neighbours, every assigned code point, borders
    between classes of characters, and the strings in which changed merges compete. Both are built by the
    libraries of this environment.

    Exit codes:
      0   one tokenizer: both effective digests are equal
      10  a string has other ids, or an id stands for other text
      11  they differ, and no string shows it (which proves nothing)

    Example:
      kvgate corpus sweep /models/llama-r1 /models/llama-r2
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.progress import shown
    from kvgate.corpora.sweeps.sweep import compare_tokenizers

    wanted = json_wanted(output)
    with shown(quiet=quiet, no_color=no_color) as progress:
        found = compare_tokenizers(old, new, progress=progress)
    if wanted and not quiet:
        console.emit(as_json(_as_data(found)))
    elif not quiet:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        _show(page, found)
        console.emit(page.text())
    if found.differs:
        return DIFFERENT
    return 0 if found.equal else OPEN


def _as_data(found: SweepResult) -> dict[str, Any]:
    inert = [{"part": one.part, "inert": one.inert, "why": one.what} for one in found.parts if one.inert is not None]
    digests = {"old": found.old_effective, "new": found.new_effective}
    return {"equal": found.equal, "effective": digests, **found.figures(), "inert": inert}


def _show(page: Page, found: SweepResult) -> None:
    from kvgate.cli.plain import marked, visible

    if found.equal:
        page.say(f"one tokenizer: both are {found.new_effective}")
    else:
        page.say(f"{found.strings:,} strings encoded by both, {found.divergent:,} diverge")
    counted = [one for one in found.parts if one.inert is None]
    if counted:
        page.heading("Where they differ")
    for one in counted:
        page.say(f"{one.part}: {one.what} ({one.count})", indent=2, hang=2)
        for example in one.examples:
            page.say(visible(example), indent=4, hang=2)
    if found.meanings:
        page.heading(f"Ids that stand for other text ({found.meanings:,})")
        for other in found.other_meanings:
            page.say(f"{other.id}: {visible(other.old)} -> {visible(other.new)}", indent=2, hang=2)
    if any(group.divergent for group in found.groups):
        page.heading("Strings that diverge")
    for group in found.groups:
        if group.divergent:
            page.say(f"{group.name}: {group.divergent:,} of {group.strings:,}", indent=2)
            first = next(one for one in found.divergences if one.group == group.name)
            page.say(f"'{marked(first.text)}', from token {first.at}:", indent=4, hang=2)
            for side, row in (("old", _row(first, "old")), ("new", _row(first, "new"))):
                page.say(f"{side} {row}", indent=6, hang=2)
    open_points = [(one.name, f"{one.failed:,} strings could not be encoded") for one in found.groups if one.failed]
    for what, why in (*found.unswept, *open_points):
        page.say(f"not swept: {what}: {visible(why)}", hang=2)
    for one in found.parts:
        if one.inert is not None:
            page.say(f"differs, and no id depends on it: {one.part} ({one.inert}): {one.what}", hang=2)
    if not found.equal and not found.differs:
        page.say("nothing shows that they differ, which does not prove them equal", hang=2)


def _row(found: SweptDivergence, side: str) -> str:
    from kvgate.cli.plain import marked

    ids = getattr(found, f"{side}_ids")
    pieces = getattr(found, f"{side}_pieces")
    start, end = max(0, found.at - _AROUND), found.at + _AROUND
    shown = [f"{token} {marked(piece or '?')}" for token, piece in zip(ids[start:end], pieces[start:end], strict=True)]
    return ("... " if start else "") + ", ".join(shown) + (" ..." if end < len(ids) else "")
