"""Where token ids diverge, for a reader: aligned tokens with white space that can be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from kvgate.cli.formats.escaping import code, escaped
from kvgate.cli.formats.page import Page
from kvgate.cli.plain import marked, short

if TYPE_CHECKING:
    from kvgate.corpora.divergence.figures import (
        FailureKind,
        HoldingFigures,
        HoldingSide,
        Parting,
        PartingKind,
        RowFigure,
        TokenFigure,
        TokenFigures,
    )

_KINDS = 20  # kinds of divergence that are shown
_NAMED = 5  # conversations that are named; all are counted
_WIDEST = 24  # cells of one token beside another
_LONGEST = 80  # characters of one token in a table that the reader's program lays out
_NARROWEST = 8
_STYLES = ("bold red", "bold green")
_GAP = "  "
_HEAD = (("", "old", "id"), ("", "new", "id"))


def read_tokens(data: Any) -> TokenFigures:
    """Return figures from plain data whose strings were made harmless.

    Raises:
        ValueError: they are something else.

    """
    from kvgate.corpora.divergence.figures import TokenFigures

    return TokenFigures.model_validate(data, by_alias=True)


def show_tokens(page: Page, found: TokenFigures, more: Sequence[str] = (), *, indent: int = 0) -> None:
    """Add a comparison to a page, and further notes at its end."""
    first, *rest = (*_summary(found), *_held(found))
    for line in (f"{found.corpus}: {first}", *rest):
        page.say(line, indent=indent, hang=2)
    for kind in found.kinds[:_KINDS]:
        one = kind.example
        page.parts([(one.conversation, "bold"), (f"  {_where(one)}", "")], indent=indent, hang=4)
        page.say(f"why: {one.why}", indent=indent + 2, hang=5)
        if one.rows:
            _table(page, one.rows, indent + 2)
        if others := _others(kind):
            page.say(others, indent=indent + 2, hang=2)
    if left := _left(found):
        page.say(left, indent=indent)
    for line in (*_notes(found), *more):
        page.say(line, indent=indent, hang=2)


def tokens_markdown(found: TokenFigures, more: Sequence[str] = ()) -> str:
    """Return a comparison, and further notes, as Markdown."""
    first, *rest = (f"{escaped(line)}  " for line in (*_summary(found), *_held(found)))
    lines = [f"{code(found.corpus)}: {first}", *rest]
    for kind in found.kinds[:_KINDS]:
        one = kind.example
        lines += ["", f"* {code(one.conversation)}: {escaped(_where(one))}  ", f"  why: {escaped(one.why)}"]
        if others := _others(kind):
            lines[-1] += f"  \n  {escaped(others)}"
        if one.rows:
            lines += ["", *(f"  {line}" for line in _markdown_table(one.rows))]
    if left := _left(found):
        lines += ["", left]
    found_notes = [f"* {escaped(line)}" for line in (*_notes(found), *more)]
    return "\n".join([*lines, *(["", *found_notes] if found_notes else [])]) + "\n"


def _markdown_table(rows: Sequence[RowFigure]) -> Iterator[str]:
    yield "| | | old | id | | new | id |"
    yield "|---|--:|---|--:|--:|---|--:|"
    for row in rows:
        old, new = _cell(row.old), _cell(row.new)
        cells = ["" if old[2] == new[2] else "**>**"]
        for index, text, token in (old, new):
            cells += [index, code(short(text, _LONGEST)), token]
        yield f"| {' | '.join(cells)} |"


def _summary(found: TokenFigures) -> Iterator[str]:
    """Say how many conversations diverge and what that leaves of the old blocks."""
    counted = "1 conversation" if found.conversations == 1 else f"{found.conversations:,} conversations"
    if not found.divergent:
        yield f"{counted} compared, none diverges"
    else:
        unknown = found.divergent - found.by_template - found.by_tokenizer
        by = [
            f"{count:,} {how}"
            for count, how in (
                (found.by_template, "by the rendered text"),
                (found.by_tokenizer, "by the tokenizer"),
                (unknown, "where a side's text was not saved"),
            )
            if count
        ]
        verb = "diverges" if found.divergent == 1 else "diverge"
        yield f"{found.divergent:,} of {counted} {verb}: {', '.join(by)}"
    if found.blocks is not None:
        yield shared_blocks(found.blocks.size, found.blocks.old, found.blocks.shared)


def shared_blocks(size: int, old: int, shared: int) -> str:
    """Say what share of the old blocks stays within reach."""
    if not old:
        return f"no conversation fills a block of {size} tokens, so nothing is said about old blocks"
    # Rounded down: 100 % is all of them.
    return f"old blocks still reached: {shared:,} of {old:,} ({100 * shared // old} %), of {size:,} tokens each"


def _notes(found: TokenFigures) -> Iterator[str]:
    """Say what was not compared, and what the comparison does not speak of."""
    for failed in found.unexamined.kinds[:_KINDS]:
        yield f"not compared: {_several(failed.conversations, failed.count)}: {_failure(failed)}"
    if left := found.unexamined.count - sum(failed.count for failed in found.unexamined.kinds[:_KINDS]):
        yield f"not compared: {left:,} more that a side could not render"
    for names, side in ((found.only_old, "old"), (found.only_new, "new")):
        if names.count:
            yield f"not compared: only the {side} side has {_several(names.first, names.count)}"
    # Where texts differ the change shows, and what else it may do is beside the point.
    if found.coverage is not None and found.coverage.open.count and not found.by_template:
        yield from (f"not compared: {line}" for line in found.coverage.open.first[:_KINDS])
        if left := found.coverage.open.count - len(found.coverage.open.first[:_KINDS]):
            yield f"not compared: {left:,} more of the changed template"
    if found.coverage is None and not found.same_template:
        yield "which branches of the chat templates ran was not recorded: what no conversation reached is open"
    if found.redefined.count:
        ids = ", ".join(f"{one.id} ({marked(one.old)} -> {marked(one.new)})" for one in found.redefined.first[:5])
        yield f"{found.redefined.count:,} token ids mean another string on each side" + (f": {ids}" if ids else "")
    if not found.same_corpus:
        yield "the corpora differ: only conversations with equal content were compared"
    if not found.same_options:
        yield "the rendering options differ"
    if found.drifted:
        yield (
            "drift: tokenizer, template, options and libraries are recorded as equal, and the ids are not: one of "
            "the two was edited, or is not what it says"
        )
    if found.redacted and (found.divergent or found.unexamined.count):
        yield "prompt text is left out, and the tokens with it (kvgate corpus compare --no-redact shows them)"


def _held(found: TokenFigures) -> Iterator[str]:
    yield from _holding(found.turns, "turns", "are the beginning of what the chat goes on to be")
    yield from _holding(found.answers, "generated answers", "re-tokenize to the ids that were generated")
    if found.coverage is not None:
        sides = (("old", found.coverage.old), ("new", found.coverage.new))
        ran = ", ".join(f"{name} {side.executed:,} of {side.branches:,}" for name, side in sides)
        yield f"branches of the chat template that ran: {ran}"


def _holding(held: HoldingFigures | None, what: str, how: str) -> Iterator[str]:
    if held is None:
        return
    sides = [
        f"{name} {side.held:,} of {side.measured:,}"
        + (f" ({side.unmeasured:,} not measured)" if side.unmeasured else "")
        for name, side in (("old", held.old), ("new", held.new))
    ]
    yield f"{what} that {how}: {', '.join(sides)}"
    for names, words in (
        (held.broken, "no longer in"),
        (held.mended, "only now in"),
        (held.failing, "on neither side in"),
    ):
        if names.count:
            yield f"  {words} {_several(names.first, names.count)}"


def _of(side: HoldingSide) -> str:
    unmeasured = f" ({side.unmeasured:,} not measured)" if side.unmeasured else ""
    return f"{side.held:,} of {side.measured:,}{unmeasured}"


def _failure(failed: FailureKind) -> str:
    if failed.old is not None and failed.old == failed.new:
        return f"neither side could render {'it' if failed.count == 1 else 'them'} ({failed.old})"
    sides = (("old", failed.old), ("new", failed.new))
    return "; ".join(f"the {side} side could not render ({error})" for side, error in sides if error is not None)


def _several(names: Sequence[str], count: int) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if count <= _NAMED else f"{shown} and {count - _NAMED:,} more"


def _others(kind: PartingKind) -> str:
    if kind.count == 1:
        return ""
    others = [name for name in kind.conversations if name != kind.example.conversation]
    return f"likewise {kind.count - 1:,} more: {_several(others, kind.count - 1)}"


def _left(found: TokenFigures) -> str:
    left = found.divergent - sum(kind.count for kind in found.kinds[:_KINDS])
    return f"and {left:,} more that diverge in other ways" if left else ""


def _where(one: Parting) -> str:
    place = f"token {one.token:,} of {one.old_tokens:,}"
    if one.old_tokens != one.new_tokens:
        place += f" (new: {one.new_tokens:,})"
    if one.begins is not None and one.token:
        other = "new" if one.begins == "old" else "old"
        counts = {"old": one.old_tokens, "new": one.new_tokens}
        place = f"all {counts[one.begins]:,} {one.begins} ids are the beginning of the {counts[other]:,} {other} ones"
    parts = [place]
    if one.character is not None:
        parts.append(f"character {one.character:,}")
    if one.date:
        parts.append("on the second date")
    if one.old_blocks:
        parts.append(f"{one.shared_blocks:,} of {one.old_blocks:,} blocks shared")
    return ", ".join(parts)


def _table(page: Page, rows: Sequence[RowFigure], indent: int) -> None:
    """Lay out the tokens of both sides beside each other: no line is wider than the page."""
    cells = [_HEAD, *((_cell(row.old), _cell(row.new)) for row in rows)]
    numbers, ids = ([max(len(row[side][column]) for row in cells) for side in (0, 1)] for column in (0, 2))
    room = page.width - indent - len("> ") - sum(numbers) - sum(ids) - 5 * len(_GAP)
    if room < 2 * _NARROWEST:  # the pieces are what a person reads; -o json has the ids
        room += sum(ids) + 2 * len(_GAP)
        ids = [0, 0]
    texts = [min(max(cell_len(row[side][1]) for row in cells), max(room // 2, 1), _WIDEST) for side in (0, 1)]
    for number, row in enumerate(cells):
        differs = number > 0 and row[0][2] != row[1][2]
        parts = [("> " if differs else "  ", "")]
        for side in (0, 1):
            index, text, token = row[side]
            style = _STYLES[side] if differs else "dim" if number == 0 else ""
            parts.append((_GAP * side + index.rjust(numbers[side]) + _GAP + _fitted(text, texts[side]), style))
            if ids[side]:
                parts.append((_GAP + token.rjust(ids[side]), style))
        page.row(parts, indent=indent)


def _cell(token: TokenFigure | None) -> tuple[str, str, str]:
    if token is None:
        return "", "", ""
    return str(token.index), "(not saved)" if token.text is None else marked(token.text), str(token.id)


def _fitted(text: str, cells: int) -> str:
    if cell_len(text) > cells:
        text = set_cell_size(text, cells - 1).rstrip() + "…"
    return set_cell_size(text, cells)
