"""What a store yields when it is read through: entries, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Entry:
    """One stored thing.

    Attributes:
        name: a key of the store, or a path relative to its folder, with ``/`` in it.
        bytes: of its value.
        written: when, in seconds since 1970; ``None`` where the store does not keep it.

    """

    name: str
    bytes: int
    written: float | None


@dataclass(frozen=True)
class Unread:
    """Something that lies there and could not be read.

    Attributes:
        name: as of an entry, where it is one; of a folder that may hold any number of them otherwise.
        why: a few words.
        folder: whether what lies in it is not known at all.

    """

    name: str
    why: str
    folder: bool = False


class Store(Protocol):
    """A store that can be read through, and is never changed.

    Attributes:
        location: what to call it, without credentials.

    """

    location: str

    def entries(self) -> Iterator[Entry | Unread]:
        """Yield everything that lies there, in no order.

        Raises:
            InputError: the store cannot be read, or not to its end: what was yielded is not all there is.

        """

    def notes(self) -> list[str]:
        """Return what is to be known of what was yielded, a sentence each, once it has been."""

    def partial(self) -> list[str]:
        """Return why what was yielded may not be all that lies there, a sentence each, once it has been."""
