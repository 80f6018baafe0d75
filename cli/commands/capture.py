"""``kvgate capture``: what one deployment is, as a manifest."""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key
from kvgate.cli.options import ConfigFile, Debug, NoColor, NoConfig

if TYPE_CHECKING:
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.deployments.capture import Captured
    from kvgate.deployments.launch import LaunchFile

_WIDTH = 120  # characters
_MANY = 3  # fields with one reason that is said once
_WITH_LAUNCH = "capture with the launch line (--from), or "
_MAX_LAUNCH = 1 << 20  # bytes; the longest real launch scripts are a hundredth of it


def capture(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A checkpoint folder, a GGUF file, or org/name[@revision] on the hub."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR|FILE", help="A folder for manifest.yaml and its sidecars, or a .yaml file."
        ),
    ],
    revision: Annotated[str | None, typer.Option(metavar="REVISION", help="Of the hub repository.")] = None,
    launch: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="FILE[#NAME]",
            help="What starts vLLM, SGLang, TensorRT-LLM or Dynamo: a script, Kubernetes, compose, KServe, Helm "
            "values of the production stack or llm-d, and the files that they name (LMCache's settings, say); '-' is "
            "standard input. NAME chooses among several servers. Repeatable.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Where an adapter's files are. Repeatable."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the files of the tokenizer are that the launch line names."),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the files of the speculative model are that the launch line names."),
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(metavar="FILE", help="A chat template that replaces the checkpoint's.")
    ] = None,
    renderer: Annotated[
        str | None,
        typer.Option(
            metavar="here|SNAPSHOT",
            help="Where requests are rendered: in this environment (say it inside the image), or where the snapshot "
            "was taken (kvgate corpus script, kvgate corpus snapshot).",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the running vLLM or SGLang what it is, and whether these files start it; where it is started for "
            "that, also for the weights that it serves with: http://HOST:PORT.",
        ),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="What only you know; null: known to be unset. Repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A path or section in which nothing else is set. Repeatable."),
    ] = None,
    hash_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep hashes of weight files here, and do not read again what its size, times and inode call "
            "unchanged.",
        ),
    ] = None,
    no_weights: Annotated[
        bool,
        typer.Option(
            "--no-weights", help="Do not fetch weights from the hub: the file digests that it publishes stand for them."
        ),
    ] = False,
    opaque_pickle: Annotated[
        bool, typer.Option("--opaque-pickle", help="Hash pickle weights as they are, without a look at their tensors.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say what stays unknown.")] = False,
    config: ConfigFile = None,
    no_config: NoConfig = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Write down what a deployment is: a manifest with its sidecars.

    Weights are hashed, tokenizer and template examined, the launch line read; nothing of it is run. What
    stays unknown is listed, most useful first. Files that contradict each other, or the running server, are refused
    with both places. The manifest's path goes to standard output.

    Examples:
      kvgate capture /models/llama --from serve.sh -o release-7/
      kvgate capture /models/llama --from deploy.yaml --from config-maps.yaml -o release-7/
      kvgate capture org/name@0e9e39f --from serve.sh --adapter billing=adapters/billing -o release-7/
      kvgate capture /models/llama --from serve.sh --renderer tokens.jsonl -o release-7/
      kvgate capture /models/llama --from serve.sh --endpoint http://127.0.0.1:8000 -o release-7/
      kvgate capture /models/llama --from - --set cache.tenancy=null -o new.yaml < serve.sh
    """
    from kvgate.cli import console
    from kvgate.cli.config import find_config
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.progress import shown
    from kvgate.cli.settings import laid_over, parse_settings, refuse_values
    from kvgate.deployments.launch import read_launch
    from kvgate.deployments.write import places, require_writable, write

    adapters, key = _adapters(adapter or ()), api_key(api_key_env)
    settings = parse_settings(set_ or ())
    found = find_config(config, none=no_config)
    configured = "capture.set" if found.shown is None else f"{found.shown}: capture.set"
    _check_paths(found.capture.set, found.capture.unset, unset or (), configured)
    refuse_values(found.capture.set, configured)
    refuse_values(settings, "--set")
    declared = laid_over(found.capture.set, settings)
    _require_boundary(declared)
    elsewhere = None if renderer in (None, "here") else _elsewhere(renderer)
    files = (None if elsewhere is None else elsewhere.path, chat_template, found.file)
    read = (*(_split(name)[0] for name in launch or () if name != "-"), *files)
    refuse_overwriting(places(output), (Path(name) for name in read if name is not None))
    lines = read_launch([_launch_file(name) for name in launch or ()])

    from kvgate.cli.commands.stored import not_kept
    from kvgate.deployments.capture import capture as gather
    from kvgate.deployments.locating import Beside
    from kvgate.weights.kept_hashes import KeptHashes

    require_writable(output)
    with shown(quiet=quiet, no_color=no_color) as progress, tempfile.TemporaryDirectory(prefix="kvgate-") as scratch:
        captured = gather(
            model,
            revision=revision,
            launch=lines,
            beside=Beside(adapters, tokenizer, draft, chat_template),
            renderer=elsewhere or ("here" if renderer else None),
            sets=declared,
            unsets=[*found.capture.unset, *(unset or ())],
            snapshot_to=Path(scratch) / "tokens.jsonl",
            kept=None if hash_cache is None else KeptHashes(hash_cache, not_kept),
            opaque_pickle=opaque_pickle,
            fetch_weights=not no_weights,
            endpoint=endpoint,
            api_key=key,
            progress=progress,
        )
        path = write(captured, output)
    if not quiet:
        if found.shown is not None:
            console.say(f"configuration: {found.shown}")
        elif captured.unknown and not no_config:
            console.say("configuration: no kvgate.yaml in this folder or, up to the repository's root, above it")
        for line in _left_open(captured, launched=bool(lines)):
            console.say(line)
    console.emit(f"{path}\n")
    return 0


def _elsewhere(name: str) -> SnapshotFile:
    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.rules.errors import UsageError

    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"{name!r} is neither 'here' nor a snapshot", where="--renderer", hint="--renderer here, or a file"
        )
    return open_snapshot(path, None)


def _adapters(given: Iterable[str]) -> dict[str, Path]:
    from kvgate.rules.errors import UsageError

    adapters: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UsageError(f"{text!r} is not NAME=PATH", where="--adapter")
        if name in adapters:
            raise UsageError(f"{name!r} is given twice", where="--adapter")
        adapters[name] = Path(path)
    return adapters


def _check_paths(
    configured: Iterable[str], configured_unset: Iterable[str], unset: Iterable[str], where_configured: str
) -> None:
    from kvgate.cli.settings import check_path

    for paths, where in ((configured, where_configured), (configured_unset, "capture.unset"), (unset, "--unset")):
        for path in paths:
            check_path(path, where)


def _require_boundary(declared: Mapping[str, Any]) -> None:
    """Refuse a part of the tenancy without its boundary, which no file says."""
    from kvgate.rules.errors import UsageError

    section = "cache.tenancy"
    parts = [path for path in declared if _below(path, section)]
    if parts and f"{section}.boundary" not in parts:
        hint = f"--set {section}.boundary=tenant, or what else it is"
        raise UsageError(f"{section}.boundary is required beside it", where=f"--set {parts[0]}", hint=hint)


def _launch_file(given: str) -> LaunchFile:
    """Read one file of ``--from``; a ``#NAME`` behind it chooses among the servers in it."""
    from kvgate.corpora.files import read_bytes
    from kvgate.deployments.launch import LaunchFile
    from kvgate.rules.errors import InputError

    name, only = _split(given)
    if name != "-":
        return LaunchFile(name, read_bytes(Path(name), _MAX_LAUNCH), _Beside(Path(name).parent), only)
    data = sys.stdin.buffer.read(_MAX_LAUNCH + 1)
    if len(data) > _MAX_LAUNCH:
        raise InputError(f"larger than the {_MAX_LAUNCH:,} bytes of any launch line", where=name)
    return LaunchFile(name, data, _Beside(Path()), only)


