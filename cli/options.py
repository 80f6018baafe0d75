"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours; so does NO_COLOR in the environment.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read this configuration. Else the nearest kvgate.yaml, or pyproject.toml with [tool.kvgate], is read: of "
        "this folder or one above it, up to the root of the git repository.",
    ),
]
NoConfig = Annotated[bool, typer.Option("--no-config", help="Read no configuration file.")]
