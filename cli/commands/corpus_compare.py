"""``kvgate corpus compare``: where two renderers part, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.corpora.divergence.epoch import EpochCheck
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.rules.manifest import Manifest
    from kvgate.rules.progress import Progress

DIVERGENT = 10
UNEXAMINED = 11

_FORMATS = ("text", "json", "markdown")
_DETAILED = 5  # divergent conversations that are shown with their tokens, where a person reads
_KEPT = 1000  # that JSON holds, with their tokens
_NAMED = 20

_OWN_RENDERER = (
    "one renderer made both sides, which says nothing about an upgrade of it: take each side's snapshot inside its "
    "own image (kvgate corpus snapshot, or the one file that kvgate corpus script prints)"
)


def compare_snapshots(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A snapshot (.jsonl), or a manifest that names one.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Likewise.")],
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens in a block or chunk: count the leading blocks still shared. [default: what the manifests say]",
            show_default=False,
        ),
    ] = None,
    epoch_marker: Annotated[
        bool,
        typer.Option(
            "--epoch-marker",
            help="The prompts of both sides carry the cache epoch, and it was bumped: check that the very first block "
            "of every conversation changed.",
        ),
    ] = False,
    redact: Annotated[
        bool | None,
        typer.Option(
            "--redact/--no-redact",
            help="Leave prompt text and tokens out, or show them. [default: shown for kvgate's own corpus alone]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|json|markdown", help="How to print it.")
    ] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Say where two snapshots part: conversations, the first token that differs, why, and the blocks still shared.

    Exit codes:
      0   every conversation has equal token ids (which proves no tokenizer equal)
      10  at least one diverges
      11  none diverges, but some could not be compared

    With --epoch-marker: 0 where no conversation is within reach of its old blocks, 10 where one is.

    Examples:
      kvgate corpus compare release-6/ release-7/
      kvgate corpus compare old.jsonl new.jsonl --block-size 256 -o markdown
      kvgate corpus compare epoch-14.jsonl epoch-15.jsonl --epoch-marker --block-size 128
    """
    from kvgate.cli.listing import format_wanted
    from kvgate.cli.progress import shown
    from kvgate.rules.errors import UsageError

    wanted = format_wanted(output, _FORMATS)
    manifests = [None if path.suffix == ".jsonl" else _manifest(path) for path in (old, new)]
    files = [_snapshot(path, manifest) for path, manifest in zip((old, new), manifests, strict=True)]
    size = block_size or _block_size(manifests)
    with shown(quiet=False, no_color=no_color) as progress:
        if epoch_marker:
            if size is None:
                raise UsageError("the size of a block is not known", where="--epoch-marker", hint="--block-size N")
            _refuse_one_epoch(manifests, new)
            return _epochs(files, size, wanted, progress)
        return _compared(files, manifests, size, redact, wanted, progress, no_color=no_color)


def _compared(
    files: list[SnapshotFile],
    manifests: list[Manifest | None],
    size: int | None,
    redact: bool | None,
    wanted: str,
    progress: Progress,
    *,
    no_color: bool,
) -> int:
    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.tokens import read_tokens, show_tokens, tokens_markdown
    from kvgate.cli.listing import as_json
    from kvgate.cli.plain import harmless
    from kvgate.corpora.divergence.figures import figures_of
    from kvgate.corpora.snapshots import comparison
    from kvgate.rules.errors import InputError

    old, new = files
    found = comparison.compare_snapshots(old, new, block_size=size, progress=progress)
    if not found.examined and not found.unexamined.count:
        raise InputError(
            "the two snapshots have no conversation in common",
            where=str(new.path),
            hint="--epoch-marker, if the prompts differ in the cache epoch" if found.only_old.count else None,
        )
    told = wanted == "json"
    named, detailed = (_KEPT, _KEPT) if told else (_NAMED, _DETAILED)
    figures = figures_of(found, redact=redact, named=named, detailed=detailed, rows=told)
    notes = [_OWN_RENDERER] if found.same_renderer and not _known_same_renderer(manifests) else []
    data = figures.as_data()
    if wanted == "json":
        console.emit(as_json(data))
    elif wanted == "markdown":
        console.emit(tokens_markdown(read_tokens(harmless(data)), notes))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        show_tokens(page, read_tokens(harmless(data)), notes)
        console.emit(page.text())
    if found.divergent:
        return DIVERGENT
    return 0 if found.complete else UNEXAMINED