def _split(given: str) -> tuple[str, str | None]:
    name, mark, only = given.rpartition("#")
    return (name, only) if mark and name and only and not Path(given).exists() else (given, None)


class _Beside(Mapping[str, bytes]):
    """The files that a launch line names, read when they are asked for; paths are relative to the line's folder.

    A path that leads out of it by ``..`` is none of them: who wrote the line is not who runs the capture.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        from kvgate.corpora.files import read_bytes

        if name not in self:
            raise KeyError(name)
        return read_bytes(self._folder / name, _MAX_LAUNCH)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and ".." not in Path(name).parts and (self._folder / name).is_file()
        except (OSError, ValueError):  # too long for a name, or a NUL in it
            return False

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.iterdir() if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _left_open(captured: Captured, *, launched: bool) -> Iterator[str]:
    """Say what a reader should know, and what stays unknown with what settles it, most useful first.

    A reason that many fields share is said once, and with it what settles all of them: it stands in the reason.
    """
    from kvgate.rules.catalogue import dimensions

    for note in captured.notes:
        yield f"note: {note}"
    if not captured.unknown:
        return
    rows = []
    for path, reason in captured.unknown:
        concerned = [one for one in dimensions() if one.owns(path) or any(_below(own, path) for own in one.paths)]
        settles = {one.settle for one in concerned}
        settle = settles.pop() if len(settles) == 1 else ""
        rows.append((min((one.order for one in concerned), default=0), path, reason, settle))
    count = len(rows)
    yield f"unknown: {count}, most useful first (unknown equals nothing: a check refuses it where it counts)"
    shared: dict[str, list[str]] = {}
    for _, path, reason, _ in sorted(rows, key=lambda row: row[0]):
        shared.setdefault(reason, []).append(path)
    settling = {path: settle.removeprefix(_WITH_LAUNCH if launched else "") for _, path, _, settle in rows}
    for reason, paths in shared.items():
        if len(paths) >= _MANY:
            yield f"  {len(paths)} fields: {reason}"
            yield from textwrap.wrap(", ".join(paths), _WIDTH, initial_indent="    ", subsequent_indent="    ")
            continue
        for path in paths:
            settle = settling[path]
            yield f"  {path}: {reason}" + (f"; {settle}" if "--set" in settle else "")


def _below(path: str, section: str) -> bool:
    return path.startswith(f"{section}.")
