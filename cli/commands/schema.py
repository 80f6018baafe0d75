"""``kvgate schema``: the published JSON Schemas."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli.options import Debug


def schema(
    name: Annotated[
        str,
        typer.Argument(metavar="manifest|record|evidence|waivers|profile|served-weights", help="Which file it is for."),
    ],
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Print the JSON Schema of a file that kvgate reads or writes, or of what each worker of an engine replies.

    Example:
      kvgate schema manifest > kvgate-manifest.schema.json
    """
    from kvgate.cli import console
    from kvgate.cli.listing import as_json
    from kvgate.cli.schemas import schema_of

    console.emit(as_json(schema_of(name)))
    return 0
