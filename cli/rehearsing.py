"""The back ends of ``kvgate rehearse``, made of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.rules.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvgate.probes.embedded.backend import Folders
    from kvgate.probes.engines.sides import Launch
    from kvgate.probes.rehearsal.backend import Backend
    from kvgate.rules.manifest import Manifest

BACKENDS = ("embedded", "vllm", "endpoint")

_LARGEST_LAUNCH = 1 << 20
_SERVERS = "--old-endpoint, --new-endpoint"
_OLD_ENGINE = "--old-engine-python, --old-engine-path"
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
    sides = [one is not None for one in options.endpoints[:2]]
    if name == "endpoint" and not all(sides):
        raise UsageError("needs a server for each side", where=_SERVERS)
    if name != "endpoint" and any(options.endpoints):
        raise UsageError("only --backend endpoint asks servers", where=_SERVERS)
    for url in filter(None, options.endpoints):
        open_client(url, options.key, options.seconds)
    if name != "vllm" and (options.old_python is not None or options.old_folders):
        raise UsageError("only --backend vllm starts engines", where=_OLD_ENGINE)
    started = [one is not None for one in options.launches]
    if name != "vllm" and any(started):
        raise UsageError("only --backend vllm starts launch files", where=_LAUNCHES)
    if any(started) and not all(started):
        raise UsageError("both sides are started from their launch files, or neither", where=_LAUNCHES)


def make_backend(
    name: str, old: Manifest, new: Manifest, folders: Folders | None, options: Options
) -> Callable[[], Backend]:
    """Return what makes the back end.

    Raises:
        UsageError: it takes a package that is not installed.
        InputError: a launch file cannot be used.

    """
    return {"embedded": _embedded, "vllm": _vllm, "endpoint": _endpoint}[name](old, new, folders, options)


def _embedded(old: Manifest, new: Manifest, folders: Folders | None, _options: Options) -> Callable[[], Backend]:
    _need_torch("--backend embedded")
    from kvgate.probes.embedded.backend import EmbeddedBackend

    return lambda: EmbeddedBackend(old, new, folders=folders)


def _vllm(old: Manifest, new: Manifest, folders: Folders | None, options: Options) -> Callable[[], Backend]:
    import shutil
    import sys

    from kvgate.probes.engines.backend import VllmBackend
    from kvgate.probes.engines.installation import Installation

    _need_torch("--backend vllm")  # to write stand-ins
    found = shutil.which("redis-server") if options.redis is None else str(options.redis)
    redis = None if found is None else Path(found)

    def installed(python: Path | None, folders: tuple[Path, ...]) -> Installation:
        return Installation(python or Path(sys.executable), tuple(folder.resolve() for folder in folders), redis)

    installation = installed(options.python, options.folders)
    before = None
    if options.old_python is not None or options.old_folders:
        before = installed(options.old_python or options.python, options.old_folders)
    old_file, new_file = options.launches
    launches = None if old_file is None or new_file is None else (_launch(old_file, old), _launch(new_file, new))
    return lambda: VllmBackend(old, new, installation, old_installation=before, folders=folders, launches=launches)


def _endpoint(old: Manifest, new: Manifest, _folders: Folders | None, options: Options) -> Callable[[], Backend]:
    from kvgate.probes.endpoints.backend import EndpointBackend, Urls

    first, second, control = options.endpoints
    urls = Urls(str(first), str(second), control)
    return lambda: EndpointBackend(old, new, urls, key=options.key, seconds=options.seconds, settles=options.settle)


def _launch(file: Path, manifest: Manifest) -> Launch:
    """Read the flags and variables that a launch line starts vLLM with.

    Raises:
        InputError: it cannot be read, is none of vLLM's, leaves something open, or starts another deployment.

    """
    from kvgate.corpora.files import open_regular
    from kvgate.deployments.launch import LaunchFile, read_launch
    from kvgate.deployments.launch.invocation import find_invocation
    from kvgate.probes.engines.sides import Launch
    from kvgate.rules.change import alike
    from kvgate.rules.values import Known

    try:
        with open_regular(file) as stream:
            content = stream.read(_LARGEST_LAUNCH + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(file)) from None
    if len(content) > _LARGEST_LAUNCH:
        raise InputError(f"larger than the {_LARGEST_LAUNCH:,} bytes allowed", where=str(file))
    launch = LaunchFile(str(file), content)
    for facts in read_launch([launch]):
        for path, value in facts.values.items():
            held = manifest.get(path)
            # What the line leaves out, an operator may have declared; but not what it stores with.
            told = value is not None or path == "cache.connector"
            scalar = not isinstance(value, (dict, list))
            if told and scalar and isinstance(held, Known) and not alike(held.value, value):
                raise InputError(
                    f"{path} is {value!r} here, and {held.value!r} in {manifest.source}",
                    where=str(file),
                    hint="capture it",
                )
    found = find_invocation(launch.text(), str(file))
    if found.engine != "vllm":
        raise InputError(f"starts {found.engine}, and only vLLM is started here", where=str(file))
    words = [*found.arguments, *found.environment.values()]
    if open_ := sorted({one for word in words for one in word.expansions}):
        raise InputError(f"what stands for {', '.join(open_)} is not in the file", where=str(file))
    variables = {name: word.text for name, word in found.environment.items()}
    return Launch(tuple(word.text for word in found.arguments), variables)


def _need_torch(where: str) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise UsageError("needs torch", where=where, hint="pip install torch")
