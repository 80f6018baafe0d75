"""``kvgate stores``: what lies in a store."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli.commands.keys import Connector, ShowKeys, known_connector
from kvgate.cli.options import Debug, NoColor

NOT_ALL = 11


def scan_store(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="A folder, or a Redis database: redis://host:port/database.")
    ],
    connector: Connector = None,
    manifest: Annotated[
        str | None,
        typer.Option(metavar="MANIFEST", help="Say which entries are of this deployment's model, as names spell it."),
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option("--password-env", metavar="NAME", help="The environment variable with the server's password."),
    ] = None,
    show_keys: ShowKeys = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Count what lies in a store, by model and namespace.

    Nothing is written.

    Exit codes:
      0   everything was read and is of a known scheme; nothing lies there, if it says so
      11  something could not be read, or is of no known scheme: then it is not known what lies there

    Examples:
      kvgate stores scan /kv/lmcache --connector lmcache-mp
      kvgate stores scan redis://cache-1:6379/0 -o json
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.api_key import secret
    from kvgate.cli.formats.inventory import inventory_data, inventory_page
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.privacy import Veil
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.progress import shown
    from kvgate.inputs import load_manifest
    from kvgate.stores.scanning.inventory import take_inventory
    from kvgate.stores.scanning.locate import open_store

    wanted = json_wanted(output)
    known_connector(connector)
    deployment = None if manifest is None else load_manifest(manifest)
    with shown(quiet=quiet, no_color=no_color) as progress:
        found = take_inventory(open_store(location, secret(password_env, "--password-env")), connector, progress)
    veil = Veil(lifted=show_keys)
    if wanted:
        console.emit(as_json(inventory_data(found, veil, deployment)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        inventory_page(page, found, veil, deployment)
        console.emit(page.text())
    return 0 if found.complete else NOT_ALL
