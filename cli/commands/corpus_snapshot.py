"""``kvgate corpus snapshot`` and ``script``: what a renderer makes of conversations, here, elsewhere or running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key
from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.corpora.conversations.corpus import Corpus
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.rules.progress import Progress

Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Ask a running vLLM or SGLang instead: http://HOST:PORT, not through a proxy."),
]


def snapshot_corpus(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the snapshot goes (.jsonl).")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A model folder with its tokenizer files.")
    ] = None,
    endpoint: Endpoint = None,
    api_key_env: ApiKeyEnv = None,
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
    """Render a corpus with this environment's libraries, or ask a running server, and save the token ids.

    Run it inside the image that serves; where kvgate is not installed, `kvgate corpus script` does the same.
    Prints the lines for tokenizer.snapshot in the manifest.

    Examples:
      kvgate corpus snapshot /models/llama -o tokens.jsonl
      kvgate corpus snapshot --endpoint http://127.0.0.1:8000 -o tokens.jsonl
    """
    import json

    from kvgate.cli import console
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.progress import shown
    from kvgate.cli.settings import parse_settings
    from kvgate.corpora.conversations.corpus import load_corpus

    refuse_both_or_neither(folder, endpoint)
    prefix = "tokenizer.options."
    options = {
        name.removeprefix(prefix): value
        for name, value in parse_settings(f"{prefix}{text}" for text in option or ()).items()
    }
    refuse_overwriting([output], (Path(name) for name in (corpus, chat_template) if name is not None))
    with shown(quiet=quiet, no_color=no_color) as progress:
        snapshot = taken(
            folder,
            endpoint,
            api_key_env,
            load_corpus(corpus, progress),
            output,
            chat_template=chat_template,
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


def print_script(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where it goes. [default: standard output]")
    ] = None,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    r"""Print a script of one file that takes a snapshot inside a serving image, an old one too.

    It needs Python 3.8 and transformers 4.40 or newer, and no kvgate; the diagnostic corpus is inside.

    Examples:
      kvgate corpus script > kvgate_snapshot.py
      docker run --rm -v "$PWD:/w" -v /models:/models --entrypoint python3 IMAGE \
        /w/kvgate_snapshot.py /models/llama -o /w/tokens.jsonl
    """
    from kvgate.cli import console
    from kvgate.cli.output import write_file
    from kvgate.corpora.standalone.printed import snapshot_script

    if output is None:
        console.emit(snapshot_script())
    else:
        write_file(output, snapshot_script())
    return 0


def taken(
    folder: Path | None,
    endpoint: str | None,
    api_key_env: str | None,
    corpus: Corpus,
    output: Path,
    *,
    chat_template: str | None,
    options: dict[str, Any],
    redact: bool,
    progress: Progress,
) -> SnapshotFile:
    """Take a snapshot of a folder, or of a server."""
    if folder is not None:
        from kvgate.corpora.examine import take_snapshot

        return take_snapshot(
            folder, corpus, output, template=chat_template, options=options, redact=redact, progress=progress
        )
    from kvgate.corpora.endpoints.asking import snapshot_endpoint
    from kvgate.corpora.endpoints.client import Client
    from kvgate.rules.errors import UsageError

    if chat_template is not None:
        raise UsageError("a server renders with its own template", where="--chat-template")
    with Client(endpoint or "", api_key(api_key_env)) as client:
        return snapshot_endpoint(client, corpus, output, options=options, redact=redact, progress=progress)


def refuse_both_or_neither(folder: Path | None, endpoint: str | None) -> None:
    """Refuse a call that names no renderer, or two.

    Raises:
        UsageError: saying so.

    """
    from kvgate.rules.errors import UsageError

    if (folder is None) == (endpoint is None):
        raise UsageError(
            "give a model folder or a server, and not both", where="FOLDER", hint="FOLDER, or --endpoint URL"
        )