def _epochs(files: list[SnapshotFile], size: int, wanted: str, progress: Progress) -> int:
    from kvgate.cli import console
    from kvgate.cli.formats.escaping import escaped
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json
    from kvgate.corpora.divergence.epoch import check_epoch
    from kvgate.rules.errors import InputError

    old, new = files
    found = check_epoch(old, new, size, progress)
    if not found.examined:
        raise InputError("the two snapshots have no conversation in common", where=str(new.path))
    if wanted == "json":
        console.emit(as_json(_epoch_data(found)))
    elif wanted == "markdown":
        console.emit("".join(f"* {escaped(line)}\n" for line in _epoch_lines(found)))
    else:
        page = Page(console.width(), color=False)
        for line in _epoch_lines(found):
            page.say(line, hang=2)
        console.emit(page.text())
    if found.reached.count:
        return DIVERGENT
    return UNEXAMINED if found.unexamined.count else 0


def _epoch_data(found: EpochCheck) -> dict[str, Any]:
    return {
        "blockSize": found.block_size,
        "conversations": found.examined,
        "reached": {
            "count": found.reached.count,
            "first": [
                {"conversation": one.id, "sharedTokens": one.shared, "oldTokens": one.tokens}
                for one in found.reached.first
            ],
        },
        "unexamined": {"count": found.unexamined.count, "first": list(found.unexamined.first)},
    }


def _epoch_lines(found: EpochCheck) -> Iterator[str]:
    from kvgate.cli.plain import visible

    changed = found.examined - found.reached.count
    counted = f"{changed:,} of {found.examined:,} conversations"
    yield f"the epoch marker changes the first block ({found.block_size} tokens) of {counted}"
    for one in found.reached.first[:_NAMED]:
        yield f"still within reach: {visible(one.id)}: the first {one.shared:,} of {one.tokens:,} old tokens are equal"
    if (left := found.reached.count - len(found.reached.first[:_NAMED])) > 0:
        yield f"still within reach: {left:,} more"
    if found.reached.count:
        yield (
            "blocks are found by what stands before their end: put the marker in front of everything else that the "
            "template writes"
        )
    for name in found.unexamined.first[:_NAMED]:
        yield f"not compared: {visible(name)}: a side lacks it or could not render it"
    if (left := found.unexamined.count - len(found.unexamined.first[:_NAMED])) > 0:
        yield f"not compared: {left:,} more"


def _manifest(path: Path) -> Manifest:
    from kvgate.inputs import load_manifest

    return load_manifest(path)


def _snapshot(path: Path, manifest: Manifest | None) -> SnapshotFile:
    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.inputs import sidecar_path
    from kvgate.rules.errors import InputError

    if manifest is None:
        return open_snapshot(path, None)
    named = sidecar_path(manifest, "tokenizer.snapshot")
    if named is None:
        raise InputError(
            "names no token snapshot", where=str(path), hint="capture again, or `kvgate corpus snapshot FOLDER`"
        )
    return open_snapshot(*named)


def _block_size(manifests: list[Manifest | None]) -> int | None:
    """Return the size of a block or chunk where all manifests say the same one."""
    sizes = [
        None if one is None else one.value("cache.chunk_size") or one.value("engine.block_size") for one in manifests
    ]
    return sizes[0] if isinstance(sizes[0], int) and sizes[0] == sizes[1] else None


def _known_same_renderer(manifests: list[Manifest | None]) -> bool:
    """Whether the manifests say that one and the same renderer serves both."""
    found = [None if one is None else one.value("tokenizer.renderer") for one in manifests]
    return isinstance(found[0], dict) and None not in found[0].values() and found[0] == found[1]


def _refuse_one_epoch(manifests: list[Manifest | None], new: Path) -> None:
    from kvgate.rules.errors import UsageError

    epochs = [None if one is None else one.value("cache.epoch") for one in manifests]
    if epochs[0] is not None and epochs[0] == epochs[1]:
        raise UsageError(
            f"both manifests have the cache epoch {epochs[0]}: nothing was bumped",
            where=str(new),
            hint="render NEW with the next epoch in its prompts, or its template's options",
        )
