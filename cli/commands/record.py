"""``kvgate record``: reading a decision record again, and deriving it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key
from kvgate.cli.options import AskedPool, Debug, NoColor

DIFFERS = 3
NOT_READY = 10
CANNOT_TELL = 11


def show_record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A decision record (`kvgate check -o json=FILE`).")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|markdown|github", help="How to print it.")
    ] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Print the report of a decision record.

    It decides nothing: the exit code is 0.
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.github import render_github
    from kvgate.cli.formats.markdown import render_markdown
    from kvgate.cli.formats.text import render_text
    from kvgate.rules.errors import InputError, UsageError
    from kvgate.verifying import read_record

    if output not in ("text", "markdown", "github"):
        raise UsageError(f"there is no format {output!r}", where="-o", hint="formats: text, markdown, github")
    record = read_record(file)
    try:
        if output == "markdown":
            text = render_markdown(record)
        elif output == "github":
            text = render_github(record)
        else:
            color = console.colored(sys.stdout, no_color=no_color)
            text = render_text(record, width=console.width(), color=color)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
        raise InputError(
            f"is not a record that this version can lay out ({type(error).__name__}: {error})", where=str(file)
        ) from error
    console.emit(text)
    return 0


def verify_record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A decision record.")],
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask a running vLLM or SGLang whether it is what the record approved."),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="What the manifest's snapshot was taken of. [default: the diagnostic corpus]"
        ),
    ] = None,
    unasked: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="An item of the report that need not be answered. Repeatable."),
    ] = None,
    pool: AskedPool = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|json", help="How to print what a worker answered.")
    ] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what differs.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Derive a record again from its inputs; with --endpoint, compare a running worker with what it approved.

    Run it in the folder in which `kvgate check` was run: inputs are found by the paths in the record. With --endpoint
    only the new manifest and what lies beside it need to be there, and nothing is derived again. A worker of a
    deployment with pools is held against each, or against --pool: the report says which it is.

    Exit codes:
      0   the record is what its inputs give; with --endpoint: ready, everything that was approved is here
      3   it is another one, or cannot be read
      10  with --endpoint: not ready, something is not as it was approved
      11  with --endpoint: nothing differs, but something could not be asked (--unasked takes it so)

    Examples:
      kvgate record verify record.json
      kvgate record verify record.json --endpoint http://127.0.0.1:8000 --unasked untold
    """
    from kvgate.cli import console
    from kvgate.cli.listing import json_wanted
    from kvgate.cli.progress import shown
    from kvgate.rules.errors import UsageError
    from kvgate.verifying import verify_record as derive_again

    wanted = json_wanted(output)
    if endpoint is not None:
        return _worker(
            file,
            endpoint,
            api_key_env,
            corpus or [],
            unasked or [],
            pool,
            wanted=wanted,
            quiet=quiet,
            no_color=no_color,
        )
    if api_key_env or corpus or unasked or pool is not None or wanted:
        raise UsageError("is for what a running worker answers", where="--endpoint", hint="leave the other options out")
    with shown(quiet=quiet, no_color=no_color) as progress:
        different = derive_again(file, progress)
    for line in different:
        console.say(f"error: {file}: {line}")
    if different:
        return DIFFERS
    if not quiet:
        console.emit("verified: the inputs give this record, byte for byte\n")
    return 0


def _worker(
    file: Path,
    endpoint: str,
    api_key_env: str | None,
    corpora: list[Path],
    unasked: list[str],
    pool: str | None,
    *,
    wanted: bool,
    quiet: bool,
    no_color: bool,
) -> int:
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.readiness import readiness_data, readiness_page, said
    from kvgate.cli.listing import as_json
    from kvgate.cli.progress import shown
    from kvgate.readiness import verify_worker

    with shown(quiet=quiet, no_color=no_color) as progress:
        found = verify_worker(
            file, endpoint, api_key(api_key_env), corpora=corpora, unasked=unasked, pool=pool, progress=progress
        )
    if quiet:
        for item in found.items:
            if item.state == "differs":
                console.say(f"error: {endpoint}: {item.name}: {said(item, endpoint)}")
        console.emit(f"{found.state}\n")
    elif wanted:
        console.emit(as_json(readiness_data(found)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        readiness_page(page, found, endpoint)
        console.emit(page.text())
    return {"ready": 0, "not ready": NOT_READY}.get(found.state, CANNOT_TELL)
