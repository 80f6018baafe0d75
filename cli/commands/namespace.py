"""``kvgate namespace``: the derived id, and how to put it in force."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli.options import Debug, NoColor

INCOMPLETE = 11


def namespace(
    manifest: Annotated[str, typer.Argument(metavar="MANIFEST", help="A manifest, or a folder that holds one.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the id alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Print the derived namespace id and the settings for it.

    The id is a function of the deployment's identity; the settings put it in force.

    The id does not depend on location, namespace or labels. Exit 11 where parts of the identity are not known.

    Example:
      kvgate namespace new.yaml --quiet
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.plain import visible
    from kvgate.inputs import load_manifest
    from kvgate.rules.action import settings_for, stores
    from kvgate.rules.namespace import derive
    from kvgate.rules.profile import cover
    from kvgate.weight_maps import tensor_map

    deployment = load_manifest(manifest)
    tensor_map(deployment)  # an id of weights that the tensors contradict would be that of another deployment
    derived = derive(deployment)
    if derived.id is None:
        names = ", ".join(name for name, _ in derived.missing)
        console.say(
            f"no id can be derived until this is known: {names}"
            if quiet
            else "no id can be derived until this is known:"
        )
        if not quiet:
            width = max(len(name) for name, _ in derived.missing)
            for name, settle in derived.missing:
                console.say(f"  {name:<{width}}  {settle}")
        return INCOMPLETE
    if quiet:
        console.emit(f"{derived.id}\n")
        return 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    page.say(derived.id, style="bold")
    page.gap()
    settings = settings_for(deployment, derived.id)
    if not settings:
        coverer = cover(stores(deployment)[0].manifest)
        why = coverer.why or "its profile names no setting that isolates entries"
        if coverer.profile is not None and coverer.profile.isolation is not None:
            why = f"{why}; what keeps them apart: {coverer.profile.isolation}"
        page.say(f"No setting is known that puts it in force: {visible(why)}.")
    elif len(settings) > 1:
        page.say("One of these puts it in force:")
    for setting in settings:
        page.say(f"{setting.path}: {visible(setting.value)}", indent=2, hang=2)
        for line in setting.how:
            page.say(visible(line), indent=4, hang=2)
    console.emit(page.text())
    return 0
