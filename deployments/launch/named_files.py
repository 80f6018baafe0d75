"""The files that a server's command or environment names: mounted for it, handed in with its line, or on this disk."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from kvgate.deployments.launch.containers import Mount
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.errors import InputError


class NamedFiles(Mapping[str, bytes]):
    """Content of files by the name that the server knows them by.

    A path inside a container is looked up where it is mounted from, and nowhere else: the file of that name on this
    machine would be another one.
    """

    def __init__(self, run: Invocation, beside: Mapping[str, bytes], handed: Mapping[str, bytes]) -> None:
        """Look names up.

        Args:
            run: the server.
            beside: the files of this machine, by absolute path or by a path from the launch file's folder.
            handed: files that were handed in with the launch file, by their last path component.
        """
        self._run = run
        self._beside = beside
        self._handed = handed
        self._names: dict[str, str] = {}

    def __getitem__(self, name: str) -> bytes:
        if name in self._run.files:
            return self._run.files[name]
        if (last := self._handed_as(name)) is not None and not self._run.may_be_written(name):
            self._names[last] = name
            return self._handed[last]
        here = self._here(name)
        if here is None or self._run.may_be_written(name):
            raise KeyError(name)
        return self._beside[here]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name in self._run.files:
            return True
        handed, here = self._handed_as(name), self._here(name)
        if self._run.may_be_written(name):
            if handed is not None:
                message = "is written before the server reads it, so that what was given is not what it reads"
                raise InputError(message, where=clean_text(name) or "...", hint="leave it out")
            return False
        return handed is not None or (here is not None and here in self._beside)

    @property
    def used(self) -> set[str]:
        """Which of the files that were handed in were asked for."""
        return set(self._names)

    def _handed_as(self, name: str) -> str | None:
        """Return which file that was handed in a path means; one stands for one path only."""
        last = PurePosixPath(name).name
        return last if last in self._handed and self._names.get(last, name) == name else None

    def _here(self, name: str) -> str | None:
        """Return the path on this machine."""
        if not self._run.contained or not name.startswith("/"):
            return name
        path = posixpath.normpath(name)
        covering = [mount for mount in self._run.mounts if _covers(mount, path)]
        if not covering:
            return None
        mount = max(covering, key=lambda one: len(PurePosixPath(one.target).parts))
        if mount.source is None or mount.volume or mount.expansions:
            return None
        rest = PurePosixPath(path).relative_to(posixpath.normpath(mount.target))
        return mount.source if rest == PurePosixPath() else posixpath.join(mount.source, rest.as_posix())

    def __iter__(self) -> Iterator[str]:
        yield from self._run.files
        yield from self._handed

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _covers(mount: Mount, path: str) -> bool:
    return PurePosixPath(path).is_relative_to(posixpath.normpath(mount.target))
