"""Where the files of a checkpoint are: a folder, or a repository at the revision that the launch line starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvgate.deployments.compiled import compiled_engine
from kvgate.deployments.hub import HubCheckpoint, history, obtain, split_repository
from kvgate.deployments.launch import LaunchFacts
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.progress import Progress

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class Beside:
    """Where the files are that an engine reads beside the model's, as far as the user says it.

    Attributes:
        adapters: folders by adapter name.
        tokenizer: the folder of the tokenizer that the launch line names.
        draft: the folder of the speculative model that it names.
        chat_template: a template file or text, which overrides the one it names.
    """

    adapters: Mapping[str, Path] = field(default_factory=dict)
    tokenizer: Path | None = None
    draft: Path | None = None
    chat_template: str | None = None


def on_this_machine(launch: LaunchFacts, name: str) -> tuple[Path | None, str]:
    """Return where something that the launch line names is on this machine, or why that is not known.

    A path inside a container is looked up where it is mounted from, and nowhere else: what this machine has at that
    path is something else. A relative one is no place at all.
    """
    place = launch.place(name)
    if not place.value:
        return None, place.reason or "where it is is not known"
    path = Path(place.value)
    return (path, "") if exists(path) else (None, f"there is nothing at {path}")


def locate(
    model: str, revision: str | None, launch: LaunchFacts | None, *, fetch_weights: bool, progress: Progress
) -> tuple[Path, HubCheckpoint | None]:
    """Return the folder (or GGUF file) with the checkpoint's files, and the repository where they come from one.

    Args:
        model: a folder, a GGUF file, or ``org/name[@revision]``.
        revision: of the repository; ``None``: the one beside its name, else the launch line's.
        launch: what the launch line says; ``None``: there is none.
        fetch_weights: whether the tensors are wanted too.
        progress: told of the bytes that arrive.

    Raises:
        UsageError: a revision of a folder, or two revisions.
        InputError: nothing is there, or the launch line starts another repository or revision.
    """
    path = Path(model).expanduser()
    if exists(path):
        if revision is not None:
            raise UsageError("a revision was given, but the model is a folder", where=model)
        # A link may be switched while files are read one after the other: it is followed once.
        return path.resolve(), None
    split = split_repository(model)
    if split is None:
        raise InputError(
            "there is no such folder, and it cannot be a hub repository",
            where=model,
            hint="a checkpoint folder, or org/name[@revision]",
        )
    repo, inline = split
    if inline is not None and revision is not None and inline != revision:
        raise UsageError(f"two revisions: {inline} and {revision}", where=repo)
    asked = inline or revision
    launched = launch.values.get("model.revision") if launch is not None else None
    hub = obtain(repo, asked or launched, progress, weights=fetch_weights)
    if launch is not None:
        _refuse_another_checkpoint(hub, asked, launch, progress)
    if fetch_weights and compiled_engine(hub.folder) is None and not any(hub.folder.rglob("*.safetensors")):
        raise InputError(
            "no safetensors in this repository, and other weights are not fetched",
            where=f"{repo}@{hub.commit}",
            hint="download the GGUF file and capture it by its path, or leave the weights out (--no-weights)",
        )
    return hub.folder, hub


def pins(launch: LaunchFacts, hub: HubCheckpoint) -> bool:
    """Whether a launch line loads this repository at this commit, by the commit itself and not by a name that moves."""
    named = split_repository(launch.model) if launch.model is not None else None
    loads_it = named is not None and named[0].lower() == hub.repo.lower()
    return loads_it and launch.values.get("model.revision") == hub.commit


def exists(path: Path) -> bool:
    """Whether something is there; a text that can be no path names nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a name, a NUL in it
        return False


def _refuse_another_checkpoint(hub: HubCheckpoint, asked: str | None, launch: LaunchFacts, progress: Progress) -> None:
    """Refuse a repository at a revision that the launch line does not start, as far as it names one itself."""
    if launch.model is None or (named := split_repository(launch.model)) is None:
        return  # a path: that the files there are these is what the user says
    if named[0].lower() != hub.repo.lower():
        raise InputError(
            f"the launch line starts {launch.model}, another repository",
            where=hub.repo,
            hint="capture that one; where it is a folder, or both hold the same files, give a folder that holds them",
        )
    launched = launch.values.get("model.revision", asked)
    if launched == asked:
        return
    what, hint = f"starts {launched or 'the default branch'}", "leave the revision out: the launch line's counts"
    if isinstance(launched, str) and _COMMIT.fullmatch(launched):
        same, what = launched == hub.commit, f"pins {launched[:12]}"
    elif asked is not None and _SHORT.fullmatch(asked) and hub.commit.startswith(asked):
        # A name moves: what was started under it some time ago is any commit that it stood for.
        known = history(hub.repo, launched)
        same, what = known is None or hub.commit in known, f"{what}, which never stood for it"
    else:
        commit = obtain(hub.repo, launched, progress, weights=False).commit
        same, what = commit == hub.commit, f"{what}, now {commit[:12]}"
    if not same:
        given = f"the checkpoint given is {hub.commit[:12]}"
        raise InputError(f"{given}, but the launch line {what}", where=hub.repo, hint=hint)
