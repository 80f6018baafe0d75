"""Scratch stores that real connectors write into: one place that they know, and what lies there exchanged under it.

A connector is told its place when it starts. What a rehearsal calls another store is put there in its stead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Protocol, cast

from kvgate.corpora.files import open_regular
from kvgate.stores.scanning.entries import Entry
from kvgate.stores.scanning.folder import FolderStore
from kvgate.stores.scanning.redis_store import RedisStore


class Places(Protocol):
    """Stores of one kind, one of them in place."""

    def put(self, store: str, location: str, *, keeps: bool) -> None:
        """Put a store in place, as it was left; empty where it is new.

        Args:
            store: its name.
            location: of it, as a manifest has it: other locations hold other entries.
            keeps: whether what is written now stays.

        """

    def tear(self) -> None:
        """Leave of everything in place the first half of its bytes; what was put there is kept as it was."""

    def names(self) -> set[str]:
        """Return the names of what lies in place."""

    def read(self, name: str, most: int) -> bytes:
        """Return the bytes of one of them: all of them, or one more than so many."""


class FolderPlaces:
    """Folders.

    Args:
        scratch: an empty folder that they may use.

    Attributes:
        place: the path that a connector is given.

    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self.place = scratch / "place"
        self._copies = 0

    def put(self, store: str, location: str, *, keeps: bool) -> None:
        """See :class:`Places`."""
        kept = self._scratch / "kept" / store / hashlib.sha256(location.encode()).hexdigest()[:16]
        kept.mkdir(parents=True, exist_ok=True)
        target = kept
        if not keeps:
            self._copies += 1
            target = self._scratch / "copies" / str(self._copies)
            # Links: no connector changes a file that it has written.
            shutil.copytree(kept, target, copy_function=os.link)
        new = self._scratch / "new"
        new.symlink_to(target, target_is_directory=True)
        new.replace(self.place)

    def tear(self) -> None:
        """See :class:`Places`."""
        for name in self.names():
            file = self.place / name
            half = file.read_bytes()[: file.stat().st_size // 2]
            file.unlink()  # it may be a link to what is kept
            file.write_bytes(half)

    def names(self) -> set[str]:
        """See :class:`Places`."""
        return {one.name for one in FolderStore(self.place).entries() if isinstance(one, Entry)}

    def read(self, name: str, most: int) -> bytes:
        """See :class:`Places`."""
        with open_regular(self.place / name) as stream:
            return stream.read(most + 1)


class RedisPlaces:
    """Databases of one Redis that nobody else uses: the one in place is database 0.

    Args:
        url: of the server.

    Attributes:
        url: of the server.

    """

    def __init__(self, url: str) -> None:
        import redis

        self.url = url
        self._client = redis.Redis.from_url(url)
        self._client.flushall()
        self._databases: dict[tuple[str, str], int] = {}
        self._in_place: int | None = None

    def put(self, store: str, location: str, *, keeps: bool) -> None:
        """See :class:`Places`."""
        import redis

        if self._in_place is not None:
            self._client.swapdb(0, self._in_place)
        self._client.flushdb()
        database = self._databases.setdefault((store, location), 1 + len(self._databases))
        self._in_place = database if keeps else None
        if keeps:
            self._client.swapdb(0, database)
            return
        with redis.Redis.from_url(f"{self.url}/{database}") as kept:
            for key in list(kept.scan_iter(count=1000)):
                kept.copy(key, key, destination_db="0")

    def tear(self) -> None:
        """See :class:`Places`."""
        for name in self.names():
            self._client.set(name, self._client.getrange(name, 0, self._client.strlen(name) // 2 - 1))

    def names(self) -> set[str]:
        """See :class:`Places`."""
        return {one.name for one in RedisStore(f"{self.url}/0").entries() if isinstance(one, Entry)}

    def read(self, name: str, most: int) -> bytes:
        """See :class:`Places`."""
        return cast("bytes", self._client.getrange(name, 0, most))  # it is not asked to decode
