"""``kvgate corpus``: conversations, and what a renderer makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from kvgate.cli.options import ConfigFile, Debug, NoColor, NoConfig

Source = Annotated[str, typer.Argument(metavar="[SOURCE]", help="diagnostic, or a JSONL file of requests.")]


def list_corpora(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Your own corpora (JSONL), listed as well.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print them.")] = "text",
    config: ConfigFile = None,
    no_config: NoConfig = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """List the corpora that there are: the one that kvgate ships, those of the configuration, and FILEs.

    Example:
      kvgate corpus list requests.jsonl
    """
    from kvgate.cli import console
    from kvgate.cli.config import find_config
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import visible
    from kvgate.cli.progress import shown
    from kvgate.corpora.conversations.corpus import DIAGNOSTIC, load_corpus

    wanted = json_wanted(output)
    found = find_config(config, none=no_config)
    names = dict.fromkeys([DIAGNOSTIC, *(found.path(path) for path in found.check.corpus), *(sources or ())])
    with shown(quiet=False, no_color=no_color) as progress:
        corpora = {name: load_corpus(name, progress) for name in names}
        tags = {
            name: Counter(tag for one in corpus.conversations() for tag in one.tags) for name, corpus in corpora.items()
        }
    if wanted:
        rows = [
            {
                "source": name,
                "id": corpus.id,
                "digest": corpus.digest,
                "conversations": corpus.count,
                "tags": dict(sorted(tags[name].items())),
            }
            for name, corpus in corpora.items()
        ]
        console.emit(as_json(rows))
        return 0
    for name, corpus in corpora.items():
        counted = "1 conversation" if corpus.count == 1 else f"{corpus.count:,} conversations"
        console.emit(f"{visible(corpus.id)}  {counted}" + ("\n" if name == DIAGNOSTIC else f"  {visible(name)}\n"))
        if tags[name]:
            console.emit(
                f"  tags: {', '.join(f'{visible(tag)} {count}' for tag, count in sorted(tags[name].items()))}\n"
            )
    return 0


def show_corpus(
    source: Source = "diagnostic",
    conversation: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Show one conversation in full, prompt text and all.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only conversations with this tag; of several, with all.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Show the conversations of a corpus and why they are there.

    Examples:
      kvgate corpus show --tag tools
      kvgate corpus show requests.jsonl --id line-12
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import visible
    from kvgate.cli.progress import shown
    from kvgate.corpora.conversations.corpus import load_corpus
    from kvgate.rules.errors import UsageError

    wanted = json_wanted(output)
    with shown(quiet=False, no_color=no_color) as progress:
        corpus = load_corpus(source, progress)
    if conversation is not None:
        found = next((one for one in corpus.conversations() if one.id == conversation), None)
        if found is None:
            raise UsageError(f"there is no conversation {conversation!r}", where=corpus.id)
        console.emit(as_json({"id": found.id, "tags": list(found.tags), "why": found.why, **found.input()}))
        return 0
    tags = set(tag or ())
    chosen = [(one.id, one.tags, one.why) for one in corpus.conversations() if tags <= set(one.tags)]
    if not chosen:
        raise UsageError(
            f"no conversation has the tag {' and '.join(sorted(tags))}", where=corpus.id, hint="`kvgate corpus list`"
        )
    if wanted:
        rows = [{"id": name, "tags": list(marks), "why": why} for name, marks, why in chosen]
        console.emit(as_json({"corpus": corpus.id, "digest": corpus.digest, "conversations": rows}))
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    counted = f"{len(chosen):,} of {corpus.count:,}" if tags else f"{corpus.count:,}"
    page.heading(f"{visible(corpus.id)}: {counted} conversations")
    for name, marks, why in chosen:
        shown_tags = f" [{visible(', '.join(marks))}]" if marks else ""
        page.parts([(visible(name), "bold"), (f"{shown_tags} {visible(why)}".rstrip(), "")], indent=2, hang=4)
    console.emit(page.text())
    return 0
