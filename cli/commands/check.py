"""``kvgate check``: the gate."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.options import ConfigFile, Debug, NoColor, NoConfig

if TYPE_CHECKING:
    from kvgate.checking import Checked
    from kvgate.cli.output import Output
    from kvgate.rules.manifest import Manifest

_WARN_DAYS = 14  # a waiver's owner hears of its end before the gate turns red


def check(
    manifests: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD... NEW",
            help="Manifests, or folders that hold one: everything that wrote into the namespace, then the new "
            "deployment. '-' is standard input.",
            show_default=False,
        ),
    ],
    first: Annotated[bool, typer.Option("--first", help="There is no old deployment yet: judge NEW alone.")] = False,
    evidence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Evidence: a JSON file, or a folder of them, beside what is configured. Repeatable.",
        ),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Also render these conversations (JSONL) on both sides, beside what is configured. Repeatable.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="auto|always|never",
            help="Encode strings made from both tokenizers with both. [default: auto: where they differ and no "
            "conversation shows it]",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        str | None, typer.Option(metavar="PACK", help="Rule pack: default, token-keyed, or a file.", show_default=False)
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="rolling|recreate",
            help="recreate: old workers are drained before new ones start. [default: rolling]",
            show_default=False,
        ),
    ] = None,
    declare: Annotated[
        list[str] | None,
        typer.Option(metavar="clear", help="Declare that the old entries are deleted as part of this change."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="VERDICT", help="Accept this verdict although an obligation is open. Repeatable."),
    ] = None,
    waivers: Annotated[str | None, typer.Option(metavar="FILE", help="Waivers, each with owner and expiry.")] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="The day on which waivers are judged (YYYY-MM-DD). [default: today, UTC]"),
    ] = None,
    advisory: Annotated[bool, typer.Option("--advisory", help="Report only: exit 0 whatever the verdict.")] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FORMAT[=PATH]",
            help="text, json (the decision record), markdown or github; to standard output without PATH. Repeatable.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict alone.")] = False,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Decide whether a new deployment may reach old KV state.

    Exit codes:
      0   accepted: reuse, or every obligation is met, or --accept
      10  new-namespace: something changed and no boundary carries it out
      11  new-namespace, only because evidence is missing
      20  clear, not declared
      30  the new deployment is unsafe by itself
      1, 2, 3  internal error, usage, unreadable input: no verdict

    Examples:
      kvgate check deployed.yaml candidate.yaml
      kvgate check release-1/ canary/ release-2/ -o json=record.json
      kvgate check old.yaml new.yaml -o markdown="$GITHUB_STEP_SUMMARY" -o github
      kvgate check --first new.yaml
    """
    from kvgate.cli.config import find_config
    from kvgate.cli.output import parse_outputs, refuse_overwriting
    from kvgate.cli.progress import shown
    from kvgate.inputs import evidence_files
    from kvgate.rules.errors import UsageError
    from kvgate.rules.packaged import packaged_names

    if not first and len(manifests) < 2:
        raise UsageError(
            "there is one manifest and nothing to compare it with",
            where=manifests[0],
            hint="give OLD... NEW, or --first for a first deployment",
        )
    if first and len(manifests) > 1:
        raise UsageError("--first takes the new manifest alone", hint="leave --first out to compare")
    if unknown := [word for word in declare or () if word != "clear"]:
        raise UsageError(f"{unknown[0]!r} cannot be declared", where="--declare", hint="--declare clear")
    outputs = parse_outputs(output or ())
    if quiet and any(one.path is None and one.format != "text" for one in outputs):
        raise UsageError("--quiet prints the verdict alone", where="-o", hint="give the format a path: -o json=FILE")
    found = find_config(config, none=no_config)
    asked = found.check
    deployments = _manifests(manifests)
    evidence = _each_once(
        file
        for given in [*map(found.path, asked.evidence), *(evidence or ())]
        # A folder without any is refused where evidence is read.
        for file in evidence_files(given) or [given]
    )
    corpus = _each_once([*map(found.path, asked.corpus), *(corpus or ())])
    rules = rules or _pack(asked.rules, found) or "default"
    waivers = waivers or (None if asked.waivers is None else found.path(asked.waivers))
    own_rules = None if rules in packaged_names("packs") else rules
    inputs = _files(deployments, [*evidence, *corpus, own_rules, waivers, found.file])
    refuse_overwriting((one.path for one in outputs if one.path is not None), inputs)

    from kvgate.checking import check as decide

    with shown(quiet=quiet, no_color=no_color) as progress:
        checked = decide(
            deployments[:-1],
            deployments[-1],
            evidence=evidence,
            corpora=corpus,
            sweep=sweep or asked.sweep or "auto",  # type: ignore[arg-type] # check says what there is
            rules=rules,
            strategy=strategy or asked.strategy or "rolling",  # type: ignore[arg-type] # check says what there is
            declare_clear=bool(declare),
            accept=accept or asked.accept,  # type: ignore[arg-type] # likewise
            waivers=waivers,
            as_of=as_of,
            advisory=advisory,
            progress=progress,
        )
    _write(checked, outputs, quiet=quiet, no_color=no_color)
    if not quiet:
        _warn(checked)
    return checked.decision.exit_code


