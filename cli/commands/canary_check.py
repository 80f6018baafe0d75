"""``kvgate canary check``: whose reference does each answer hold?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.options import AskedManifest, Debug, EvidenceOutput, NoColor

_EXITS = {"proved": 0, "refuted": 10}
_UNDECIDED = 11


def check_canaries(
    canaries: Annotated[Path, typer.Argument(metavar="CANARIES", help="What `kvgate canary mint` wrote.")],
    responses: Annotated[
        str,
        typer.Argument(
            metavar="RESPONSES",
            help="Answers, one JSON object a line: tenant, response (a text, or an API's answer), request. "
            "'-': standard input.",
        ),
    ],
    allow_missing: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Of answers that may lack a well-formed echo.")
    ] = 0.0,
    show_tenants: Annotated[
        bool, typer.Option("--show-tenants", help="Name tenants instead of numbering them.")
    ] = False,
    manifest: AskedManifest = None,
    output: EvidenceOutput = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the outcome alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Read answers and say which of them hold another tenant's reference.

    Answers are read as a stream, and none is kept.

    Exit codes:
      0   proved: every answer holds its own tenant's reference, which stands in what is cached
      10  refuted: an answer holds another tenant's
      11  inconclusive: echoes are missing or malformed, or nobody has looked where the references stand

    Example:
      kvgate canary check canaries.jsonl answers.jsonl --show-tenants
    """
    from kvgate import __version__
    from kvgate.cli import console
    from kvgate.cli.formats.canary import echoes_data, echoes_page
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.privacy import Veil
    from kvgate.cli.listing import as_json
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.probing import as_words, begin_evidence, finite, manifests_of, probe_outputs, write_evidence
    from kvgate.cli.progress import shown
    from kvgate.corpora.files import open_regular
    from kvgate.probes.canary.echoes import check_echoes
    from kvgate.probes.canary.evidence import echo_evidence, state_of
    from kvgate.probes.canary.markers import read_markers

    form, target = probe_outputs(output)
    finite(allow_missing, "--allow-missing")
    new, _ = manifests_of(manifest, None, target)
    words = ["kvgate", "canary", "check", str(canaries), responses, "--allow-missing", f"{allow_missing:g}"]
    words += as_words({"--manifest": manifest})
    command = shlex.join(words)
    if target is not None and new is not None:
        refuse_overwriting([target], [canaries, Path(responses), Path(new.source)])
        begin_evidence(target, "tenant-canary", new, command=command)
    markers = read_markers(canaries)
    with shown(quiet=quiet, no_color=no_color) as progress:
        if responses == "-":
            found = check_echoes(sys.stdin.buffer, markers, progress)
        else:
            with open_regular(Path(responses)) as stream:
                found = check_echoes(stream, markers, progress)
    state, why = state_of(found, markers, allow_missing)
    if target is not None and new is not None:
        evidence = echo_evidence(found, markers, allow_missing, new, tools={"kvgate": __version__}, command=command)
        write_evidence(target, evidence)
    veil = Veil(lifted=show_tenants)
    if quiet:
        console.emit(f"{state}\n")
    elif form == "json":
        console.emit(as_json(echoes_data(found, state, why, veil)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        echoes_page(page, found, state, why, veil)
        console.emit(page.text())
    return _EXITS.get(state, _UNDECIDED)
