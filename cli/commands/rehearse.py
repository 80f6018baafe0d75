"""``kvgate rehearse``: the hit that must not happen, staged with models that really run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key
from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvgate.probes.embedded.child import Device
    from kvgate.probes.evaluation.prompts import Rendered
    from kvgate.probes.rehearsal.backend import Backend
    from kvgate.probes.rehearsal.seen import Rehearsal
    from kvgate.rules.evidence import Evidence, State
    from kvgate.rules.manifest import Manifest

_EXITS: Mapping[State, int] = {"proved": 0, "refuted": 10, "inconclusive": 11, "not-run": 11}
_WORST_LAST: tuple[State, ...] = ("proved", "inconclusive", "not-run", "refuted")
_MODELS = ("real", "stand-in")
_MOST_CONVERSATIONS = 64


def rehearse(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The deployment that filled the store.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The one that comes up in front of it.")],
    backend: Annotated[
        str,
        typer.Option(
            metavar="embedded|vllm|endpoint",
            help="What runs them: transformers in a child process; a real vLLM with its connector; servers that run.",
        ),
    ] = "embedded",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Write the evidence here; that about KV beside it."),
    ] = None,
    evaluate: Annotated[
        int, typer.Option(metavar="N", min=1, max=256, help="How many prompts are asked, half of them decidable.")
    ] = 4,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=8192, help="How long each is at least. [default: two blocks]", show_default=False
        ),
    ] = 0,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="real|stand-in",
            help="Which model answers. [default: the real one where both checkpoints are at hand and small enough]",
            show_default=False,
        ),
    ] = None,
    old_model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="OLD's checkpoint. [default: model.id]", show_default=False)
    ] = None,
    new_model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="NEW's checkpoint. [default: model.id]", show_default=False)
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="An adapter that is not where its manifest says. Repeatable, of one name for each side.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="embedded: where models are run; on a GPU their floor is measured.")
    ] = "cpu",
    engine_python: Annotated[
        Path | None,
        typer.Option(metavar="PYTHON", help="vllm: the interpreter that has vLLM. [default: this]", show_default=False),
    ] = None,
    engine_path: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="vllm: in front of its search path. Repeatable.", show_default=False),
    ] = None,
    old_engine_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON", help="vllm: the one that has OLD's vLLM. [default: the same]", show_default=False
        ),
    ] = None,
    old_engine_path: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="vllm: in front of its search path. Repeatable.", show_default=False),
    ] = None,
    redis_server: Annotated[
        Path | None,
        typer.Option(metavar="PROGRAM", help="vllm: what a store in a Redis is staged with.", show_default=False),
    ] = None,
    old_launch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="vllm: what starts OLD in earnest.", show_default=False)
    ] = None,
    new_launch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="vllm: what starts NEW in earnest.", show_default=False)
    ] = None,
    old_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="endpoint: where OLD answers.", show_default=False)
    ] = None,
    new_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="endpoint: where NEW answers.", show_default=False)
    ] = None,
    control_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="endpoint: NEW once more, started with OLD's namespace.", show_default=False),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=86_400, help="endpoint: within which an answer must come.")
    ] = 120,
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=3600, help="endpoint: that OLD is given to store entries.")
    ] = 3,
    tear: Annotated[
        bool, typer.Option("--tear", help="vllm: also show that entries a writer left half-written are not read.")
    ] = False,
    supersedes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A refuted rehearsal that this one answers, if it is proved. Repeatable.",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The state alone, and no progress.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,
) -> int:
    """Stage the hit that must not happen, in a store of its own that is removed afterwards.

    With endpoints the store is the one that they were started with: nothing is started or deleted there.

    OLD fills it; NEW comes up as its manifest says, and is asked the same. Three things are shown: with the boundary
    taken away the stale entry is hit and the output is wrong (control); with the boundary in force nothing stale is
    hit (isolation); hits happen, and answers are those without a store (equivalence).

    Exit codes:
      0   proved
      10  refuted: a stale entry, or another tenant's, was read; the mistake is named
      11  inconclusive, or it could not run: nothing is proved

    Examples:
      kvgate rehearse release-7/ release-8/ -o evidence.json
      kvgate check release-7/ release-8/ --evidence evidence.json
      kvgate rehearse release-7/ release-8b/ -o again.json --supersedes evidence.json
      kvgate rehearse release-7/ release-8/ --backend endpoint --old-endpoint http://a:8000 --new-endpoint http://b:8000
    """
    given = dict(locals())
    import sys

    from kvgate import __version__
    from kvgate.cli import console
    from kvgate.cli.answering import answers, earlier_refutations
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.rehearsal import Told, rehearsal_page
    from kvgate.cli.output import refuse_overwriting, write_file
    from kvgate.cli.progress import shown
    from kvgate.cli.rehearsal_files import command_of, evidence_paths, refuse_losing
    from kvgate.cli.rehearsal_models import find_checkpoints
    from kvgate.cli.rehearsing import Options, make_backend, refuse_unusable, starts_pools
    from kvgate.inputs import load_manifest
    from kvgate.probes.rehearsal.claims import asks_of
    from kvgate.probes.rehearsal.evidence import evidence_of
    from kvgate.probes.rehearsal.pools import rehearse_pools
    from kvgate.probes.rehearsal.rehearse import Size
    from kvgate.probes.rehearsal.rehearse import rehearse as run
    from kvgate.probes.rehearsal.seen import Rehearsal
    from kvgate.rules.canonical import canonical_json
    from kvgate.rules.errors import UsageError

    if model not in (None, *_MODELS):
        raise UsageError(f"{model!r} is not one of {', '.join(_MODELS)}", where="--model")
    if output is not None and output.suffix != ".json":
        raise UsageError(f"{str(output)!r} is no FILE.json", where="-o")
    first, second = load_manifest(old), load_manifest(new)
    earlier = earlier_refutations(supersedes or (), ("isolation", "kv-equivalence"), first, second)
    command = command_of(rehearse, given)
    options = Options(
        python=engine_python,
        folders=tuple(engine_path or ()),
        old_python=old_engine_python,
        old_folders=tuple(old_engine_path or ()),
        redis=redis_server,
        launches=(old_launch, new_launch),
        endpoints=(old_endpoint, new_endpoint, control_endpoint),
        key=api_key(api_key_env),
        seconds=seconds,
        device=cast("Device", device),
        settle=settle,
    )
    refuse_unusable(backend, options)

    def write(seen: Rehearsal) -> tuple[Evidence, ...]:
        found = evidence_of(
            first,
            second,
            seen,
            backend=backend,
            tools={"kvgate": __version__},
            command=command,
            refutations=[one.evidence for one in earlier],
            tear=tear,
        )
        for path, one in zip(paths, found, strict=False):
            write_file(path, canonical_json(one.as_data()).decode("utf-8") + "\n")
        return found

    paths = [] if output is None else evidence_paths(output, tear=tear)
    refuse_overwriting(paths, [Path(one) for one in (first.source, second.source, *(one.file for one in earlier))])
    refuse_losing(paths, first, second)
    # First of all, so that a run that is interrupted leaves no earlier proof standing for itself.
    write(Rehearsal(asks_of(first, second).claim, "not-run", "it did not come to an end"))
    why_stand_in = None
    with shown(quiet=quiet, no_color=no_color) as progress:
        rendered = _rendered(first, second)
        checkpoints = None
        if model != "stand-in" and backend != "endpoint":
            checkpoints, why_stand_in = find_checkpoints(
                first, second, (old_model, new_model), adapter or (), must=model == "real", progress=progress
            )
        # Only this back end has a model that copies, or the tokenizer of the real one.
        decidable = evaluate // 2 if backend == "embedded" else 0
        size = Size(corpus=evaluate - decidable, decidable=decidable, length=prompt_tokens)
        folders = None if checkpoints is None else checkpoints.folders

        def made(one: Manifest, two: Manifest) -> Callable[[], Backend]:
            return make_backend(backend, one, two, folders, options)

        if starts_pools(backend, options):
            seen = rehearse_pools(first, second, made, rendered=rendered, size=size, tear=tear, progress=progress)
        else:
            whole = made(first, second)
            seen = run(first, second, whole, rendered=rendered, size=size, tear=tear, progress=progress)
    if checkpoints is not None and (file := checkpoints.written_to()) is not None:
        seen = Rehearsal(seen.claim, "not-run", f"{file} was written to while its model ran: what ran is not known")
    found = write(seen)
    # What was asked for beside isolation counts as much; nobody asks for equal KV.
    state = max((one.state for one in found if one.kind != "kv-equivalence"), key=_WORST_LAST.index)
    if quiet:
        console.emit(f"{state}\n")
        return _EXITS[state]
    told = Told(
        state=state,
        backend=backend,
        command=command,
        old=old,
        new=new,
        stand_in=why_stand_in,
        written=tuple((str(path), one) for path, one in zip(paths, found, strict=False)),
        answers=tuple(answers(found, earlier)),
    )
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    rehearsal_page(page, seen, told)
    console.emit(page.text())
    return _EXITS[state]


def _rendered(old: Manifest, new: Manifest) -> tuple[Rendered, Rendered] | None:
    """Return the token ids that both snapshots hold; ``None`` where one side has none."""
    from itertools import islice

    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.inputs import sidecar_path

    sides: list[Rendered] = []
    for side in (old, new):
        named = sidecar_path(side, "tokenizer.snapshot")
        if named is None:
            return None
        entries = (one for one in open_snapshot(*named).entries() if one.renders[0].ok and one.renders[0].ids)
        sides.append({one.id: tuple(one.renders[0].ids) for one in islice(entries, _MOST_CONVERSATIONS)})
    return (sides[0], sides[1]) if sides[0].keys() & sides[1].keys() else None