def _manifests(manifests: list[str]) -> list[Manifest]:
    from kvgate.inputs import load_manifest
    from kvgate.rules.errors import UsageError

    if manifests.count("-") > 1:
        raise UsageError("standard input can be one manifest only", where="-", hint="name files for the others")
    return [_stdin() if name == "-" else load_manifest(name) for name in manifests]


def _each_once(paths: Iterable[str | Path]) -> list[str]:
    """Leave out what is named again: a file of a folder that is configured, say."""
    found: dict[str, str] = {}
    for path in paths:
        found.setdefault(os.path.realpath(path), str(path))
    return list(found.values())


def _files(manifests: list[Manifest], others: Iterable[str | Path | None]) -> Iterator[Path]:
    """Yield every file that the check reads."""
    from kvgate.inputs import manifest_files

    for manifest in manifests:
        yield from manifest_files(manifest)
    yield from (Path(name) for name in others if name is not None)


def _stdin() -> Manifest:
    from kvgate.rules.document import MAX_BYTES
    from kvgate.rules.manifest import parse_manifest

    # One byte more than allowed, so that the parser is the one to refuse it.
    return parse_manifest(sys.stdin.buffer.read(MAX_BYTES + 1), "-")


def _pack(name: str | None, found: Any) -> str | None:
    """Return a configured pack: a shipped one by its id, else a file beside the configuration."""
    from kvgate.rules.packaged import packaged_names

    return name if name is None or name in packaged_names("packs") else found.path(name)


def _write(checked: Checked, outputs: list[Output], *, quiet: bool, no_color: bool) -> None:
    from kvgate.cli import console
    from kvgate.cli.output import write_file

    texts = [(one, render(checked, one, no_color=no_color)) for one in outputs if not (quiet and one.path is None)]
    for one, text in texts:
        if one.path is not None:
            write_file(one.path, text)
    for one, text in texts:
        if one.path is None:
            console.emit(text)
    if quiet:
        console.emit(f"{checked.verdict}\n")


def render(checked: Checked, output: Output, *, no_color: bool) -> str:
    """Return the report in one format, for standard output or for a file."""
    from kvgate.cli import console

    record = checked.record
    if output.format == "json":
        from kvgate.cli.formats.record_json import render_json
        from kvgate.cli.plain import visible_json

        text = render_json(record)
        return visible_json(text) if output.path is None and sys.stdout.isatty() else text
    if output.format == "markdown":
        from kvgate.cli.formats.markdown import render_markdown

        return render_markdown(record)
    if output.format == "github":
        from kvgate.cli.formats.github import render_github

        return render_github(record, _lines(checked.decision.case.new))
    from kvgate.cli.formats.text import render_text

    if output.path is not None:
        return render_text(record, width=console.FILE_WIDTH, color=False)
    return render_text(record, width=console.width(), color=console.colored(sys.stdout, no_color=no_color))


def _lines(new: Manifest) -> Any:
    def line_of(path: str) -> int | None:
        _, colon, line = new.where(path).removeprefix(new.source).partition(":")
        return int(line) if colon else None

    return line_of


def _warn(checked: Checked) -> None:
    import datetime

    from kvgate.cli import console

    case = checked.decision.case
    for waiver, why in checked.decision.unused_waivers:
        console.say(f"warning: the waiver of {waiver.rule} on {waiver.dimension} (owner {waiver.owner}): {why}")
    today = datetime.date.fromisoformat(case.options.as_of)
    for waiver in case.waivers:
        left = (datetime.date.fromisoformat(waiver.expires) - today).days
        if 0 <= left <= _WARN_DAYS:
            console.say(f"warning: the waiver of {waiver.rule} (owner {waiver.owner}) ends {waiver.expires}")
