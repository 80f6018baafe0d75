"""``kvgate connectors``: what is known of the keys of each connector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.cli.formats.page import Page
    from kvgate.rules.profile import Cell, Profile


def list_connectors(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="text|json|markdown", help="How to print them.")
    ] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """List the connector profiles.

    A connector without a profile separates nothing. As Markdown: all that is known of them.
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.connectors import connectors_page, read_at
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, format_wanted
    from kvgate.rules.profile import every_connector, shipped_profiles

    wanted = format_wanted(output, ("text", "json", "markdown"))
    profiles = shipped_profiles()
    if wanted != "text":
        summaries = [_summary(profile) for profile in profiles.values()]
        console.emit(as_json(summaries) if wanted == "json" else connectors_page(profiles, every_connector()))
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    names = max(map(len, profiles)) + 2
    for profile in profiles.values():
        page.parts([(f"{profile.id:<{names}}", "bold"), (profile.title, "")], hang=names)
        page.say(read_at(profile.versions) or "whatever the version", indent=names)
    console.emit(page.text())
    return 0


def show_connector(
    connector: Annotated[str, typer.Argument(metavar="ID", help="`kvgate connectors list` has all.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Show what a connector's key holds, and where that was read.

    With the settings that isolate its entries, and how they are cleared.

    Example:
      kvgate connectors show lmcache-mp
    """
    import difflib
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.rules.errors import UsageError
    from kvgate.rules.profile import shipped_profiles

    wanted = json_wanted(output)
    profiles = shipped_profiles()
    if connector not in profiles:
        near = difflib.get_close_matches(connector, profiles, 3)
        raise UsageError(
            f"there is no profile {connector!r}",
            hint=f"did you mean {' or '.join(near)}?" if near else f"shipped: {', '.join(profiles)}",
        )
    profile = profiles[connector]
    if wanted:
        console.emit(as_json(profile.model_dump(mode="json", by_alias=True)))
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    _show(page, profile)
    console.emit(page.text())
    return 0


def _summary(profile: Profile) -> dict[str, object]:
    return {
        "id": profile.id,
        "title": profile.title,
        "versions": profile.versions.model_dump(mode="json") if profile.versions else None,
        "checked": profile.checked,
    }


def _show(page: Page, profile: Profile) -> None:
    from kvgate.cli.formats.connectors import read_at, step, tag

    page.parts([(profile.id, "bold"), (f"  {profile.title}", "")], hang=2)
    if profile.versions:
        page.say(f"{read_at(profile.versions)}; outside it nothing is known", indent=2)
    if not profile.outlives_worker:
        page.say("entries end with the worker that made them", indent=2)
    page.say(f"key: {profile.key_format}", indent=2, hang=5)
    page.say(f"model name in the key: {profile.model_name}", indent=2, hang=5)
    page.say(f"read from: {profile.source} (checked {profile.checked})", indent=2, hang=5)
    if profile.cells:
        page.heading("WHAT THE KEY HOLDS")
        _cells(page, profile.cells)
    if profile.requests:
        page.heading("WHAT VARIES BETWEEN REQUESTS")
        _cells(page, {str(feature): cell for feature, cell in profile.requests.items()})
    if profile.tags is not None:
        page.say(tag(profile.tags), indent=2, hang=2)
    page.heading("HOW ENTRIES ARE ISOLATED")
    if profile.isolation:
        page.say(profile.isolation, indent=2)
    elif profile.knobs is None:
        page.say("not known", indent=2)
    elif not profile.knobs:
        page.say("there is no setting that does", indent=2)
    for knob in profile.knobs or ():
        condition = f" (where the key holds {knob.when_key_has})" if knob.when_key_has else ""
        page.say(f"{knob.path}{condition}", indent=2)
        for line in knob.how:
            page.say(line, indent=4, hang=2)
    page.heading("HOW ENTRIES ARE CLEARED")
    page.say(profile.clearing.command, indent=2, hang=2)
    page.say(f"reaches: {profile.clearing.blast_radius}", indent=2, hang=2)
    if profile.upgrades:
        page.heading("VERSION STEPS")
    for row in profile.upgrades:
        page.say(f"{step(row)}; {row.source}", indent=2, hang=2)


def _cells(page: Page, cells: Mapping[str, Cell]) -> None:
    """Show cells by what the key does with each; those of which there is nothing more to say in one line."""
    from kvgate.cli.formats.connectors import KEYS, MEANING, conditions

    for key, words in KEYS.items():
        found = {name: "; ".join(conditions(cell)) for name, cell in cells.items() if cell.key == key}
        if not found:
            continue
        page.parts([(words, "bold"), (f": {MEANING[key]}", "")], indent=2, hang=2)
        for name, shown in found.items():
            if shown:
                page.say(f"{name:<26} {shown}", indent=4, hang=27)
        if plain := [name for name, shown in found.items() if not shown]:
            page.say(", ".join(plain), indent=4, hang=0)
