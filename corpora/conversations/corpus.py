"""Conversations to render: the diagnostic ones that kvgate ships, or a user's own JSONL."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.requests import parse_request
from kvgate.corpora.conversations.seen import Seen
from kvgate.corpora.files import open_regular, reason
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

DIAGNOSTIC = "diagnostic"

_MAX_LINE = 16 << 20
_REPORTED = 4 << 20  # bytes between two reports of progress


@dataclass(frozen=True)
class Corpus:
    """Conversations in order, read from their file each time they are asked for.

    Attributes:
        name: ``"diagnostic"``, or the file's name without its ending.
        digest: ``"sha256:..."`` of the file.
        count: how many conversations there are.
        read: gives them from the beginning.

    """

    name: str
    digest: str
    count: int
    read: Callable[[], Iterator[Conversation]]

    @property
    def id(self) -> str:
        """``name@<first 12 hex of the digest>``."""
        return f"{self.name}@{self.digest.removeprefix('sha256:')[:12]}"

    def conversations(self) -> Iterator[Conversation]:
        """Yield the conversations in order, one line at a time.

        Raises:
            InputError: the file is no longer the one that was loaded.

        """
        return self.read()


def load_corpus(source: str | Path, progress: Progress = silent) -> Corpus:
    """Load the diagnostic corpus, or a JSONL file of OpenAI chat or completion requests.

    Every line is read and checked, and none is kept: a file of millions of lines takes the memory of its longest line
    and some bytes of each id.

    Args:
        source: ``"diagnostic"``, or a path; one JSON object a line, blank lines allowed.
        progress: told how many bytes have been checked.

    Raises:
        InputError: naming file and line: not readable, not JSON, an unknown field, a wrong type, an id
            that stands twice, no line at all.

    """
    if source == DIAGNOSTIC:
        packaged = resources.files("kvgate.corpora.conversations") / "diagnostic.jsonl"
        return _load(DIAGNOSTIC, lambda: io.BytesIO(packaged.read_bytes()), "diagnostic.jsonl", progress)
    path = Path(source)
    return _load(path.stem, lambda: open_regular(path), str(path), progress)


def _load(name: str, opened: Callable[[], BinaryIO], source: str, progress: Progress) -> Corpus:
    hasher = hashlib.sha256()
    seen = Seen()
    for conversation, where in _read(opened, source, hasher, progress):
        if not seen.add(conversation.id):
            raise InputError(f"the id {conversation.id!r} stands twice", where=where)
    if not seen:
        raise InputError("holds no conversation", where=source, hint="one JSON object a line")
    digest = hasher.hexdigest()

    def again() -> Iterator[Conversation]:
        hasher = hashlib.sha256()
        for conversation, _ in _read(opened, source, hasher, silent):
            yield conversation
        if hasher.hexdigest() != digest:
            raise InputError("was changed while it was being read", where=source)

    return Corpus(name, f"sha256:{digest}", len(seen), again)


def _read(
    opened: Callable[[], BinaryIO], source: str, hasher: hashlib._Hash, progress: Progress
) -> Iterator[tuple[Conversation, str]]:
    """Yield each conversation with its file and line; what ``hasher`` is given in the end is the whole file."""
    done = reported = number = 0
    with opened() as stream:
        try:
            total = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE + 1), b""), 1):
                where = f"{source}:{number}"
                hasher.update(line)
                done += len(line)
                if done - reported > _REPORTED:
                    progress("reading the corpus", done, total, "bytes")
                    reported = done
                if len(line) > _MAX_LINE:
                    raise InputError(f"the line is longer than {_MAX_LINE:,} bytes", where=where)
                if not line.isspace():
                    yield parse_request(line, number, where), where
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=f"{source}:{number + 1}") from None
