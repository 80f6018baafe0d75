"""``kvgate corpus verify``: does a renderer still make what a snapshot holds?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.api_key import ApiKeyEnv
from kvgate.cli.commands.corpus_snapshot import Endpoint
from kvgate.cli.options import Debug, NoColor

DRIFTED = 10
UNVERIFIED = 11


def verify_snapshot(
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="A snapshot (.jsonl).")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="The model folder that it was taken of.")
    ] = None,
    endpoint: Endpoint = None,
    api_key_env: ApiKeyEnv = None,
    corpus: Annotated[
        str, typer.Option(metavar="SOURCE", help="What it was taken of: diagnostic, or a JSONL file.")
    ] = "diagnostic",
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="The chat template that replaced the folder's.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Render again what a snapshot holds, with the options that it names, and say whether anything drifted.

    Exit codes:
      0   everything is as it was saved
      10  the same libraries make something else now
      11  it cannot be said: other libraries are installed here, or the corpus is another

    Examples:
      kvgate corpus verify release-7/tokens.jsonl /models/llama
      kvgate corpus verify tokens.jsonl --endpoint http://127.0.0.1:8000
    """
    import tempfile

    from kvgate.cli import console
    from kvgate.cli.commands.corpus_snapshot import refuse_both_or_neither, taken
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import visible
    from kvgate.cli.progress import shown
    from kvgate.corpora.conversations.corpus import load_corpus
    from kvgate.corpora.snapshots.comparison import compare_snapshots
    from kvgate.corpora.snapshots.drift import drift
    from kvgate.corpora.snapshots.snapshot import open_snapshot

    wanted = json_wanted(output)
    refuse_both_or_neither(folder, endpoint)
    saved = open_snapshot(snapshot, None)
    with tempfile.TemporaryDirectory(prefix="kvgate-") as work, shown(quiet=False, no_color=no_color) as progress:
        again = taken(
            folder,
            endpoint,
            api_key_env,
            load_corpus(corpus, progress),
            Path(work) / "again.jsonl",
            chat_template=chat_template,
            options=dict(saved.header.options),
            redact=saved.header.redacted,
            progress=progress,
        )
        found = drift(compare_snapshots(saved, again, progress=progress))
    if wanted:
        comparison = found.comparison
        console.emit(
            as_json(
                {
                    "state": found.state,
                    "reason": found.reason,
                    "examined": comparison.examined,
                    "divergent": [one.id for one in comparison.divergences.first],
                    "notAsked": comparison.only_old.count,
                }
            )
        )
    else:
        console.emit(f"{found.state}: {visible(found.reason)}\n")
    return {"reproduced": 0, "drifted": DRIFTED}.get(found.state, UNVERIFIED)
