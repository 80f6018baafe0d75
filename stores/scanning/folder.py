"""A store that is a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kvgate.rules.errors import InputError
from kvgate.stores.scanning.entries import Entry, Unread


class FolderStore:
    """Every regular file at and below a folder. Links are not followed: what they lead to is not the store's.

    Raises:
        InputError: there is no such folder, or it cannot be read.

    """

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._folder = folder
        try:
            with os.scandir(folder):
                pass
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise InputError(f"cannot be read: {_why(error)}", where=str(folder)) from None

    def entries(self) -> Iterator[Entry | Unread]:
        """See :class:`Store`. A folder below that cannot be read is yielded as such."""
        waiting = [("", str(self._folder))]
        while waiting:
            inside, folder = waiting.pop()
            try:
                found = os.scandir(folder)
            except OSError as error:
                yield Unread(inside, _why(error), folder=True)
                continue
            with found:
                while True:
                    try:
                        item = next(found, None)
                    except OSError as error:
                        yield Unread(inside, _why(error), folder=True)
                        break
                    if item is None:
                        break
                    name = f"{inside}/{item.name}" if inside else item.name
                    seen = _seen(name, item)
                    if seen is None:
                        waiting.append((name, item.path))
                    else:
                        yield seen

    def notes(self) -> list[str]:
        """See :class:`Store`."""
        return []

    def partial(self) -> list[str]:
        """See :class:`Store`."""
        return []


def _seen(name: str, item: os.DirEntry[str]) -> Entry | Unread | None:
    """Return what lies there; ``None`` for a folder."""
    try:
        found = item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return Unread(name, "it was gone before it was read")
    except OSError as error:
        return Unread(name, _why(error), folder=item.is_dir(follow_symlinks=False))
    if stat.S_ISDIR(found.st_mode):
        return None
    if stat.S_ISLNK(found.st_mode):
        return Unread(name, "a link, which is not followed")
    if not stat.S_ISREG(found.st_mode):
        return Unread(name, "a pipe or a device")
    return Entry(name, found.st_size, found.st_mtime)


def _why(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
