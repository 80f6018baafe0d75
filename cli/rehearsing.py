"""The back ends of ``kvgate rehearse``, made of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.rules.errors import UsageError

if TYPE_CHECKING:
    from kvgate.probes.embedded.backend import Folders
    from kvgate.probes.embedded.child import Device
    from kvgate.probes.rehearsal.backend import Backend
    from kvgate.rules.manifest import Manifest

BACKENDS = ("embedded", "vllm", "endpoint")

_SECONDS = 60.0  # an interpreter starts in less
_SERVERS = "--old-endpoint, --new-endpoint"
_OLD_ENGINE = "--old-engine-python, --old-engine-path"
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
_DEVICE = "--device"
_LAUNCHES = "--old-launch, --new-launch"


@dataclass(frozen=True)
class Options:
    """What was given for one back end or another.

    Attributes:
        python: the interpreter that has vLLM; ``None``: the one that runs this.
        folders: in front of its search path.
        old_python: the interpreter that has the old deployment's vLLM; ``None``: the same.
        old_folders: in front of that one's search path.
        redis: a ``redis-server``; ``None``: the one on the path, if there is one.
        launches: launch files of both sides.
        endpoints: URLs of both sides, and of a control.
        key: of their API.
        seconds: within which an answer must come.
        device: where models are run.
        settle: seconds that a running server is given to store what it was asked.

    """

    python: Path | None = None
    folders: tuple[Path, ...] = ()
    old_python: Path | None = None
    old_folders: tuple[Path, ...] = ()
    redis: Path | None = None
    launches: tuple[Path | None, Path | None] = (None, None)
    endpoints: tuple[str | None, str | None, str | None] = (None, None, None)
    key: str | None = None
    seconds: float = 120.0
    device: Device = "cpu"
    settle: float = 3.0


def refuse_unusable(name: str, options: Options) -> None:
    """Refuse what cannot be meant, before anything is written that would repeat it.

    Raises:
        UsageError: no such back end; an option that it takes is missing, or one of another is there; a URL
            is none, or holds credentials.

    """
    from kvgate.probes.completions.server import open_client

    if name not in BACKENDS:
        raise UsageError(f"{name!r} is not one of {', '.join(BACKENDS)}", where="--backend")
    if options.device not in DEVICES:
        raise UsageError(f"{options.device!r} is not one of {', '.join(DEVICES)}", where=_DEVICE)
    sides = [one is not None for one in options.endpoints[:2]]
    if name == "endpoint" and not all(sides):
        raise UsageError("needs a server for each side", where=_SERVERS)
    if name != "endpoint" and any(options.endpoints):
        raise UsageError("only --backend endpoint asks servers", where=_SERVERS)
    for url in filter(None, options.endpoints):
        open_client(url, options.key, options.seconds)
    if name != "embedded" and options.device != "cpu":
        raise UsageError("only --backend embedded is told where to run", where=_DEVICE)
    if name != "vllm" and (options.old_python is not None or options.old_folders):
        raise UsageError("only --backend vllm starts engines", where=_OLD_ENGINE)
    started = [one is not None for one in options.launches]
    if name != "vllm" and any(started):
        raise UsageError("only --backend vllm starts launch files", where=_LAUNCHES)
    if any(started) and not all(started):
        raise UsageError("both sides are started from their launch files, or neither", where=_LAUNCHES)
    if name == "vllm":
        _need_vllm(options.python, options.folders, "--engine-python, --engine-path")
        if options.old_python is not None or options.old_folders:
            _need_vllm(options.old_python or options.python, options.old_folders, _OLD_ENGINE)


def starts_pools(name: str, options: Options) -> bool:
    """Whether each pool of a deployment is started by itself; of servers that run, and launch files, none is."""
    return name != "endpoint" and not any(options.launches)


def make_backend(
    name: str, old: Manifest, new: Manifest, folders: Folders | None, options: Options
) -> Callable[[], Backend]:
    """Return what makes the back end.

    Raises:
        UsageError: it takes a package that is not installed.
        InputError: a launch file cannot be used.

    """
    return {"embedded": _embedded, "vllm": _vllm, "endpoint": _endpoint}[name](old, new, folders, options)


def _embedded(old: Manifest, new: Manifest, folders: Folders | None, options: Options) -> Callable[[], Backend]:
    _need("torch", "rehearse", "--backend embedded")
    from kvgate.probes.embedded.backend import EmbeddedBackend

    return lambda: EmbeddedBackend(old, new, folders=folders, device=options.device)


def _vllm(old: Manifest, new: Manifest, folders: Folders | None, options: Options) -> Callable[[], Backend]:
    import shutil
    import sys

    from kvgate.cli.launch_files import read_launch_file
    from kvgate.probes.engines.backend import VllmBackend
    from kvgate.probes.engines.installation import Installation

    _need("torch", "rehearse", "--backend vllm")  # to write stand-ins
    if any("redis" in str(side.value("cache.location")).partition("://")[0] for side in (old, new)):
        _need("redis", "redis", "--backend vllm, in front of a Redis")
    found = shutil.which("redis-server") if options.redis is None else str(options.redis)
    redis = None if found is None else Path(found)

    def installed(python: Path | None, folders: tuple[Path, ...]) -> Installation:
        return Installation(python or Path(sys.executable), tuple(folder.resolve() for folder in folders), redis)

    installation = installed(options.python, options.folders)
    before = None
    if options.old_python is not None or options.old_folders:
        before = installed(options.old_python or options.python, options.old_folders)
    old_file, new_file = options.launches
    launches = (
        None
        if old_file is None or new_file is None
        else (read_launch_file(old_file, old), read_launch_file(new_file, new))
    )
    return lambda: VllmBackend(old, new, installation, old_installation=before, folders=folders, launches=launches)


def _endpoint(old: Manifest, new: Manifest, _folders: Folders | None, options: Options) -> Callable[[], Backend]:
    from kvgate.probes.endpoints.backend import EndpointBackend, Urls

    first, second, control = options.endpoints
    urls = Urls(str(first), str(second), control)
    return lambda: EndpointBackend(old, new, urls, key=options.key, seconds=options.seconds, settles=options.settle)


def _need(package: str, extra: str, where: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise UsageError(f"needs {package}", where=where, hint=f"pip install 'kvgate[{extra}]'")


def _need_vllm(python: Path | None, folders: tuple[Path, ...], where: str) -> None:
    """Refuse an interpreter that has no vLLM, before anything is read or started."""
    import os
    import subprocess
    import sys

    named = python or Path(sys.executable)
    asked = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    paths = os.pathsep.join(str(folder.resolve()) for folder in folders)
    try:
        found = subprocess.run(  # noqa: S603 - an interpreter that the caller names
            [str(named), "-c", asked],
            env={**os.environ, "PYTHONPATH": paths},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {_SECONDS:g} s"
        raise UsageError(f"{named} cannot be run: {why}", where=where) from None
    if found.returncode != 0:
        raise UsageError(f"{named} has no vLLM", where=where, hint="name the interpreter, or the folder, that has it")
