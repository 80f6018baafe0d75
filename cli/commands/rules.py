"""``kvgate rules list``: every rule of a pack."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli.options import Debug, NoColor


def list_rules(
    rules: Annotated[str, typer.Option(metavar="PACK", help="Rule pack: default, token-keyed, or a file.")] = "default",
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print them.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """List the rules of a pack: id, what they demand, title.

    Example:
      kvgate rules list -o json
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.inputs import load_pack

    wanted = json_wanted(output)
    pack, _ = load_pack(rules)
    if wanted:
        data = {
            "pack": pack.id,
            "digest": pack.digest,
            "rules": [rule.model_dump(mode="json") for rule in pack.rules],
            "adverse": [rule.model_dump(mode="json") for rule in pack.adverse],
        }
        console.emit(as_json(data))
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    page.heading(f"{pack.id}: {pack.title}")
    for rule in (*pack.rules, *pack.adverse):
        demands = "self-fault" if rule.self_fault else ", ".join(rule.obligations) or "harmless"
        page.parts([(f"{rule.id:<30}", "bold"), (f" {demands:<16} {rule.title}", "")], hang=48)
    console.emit(page.text())
    return 0
