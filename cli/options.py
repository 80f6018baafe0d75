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
AskedServer = Annotated[
    str, typer.Option(metavar="URL", help="The running server, vLLM, SGLang or a hosted API: https://HOST[:PORT].")
]
AskedManifest = Annotated[
    str | None, typer.Option(metavar="MANIFEST", help="What is asked, as it was captured: evidence is about it.")
]
AskedPool = Annotated[
    str | None,
    typer.Option("--pool", metavar="NAME", help="The pool that the server is of. [default: whichever it fits]"),
]
AnswerSeconds = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="Within which an answer must come.")
]
EvidenceOutput = Annotated[
    list[str] | None,
    typer.Option("--output", "-o", metavar="text|json|FILE.json", help="How to print it; the evidence. Repeatable."),
]
