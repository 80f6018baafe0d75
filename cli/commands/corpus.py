"""``kvgate corpus``: conversations, what a renderer makes of them, and where two renderers part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.corpora.comparison import SnapshotComparison
    from kvgate.corpora.snapshot import SnapshotFile

DIVERGENT = 10
UNEXAMINED = 11
_NAMED = 20  # divergent conversations that are listed; all are counted

Source = Annotated[str, typer.Argument(metavar="[SOURCE]", help="diagnostic, or a JSONL file of requests.")]


def list_corpora(
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print them.")] = "text",
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """List the corpora that kvgate ships."""
    from kvgate.cli import console
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.corpora.corpus import DIAGNOSTIC, load_corpus

    wanted = json_wanted(output)
    corpus = load_corpus(DIAGNOSTIC)
    if wanted:
        console.emit(as_json([{"id": corpus.id, "digest": corpus.digest, "conversations": corpus.count}]))
    else:
        console.emit(f"{corpus.id}  {corpus.count} conversations\n")
    return 0


def show_corpus(
    source: Source = "diagnostic",
    conversation: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Show one conversation in full.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Show the conversations of a corpus and why they are there.

    Examples:
      kvgate corpus show
      kvgate corpus show requests.jsonl --id line-12
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import visible
    from kvgate.corpora.corpus import load_corpus
    from kvgate.rules.errors import UsageError

    wanted = json_wanted(output)
    corpus = load_corpus(source)
    if conversation is not None:
        found = next((one for one in corpus.conversations() if one.id == conversation), None)
        if found is None:
            raise UsageError(f"there is no conversation {conversation!r}", where=corpus.id)
        console.emit(as_json({"id": found.id, "tags": list(found.tags), "why": found.why, **found.input()}))
        return 0
    if wanted:
        rows = [{"id": one.id, "tags": list(one.tags), "why": one.why} for one in corpus.conversations()]
        console.emit(as_json({"corpus": corpus.id, "digest": corpus.digest, "conversations": rows}))
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    page.heading(f"{visible(corpus.id)}: {corpus.count} conversations")
    for one in corpus.conversations():
        tags = f" [{visible(', '.join(one.tags))}]" if one.tags else ""
        page.parts([(visible(one.id), "bold"), (f"{tags} {visible(one.why)}", "")], indent=2, hang=4)
    console.emit(page.text())
    return 0


def snapshot_corpus(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder with its tokenizer files.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the snapshot goes (.jsonl).")],
    corpus: Annotated[str, typer.Option(metavar="SOURCE", help="diagnostic, or a JSONL file.")] = "diagnostic",
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="A chat template that replaces the folder's.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A rendering option, as in tokenizer.options. Repeatable."),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave prompt text out; the token ids stay, and can be read.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Render a corpus with this environment's libraries, and save text and token ids.

    Run it inside the image that serves. Prints the lines for tokenizer.snapshot in the manifest.

    Example:
      kvgate corpus snapshot /models/llama -o tokens.jsonl
    """
    import json

    from kvgate.cli import console
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.progress import shown
    from kvgate.cli.settings import parse_settings
    from kvgate.corpora.corpus import load_corpus
    from kvgate.corpora.examine import take_snapshot

    prefix = "tokenizer.options."
    options = {
        name.removeprefix(prefix): value
        for name, value in parse_settings(f"{prefix}{text}" for text in option or ()).items()
    }
    refuse_overwriting([output], (Path(name) for name in (corpus, chat_template) if name is not None))
    with shown(quiet=quiet, no_color=no_color) as progress:
        snapshot = take_snapshot(
            folder,
            load_corpus(corpus, progress),
            output,
            template=chat_template,
            options=options,
            redact=redact,
            progress=progress,
        )
    if not quiet:
        sidecar = {
            "file": output.name,
            "sha256": snapshot.sha256,
            "corpus": snapshot.header.corpus,
            "renderer": dict(snapshot.header.renderer),
        }
        console.emit(f"snapshot: {json.dumps(sidecar)}\n")
        for name in snapshot.header.unapplied:
            console.say(f"note: this renderer does not know the option {name}, which was not applied")
    return 0


