"""``kvgate stores``: what lies in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.commands.keys import Connector, ShowKeys, known_connector
from kvgate.cli.options import Debug, EvidenceOutput, NoColor

NOT_ALL = 11


def scan_store(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="A folder, or a Redis database: redis://host:port/database.")
    ],
    connector: Connector = None,
    manifest: Annotated[
        str | None,
        typer.Option(
            metavar="MANIFEST",
            help="The deployment that will look there: say which entries are of its model, and what evidence is about.",
        ),
    ] = None,
    old: Annotated[
        str | None,
        typer.Option(metavar="MANIFEST", help="The deployment before it, where evidence is about these two alone."),
    ] = None,
    called: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="LOCATION", help="What the manifest calls this place, where it is mounted elsewhere."
        ),
    ] = None,
    password_env: Annotated[
        str | None,
        typer.Option("--password-env", metavar="NAME", help="The environment variable with the server's password."),
    ] = None,
    show_keys: ShowKeys = False,
    output: EvidenceOutput = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Count what lies in a store, by model and namespace.

    Nothing is written into it. With a manifest, evidence says whether what a deployment will find there is its own or
    nothing: `kvgate check --evidence FILE.json` takes it for a namespace or place that was chosen by hand.

    Exit codes:
      0   everything was read and is of a known scheme; nothing lies there, if it says so
      11  something could not be read, or is of no known scheme: then it is not known what lies there; or it is of
          another connector than the one asked for; or evidence was asked for, and it proves nothing

    Examples:
      kvgate stores scan /kv/lmcache --connector lmcache-mp
      kvgate stores scan redis://cache-1:6379/0 -o json
      kvgate stores scan /kv/blue --manifest release-8/ -o inventory.json
      kvgate stores scan /mnt/blue --as volume:prod/blue --manifest release-8/ -o inventory.json
    """
    import sys

    from kvgate import __version__
    from kvgate.cli import console
    from kvgate.cli.api_key import secret
    from kvgate.cli.formats.inventory import inventory_data, inventory_page
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.privacy import Veil
    from kvgate.cli.listing import as_json
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.probing import manifests_of, probe_outputs, write_evidence
    from kvgate.cli.progress import shown
    from kvgate.rules.credentials import holds_credential
    from kvgate.rules.errors import UsageError
    from kvgate.stores.scanning.evidence import inventory_evidence
    from kvgate.stores.scanning.inventory import take_inventory
    from kvgate.stores.scanning.locate import open_store

    form, target = probe_outputs(output)
    known_connector(connector, stored=True)
    deployment, before = manifests_of(manifest, old, target)
    for given, option in ((called, "--as"), (old, "--old")):
        if given is not None and target is None:
            raise UsageError("says something of evidence, and none is written", where=option, hint="-o FILE.json")
    if called is not None and holds_credential(called):
        raise UsageError("holds a credential", where="--as", hint="leave user and password out")
    if target is not None:
        refuse_overwriting([target], [Path(one.source) for one in (deployment, before) if one is not None])
    with shown(quiet=quiet, no_color=no_color) as progress:
        place = location if target is None or "://" in location else str(Path(location).absolute())
        store = open_store(place, secret(password_env, "--password-env", "password"))
        found = take_inventory(store, connector, progress)
    state = None
    if target is not None and deployment is not None:
        shown_place = found.location if called is None else f"{found.location} --as {called}"
        evidence = inventory_evidence(
            *(found, deployment, before),
            called=called,
            tools={"kvgate": __version__},
            command=f"kvgate stores scan {shown_place} --manifest {deployment.source}",
        )
        write_evidence(target, evidence)
        if not quiet:
            console.say(f"{target}: {evidence.state}: {evidence.reason}")
        state = evidence.state
    veil = Veil(lifted=show_keys)
    if form == "json":
        console.emit(as_json(inventory_data(found, veil, deployment)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        inventory_page(page, found, veil, deployment)
        console.emit(page.text())
    return 0 if found.complete and state in (None, "proved") else NOT_ALL
