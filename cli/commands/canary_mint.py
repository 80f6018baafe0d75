"""``kvgate canary mint``: a reference for each tenant, and where it stands in what is cached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.api_key import ApiKeyEnv
from kvgate.cli.commands.corpus_snapshot import Endpoint
from kvgate.cli.options import Debug, NoColor

_MAX_TENANTS = 64 << 20  # bytes of their file
_MAX_SYSTEM = 4 << 20


def mint_canaries(
    secret_env: Annotated[
        str,
        typer.Option("--secret-env", metavar="NAME", help="The environment variable with the secret they are made of."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where they go (.jsonl).")],
    tenant: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A tenant. Repeatable.")] = None,
    tenants: Annotated[Path | None, typer.Option(metavar="FILE", help="Tenants, one a line.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--model", metavar="FOLDER", help="Look with this model's tokenizer and template.")
    ] = None,
    endpoint: Endpoint = None,
    api_key_env: ApiKeyEnv = None,
    system: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The system prompt that follows the instruction.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", min=1, help="Of a cached block (of a chunk, where chunks are stored)."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    r"""Make a reference for each tenant, with the instruction to echo it in a field of a structured answer.

    The instruction goes to the front of the tenant's system prompt. With --block-size, and --model or --endpoint, it
    is made sure that all of each reference stands in blocks that are cached: elsewhere it would show nothing.

    Example:
      kvgate canary mint --secret-env CANARY_SECRET --tenants tenants.txt --endpoint http://127.0.0.1:8000 \
        --block-size 16 --system system.txt -o canaries.jsonl
    """
    import json
    import tempfile

    from kvgate.cli import console
    from kvgate.cli.api_key import secret
    from kvgate.cli.commands.corpus_snapshot import taken
    from kvgate.cli.output import refuse_overwriting, write_file
    from kvgate.cli.progress import shown
    from kvgate.corpora.conversations.corpus import Corpus
    from kvgate.corpora.files import read_text
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.probes.canary.markers import marker_data, mint
    from kvgate.probes.canary.placing import placed
    from kvgate.rules.errors import UsageError

    looking = folder is not None or endpoint is not None
    if looking != (block_size is not None) or (folder is not None and endpoint is not None):
        raise UsageError(
            "to look where references stand takes a renderer and the size of a block",
            where="--block-size",
            hint="--block-size N, and either --model FOLDER or --endpoint URL",
        )
    refuse_overwriting([output], [path for path in (tenants, system) if path is not None])
    listed = [] if tenants is None else [line for line in read_text(tenants, _MAX_TENANTS).splitlines() if line.strip()]
    markers = mint([*(tenant or ()), *listed], secret(secret_env, "--secret-env", "secret") or "")
    if block_size is not None:
        text = "" if system is None else read_text(system, _MAX_SYSTEM)
        with shown(quiet=quiet, no_color=no_color) as progress, tempfile.TemporaryDirectory(prefix="kvgate-") as work:

            def snapshot(corpus: Corpus, path: Path) -> SnapshotFile:
                return taken(
                    folder,
                    endpoint,
                    api_key_env,
                    corpus,
                    path,
                    chat_template=None,
                    options={},
                    redact=False,
                    progress=progress,
                )

            markers = placed(markers, text, block_size, snapshot, Path(work))
    write_file(output, "".join(json.dumps(marker_data(one), ensure_ascii=False) + "\n" for one in markers))
    if not quiet:
        console.emit(f"{len(markers):,} references\n")
        place = markers[0].position
        if place is None:
            unseen = "nobody has looked whether they stand in what is cached"
            console.say(f"note: {unseen}, so `canary check` can prove nothing: --block-size")
        else:
            where = f"tokens {place.first} to {place.end - 1}, blocks {place.blocks[0]} to {place.blocks[1]}"
            console.emit(f"the first stands in {where}; {place.cached_blocks} blocks are cached\n")
    return 0
