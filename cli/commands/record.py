"""``kvgate record``: reading a decision record again, and deriving it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.options import Debug, NoColor

DIFFERS = 3


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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what differs.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Derive a record again from its inputs; exit 3 if it differs.

    Run it in the folder in which `kvgate check` was run: inputs are found by the paths in the record.

    Example:
      kvgate record verify record.json
    """
    from kvgate.cli import console
    from kvgate.cli.progress import shown
    from kvgate.verifying import verify_record as derive_again

    with shown(quiet=quiet, no_color=no_color) as progress:
        different = derive_again(file, progress)
    for line in different:
        console.say(f"error: {file}: {line}")
    if different:
        return DIFFERS
    if not quiet:
        console.emit("verified: the inputs give this record, byte for byte\n")
    return 0