def compare_corpora(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A snapshot (.jsonl), or a manifest that names one.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Likewise.")],
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a KV block or chunk: count the leading blocks still shared.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Say where two snapshots part: conversations, and the first token that differs.

    Exit codes:
      0   every conversation has equal token ids (which proves no tokenizer equal)
      10  at least one diverges
      11  none diverges, but some could not be compared

    Example:
      kvgate corpus compare release-6/ release-7/ --block-size 256
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.corpora.comparison import compare_snapshots, shared_blocks
    from kvgate.rules.errors import InputError

    wanted = json_wanted(output)
    found = compare_snapshots(_snapshot(old), _snapshot(new))
    if not found.examined and not found.unexamined:
        raise InputError("the two snapshots have no conversation in common", where=str(new))
    blocks = None if block_size is None else shared_blocks(found, block_size)
    data = _as_data(found)
    if blocks is not None:
        data["blocks"] = {"size": blocks.block_size, "old": blocks.old, "shared": blocks.shared}
    if wanted:
        console.emit(as_json(data))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        _show(page.say, found)
        if blocks is not None:
            page.say(f"{blocks.shared} of {blocks.old} full leading blocks of {blocks.block_size} tokens are shared")
        console.emit(page.text())
    if found.divergent:
        return DIVERGENT
    return UNEXAMINED if found.unexamined or found.only_old or found.only_new else 0


def _snapshot(path: Path) -> SnapshotFile:
    from kvgate.corpora.snapshot import open_snapshot
    from kvgate.inputs import load_manifest, sidecar_path
    from kvgate.rules.errors import InputError

    if path.suffix == ".jsonl":
        return open_snapshot(path, None)
    named = sidecar_path(load_manifest(path), "tokenizer.snapshot")
    if named is None:
        raise InputError(
            "names no token snapshot", where=str(path), hint="capture again, or `kvgate corpus snapshot FOLDER`"
        )
    return open_snapshot(*named)


def _as_data(found: SnapshotComparison) -> dict[str, object]:
    return {
        "examined": len(found.examined),
        "divergent": [
            {
                "conversation": one.id,
                "token": one.shared,
                "oldTokens": one.old_tokens,
                "newTokens": one.new_tokens,
                "sameText": one.same_text,
            }
            for one in found.divergent
        ],
        "unexamined": [{"conversation": one.id, "sameError": one.same_error} for one in found.unexamined],
        "onlyOld": list(found.only_old),
        "onlyNew": list(found.only_new),
        "sameCorpus": found.same_corpus,
        "sameRenderer": found.same_renderer,
        "sameOptions": found.same_options,
    }


def _show(say: Callable[..., None], found: SnapshotComparison) -> None:
    from kvgate.cli.plain import visible

    say(f"{len(found.examined)} conversations compared, {len(found.divergent)} diverge")
    for one in found.divergent[:_NAMED]:
        cause = "equal text, so the tokenizer parts them" if one.same_text else "the rendered text differs"
        say(f"{visible(one.id)}: from token {one.shared} of {one.old_tokens} ({cause})", indent=2, hang=2)
    if (left := len(found.divergent) - _NAMED) > 0:
        say(f"and {left} more (-o json lists all)", indent=2)
    for failed in found.unexamined:
        error = (failed.new or failed.old or ("", ""))[0]
        say(f"not compared: {visible(failed.id)}: a side could not render it ({visible(error)})", hang=2)
    if found.only_old or found.only_new:
        say(f"not compared: {len(found.only_old)} only on the old side, {len(found.only_new)} only on the new")
    if found.same_renderer:
        say("one library version rendered both: nothing is said about an upgrade of it")
    if not found.same_options:
        say("the rendering options differ")
