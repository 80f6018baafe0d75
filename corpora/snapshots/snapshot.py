"""What a renderer made of a corpus, saved so that it can be compared when that renderer is gone.

A snapshot is a file of JSON lines: what rendered (header), one line for each conversation in the order of the
corpus, and a footer, without which the file is known to be cut short. It is written and read as a stream, so that
millions of conversations take little more memory than a hundred.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from kvgate.corpora.conversations.seen import Seen
from kvgate.corpora.files import Beside, open_regular, reason
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

SCHEMA = "kvgate/snapshot/v1"

Made = Literal["here", "script", "endpoint"]

_MAX_LINE = 1 << 30
_MAX_ENDS = 64 << 20  # header and footer: the pieces of a vocabulary of a million entries fit
_BLOCK = 1 << 20
_STATES = ("ok", "render-error")
_HEADER = {
    "schema", "corpus", "renderer", "jinja2", "made", "options", "unapplied", "template", "tokenizer", "clocks",
}  # fmt: skip
_FOOTER = {"end", "conversations", "coverage", "pieces"}


@dataclass(frozen=True)
class Rendered:
    """What became of one conversation on one date.

    Attributes:
        text: the rendered text; ``None`` where rendering failed, or where it was not kept: by an endpoint
            that gives ids only, or because prompt text was to be left out.
        ids: its token ids; empty where rendering failed.
        error: class and message where rendering failed.
        digest: stands for a text that was left out; see :func:`text_digest`.

    """

    text: str | None
    ids: array[int]
    error: tuple[str, str] | None = None
    digest: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there are token ids to compare."""
        return self.error is None

    def same_text(self, other: Rendered) -> bool | None:
        """Whether both rendered the same text; ``None``: a side's is not known."""
        if self.text is not None and other.text is not None:
            return self.text == other.text
        ours, theirs = (one.digest if one.text is None else text_digest(one.text) for one in (self, other))
        return None if ours is None or theirs is None else ours == theirs


@dataclass(frozen=True)
class SnapshotEntry:
    """One conversation.

    Attributes:
        id: as in the corpus.
        input: digest of what was rendered; ids are comparable only where it is equal.
        renders: one for each of the header's clocks; one where it has none.
        turns: what was recorded of the stability of its prefixes; ``None``: nothing was.
        generated: what was recorded of the ids that its answers were generated as; ``None``: nothing was.

    """

    id: str
    input: str
    renders: tuple[Rendered, ...]
    turns: tuple[Mapping[str, Any], ...] | None = None
    generated: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class SnapshotHeader:
    """What rendered, and what it rendered.

    Attributes:
        corpus: ``name@digest`` of the corpus.
        corpus_digest: ``"sha256:..."`` of the corpus.
        renderer: version by library.
        jinja2: the version that rendered the templates; ``None``: unknown (an endpoint does not say).
        made: in this environment, by the script that runs in a serving image, or by a running server.
        options: the rendering options that were applied.
        unapplied: names of options that this renderer does not know and did not apply, sorted.
        template: digest of the chat template; ``None``: there is none, or it is unknown.
        tokenizer: the effective tokenizer's digest; ``None``: unknown.
        clocks: the dates that each conversation was rendered on, two where the template reads the clock; none
            where the clock could not be stopped.
        redacted: whether prompt text was left out.

    """

    corpus: str
    corpus_digest: str
    renderer: Mapping[str, str]
    jinja2: str | None
    made: Made
    options: Mapping[str, Any]
    unapplied: tuple[str, ...]
    template: str | None
    tokenizer: str | None
    clocks: tuple[str, ...]
    redacted: bool = False


@dataclass(frozen=True)
class SnapshotFooter:
    """What is known once all is rendered.

    Attributes:
        conversations: how many lines there are.
        coverage: which branches of the template were executed (see ``kvgate.corpora.coverage``); ``None``: unknown.
        pieces: the vocabulary's string for each id that occurs, so that a divergence can be shown when the tokenizer is
            gone; empty where they are unknown or prompt text was left out.

    """

    conversations: int
    coverage: Mapping[str, Any] | None = None
    pieces: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotFile:
    """A snapshot on disk, its ends read and its bytes hashed.

    Attributes:
        path: where it lies.
        sha256: ``"sha256:..."`` of the file.
        header: its first line.
        footer: its last line.

    """

    path: Path
    sha256: str
    header: SnapshotHeader
    footer: SnapshotFooter
    _identity: tuple[int, ...]

    def entries(self) -> Iterator[SnapshotEntry]:
        """Yield the conversations in order, reading one line at a time.

        Raises:
            InputError: naming the line: not an entry, an id that stands twice, another number of them than the footer
                says, or the file is not the one that was opened.

        """
        with open_regular(self.path) as stream:
            if _identity(stream) != self._identity:
                raise InputError("was changed since it was opened", where=str(self.path))
            renders = max(1, len(self.header.clocks))
            seen = Seen()
            for number, line in enumerate(_lines(stream, str(self.path)), 1):
                where = f"{self.path}:{number}"
                if number == 1:
                    continue
                if number - 2 == self.footer.conversations:
                    if stream.readline(1):
                        raise InputError("holds more conversations than its last line says", where=where)
                    return  # this was the last line, which is known already
                entry = entry_of(_json(line, where), where, renders)
                if not seen.add(entry.id):
                    raise InputError(f"the conversation {entry.id!r} stands twice", where=where)
                yield entry
        raise InputError("holds fewer conversations than its last line says", where=str(self.path))


def open_snapshot(path: Path, sha256: str | None) -> SnapshotFile:
    """Open a snapshot: hash it, read its first and its last line.

    Args:
        path: the file.
        sha256: ``"sha256:..."`` that it must have; ``None``: nobody said.

    Raises:
        InputError: naming file and line: not readable, another digest, not a snapshot, cut short.

    """
    hasher = hashlib.sha256()
    with open_regular(path) as stream:
        try:
            identity = _identity(stream)
            while chunk := stream.read(_BLOCK):
                hasher.update(chunk)
            found = f"sha256:{hasher.hexdigest()}"
            if sha256 not in (None, found):
                raise InputError(
                    f"is not the file that the manifest names: it has {found}, the manifest says {sha256}",
                    where=str(path),
                    hint="capture again, or restore the file",
                )
            stream.seek(0)
            header = _header(_json(stream.readline(_MAX_ENDS), f"{path}:1"), f"{path}:1")
            footer = _footer(_last_line(stream), f"{path}: last line")
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None
    return SnapshotFile(path, found, header, footer, identity)


class SnapshotWriter:
    """Writes a snapshot beside its place, and puts it there once it is whole.

    A context manager: leaving it without :meth:`finish` removes what was written.
    """

    def __init__(self, path: Path, header: SnapshotHeader) -> None:
        """Begin.

        Raises:
            InputError: the folder cannot be written.

        """
        self._path = path
        self._hasher = hashlib.sha256()
        self._count = 0
        self._header = header
        self._file = Beside(path)
        self._write(_dumped(_header_data(header)))

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.discard()

    def lines(self, data: bytes, count: int) -> None:
        """Add finished lines as :func:`entry_line` makes them, or pieces of them; ``count`` lines end in ``data``."""
        self._count += count
        self._write(data)

    def entry(self, entry: SnapshotEntry) -> None:
        """Add one conversation."""
        self.lines(entry_line(entry), 1)

    def finish(self, coverage: Mapping[str, Any] | None, pieces: Mapping[int, str]) -> SnapshotFile:
        """Add the footer, put the file in its place, and return it opened.

        Raises:
            InputError: it cannot be written.

        """
        self._write(_dumped(_footer_data(SnapshotFooter(self._count, coverage, pieces))))
        self._file.keep()
        return open_snapshot(self._path, f"sha256:{self._hasher.hexdigest()}")

    def _write(self, line: bytes) -> None:
        self._hasher.update(line)
        self._file.write(line)


def entry_line(entry: SnapshotEntry) -> bytes:
    """Return one conversation as a line of the file."""
    if entry.turns is None and entry.generated is None and all(one.error is None for one in entry.renders):
        # Written by hand: this line is made a million times, and JSON's own way takes three times as long.
        renders = ",".join(map(_render_text, entry.renders))
        return f'{{"id":{_quoted(entry.id)},"input":{_quoted(entry.input)},"renders":[{renders}]}}\n'.encode("ascii")
    data: dict[str, Any] = {
        "id": entry.id,
        "input": entry.input,
        "renders": [_render_data(render) for render in entry.renders],
    }
    if entry.turns is not None:
        data["turns"] = list(entry.turns)
    if entry.generated is not None:
        data["generated"] = list(entry.generated)
    return _dumped(data)


def text_digest(text: str) -> str:
    """Return what stands for a text that is left out: 32 hex digits of BLAKE2b over its UTF-8.

    It is not keyed, so that two sides can be compared that know nothing of each other. Whoever can guess a text can
    confirm it; whoever has the tokenizer can read it from the token ids anyway.
    """
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def redacted(render: Rendered) -> Rendered:
    """Return a rendering without prompt text; an error's message may quote the prompt, so only its class stays."""
    if render.error is not None:
        return Rendered(None, render.ids, (render.error[0], f"[redacted {text_digest(render.error[1])}]"))
    if render.text is None:
        return render
    return Rendered(None, render.ids, None, text_digest(render.text))


def entry_of(value: Any, where: str, renders: int) -> SnapshotEntry:
    """Return one entry from its JSON.

    Args:
        value: the line, parsed.
        where: its file and line.
        renders: how many renderings it must have.

    Raises:
        InputError: it has another shape.

    """
    fields = _object(value, {"id", "input", "renders"}, where, optional={"turns", "generated"})
    name, digest, found = fields["id"], fields["input"], fields["renders"]
    if not (isinstance(name, str) and isinstance(digest, str) and isinstance(found, list)):
        raise InputError("not an entry of a token snapshot", where=where)
    if len(found) != renders:
        raise InputError(f"an entry must have {renders} renderings here, not {len(found)}", where=where)
    return SnapshotEntry(
        name,
        digest,
        tuple(_rendered(render, where) for render in found),
        _records(fields, "turns", where),
        _records(fields, "generated", where),
    )


# ---- to JSON ----


def _dumped(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _header_data(header: SnapshotHeader) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "corpus": {"id": header.corpus, "digest": header.corpus_digest},
        "renderer": dict(header.renderer),
        "jinja2": header.jinja2,
        "made": header.made,
        "options": dict(header.options),
        "unapplied": list(header.unapplied),
        "template": header.template,
        "tokenizer": header.tokenizer,
        "clocks": list(header.clocks),
        **({"redacted": True} if header.redacted else {}),
    }


def _footer_data(footer: SnapshotFooter) -> dict[str, Any]:
    return {
        "end": True,
        "conversations": footer.conversations,
        "coverage": footer.coverage,
        "pieces": {str(number): piece for number, piece in footer.pieces.items()},
    }


class _Digits(dict[int, str]):
    """Numbers as text, each made once: there are as many as the ids that occur."""

    def __missing__(self, number: int) -> str:
        text = self[number] = str(number)
        return text


_digits = _Digits().__getitem__
_quoted = json.encoder.encode_basestring_ascii  # what json.dumps does with a string


def _render_text(render: Rendered) -> str:
    digest = "" if render.digest is None else f'"digest":{_quoted(render.digest)},'
    text = "null" if render.text is None else _quoted(render.text)
    return f'{{{digest}"ids":[{",".join(map(_digits, render.ids))}],"state":"ok","text":{text}}}'


def _render_data(render: Rendered) -> dict[str, Any]:
    if render.error is not None:
        return {"state": "render-error", "error": {"class": render.error[0], "message": render.error[1]}}
    digest = {} if render.digest is None else {"digest": render.digest}
    return {"state": "ok", "text": render.text, **digest, "ids": render.ids.tolist()}


# ---- from JSON ----


def _lines(stream: BinaryIO, source: str) -> Iterator[bytes]:
    try:
        yield from iter(lambda: stream.readline(_MAX_LINE), b"")
    except OSError as error:
        raise InputError(f"cannot be read: {reason(error)}", where=source) from None


def _last_line(stream: BinaryIO) -> bytes:
    """Return the last line, by reading backwards from the end; the stream must be able to seek."""
    place = stream.seek(0, io.SEEK_END)
    found = b""
    while place > 0 and len(found) <= _MAX_ENDS and b"\n" not in found[:-1]:
        size = min(_BLOCK, place)
        place = stream.seek(place - size)
        found = stream.read(size) + found
    return found[found.rfind(b"\n", 0, -1) + 1 :]


def _identity(stream: BinaryIO) -> tuple[int, ...]:
    """Return what tells one file from another, and one state of it from the next."""
    found = os.fstat(stream.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _header(value: Any, where: str) -> SnapshotHeader:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise InputError(f"not a token snapshot (its first line has no schema {SCHEMA!r})", where=where)
    header = _object(value, _HEADER, where, optional={"redacted"})
    corpus = _object(header["corpus"], {"id", "digest"}, where)
    strings = [corpus["id"], corpus["digest"]]
    strings += [header[name] for name in ("jinja2", "template", "tokenizer") if header[name] is not None]
    if isinstance(header["renderer"], dict):
        strings.extend(header["renderer"].values())
    for name in ("unapplied", "clocks"):
        if isinstance(header[name], list):
            strings.extend(header[name])
    kinds = {"renderer": dict, "options": dict, "unapplied": list, "clocks": list}
    if (
        not all(isinstance(text, str) for text in strings)
        or not all(isinstance(header[name], kind) for name, kind in kinds.items())
        or header["made"] not in get_args(Made)
        or header.get("redacted", True) is not True
        or len(header["clocks"]) > 2
    ):
        raise InputError("a field of the snapshot's first line has the wrong type", where=where)
    return SnapshotHeader(
        corpus=corpus["id"],
        corpus_digest=corpus["digest"],
        renderer=header["renderer"],
        jinja2=header["jinja2"],
        made=header["made"],
        options=header["options"],
        unapplied=tuple(header["unapplied"]),
        template=header["template"],
        tokenizer=header["tokenizer"],
        clocks=tuple(header["clocks"]),
        redacted=header.get("redacted", False),
    )


def _footer(line: bytes, where: str) -> SnapshotFooter:
    value = _json(line, where)
    if not isinstance(value, dict) or value.get("end") is not True:
        raise InputError("the snapshot is cut short: its last line is no footer", where=where)
    footer = _object(value, _FOOTER, where)
    count, coverage, pieces = footer["conversations"], footer["coverage"], footer["pieces"]
    if (
        not isinstance(count, int)
        or isinstance(count, bool)
        or count < 0
        or not isinstance(coverage, (dict, type(None)))
        or not isinstance(pieces, dict)
        or not all(
            isinstance(piece, str) and number.isascii() and number.isdecimal() for number, piece in pieces.items()
        )
    ):
        raise InputError("a field of the snapshot's last line has the wrong type", where=where)
    return SnapshotFooter(count, coverage, {int(number): piece for number, piece in pieces.items()})


def _rendered(value: Any, where: str) -> Rendered:
    if not isinstance(value, dict) or value.get("state") not in _STATES:
        raise InputError("a rendering has no state", where=where)
    if value["state"] == "ok":
        fields = _object(value, {"state", "text", "ids"}, where, optional={"digest"})
        text, digest, ids = fields["text"], fields.get("digest"), fields["ids"]
        if (
            not isinstance(text, (str, type(None)))
            or not isinstance(digest, (str, type(None)))
            or not isinstance(ids, list)
        ):
            raise InputError("a rendering's text or ids have the wrong type", where=where)
        try:
            return Rendered(text, array("I", ids), None, digest)
        except (TypeError, OverflowError):
            raise InputError("a token id is not a number between 0 and 2**32", where=where) from None
    error = _object(value, {"state", "error"}, where)["error"]
    fields = _object(error, {"class", "message"}, where)
    if not (isinstance(fields["class"], str) and isinstance(fields["message"], str)):
        raise InputError("a rendering's error has the wrong type", where=where)
    return Rendered(None, array("I"), (fields["class"], fields["message"]))


def _records(fields: Mapping[str, Any], name: str, where: str) -> tuple[Mapping[str, Any], ...] | None:
    found = fields.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{name!r} must be a list of objects", where=where)
    return tuple(found)


def _object(value: Any, keys: set[str], where: str, *, optional: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict) or not keys <= value.keys() <= keys | (optional or set()):
        raise InputError(f"expected an object with {', '.join(sorted(keys))}", where=where)
    return value


def _json(line: bytes, where: str) -> Any:
    if not line.endswith(b"\n"):
        raise InputError("the file ends in the middle of a line", where=where)
    try:
        return parse_json(line.decode("ascii"), where)
    except UnicodeDecodeError:
        raise InputError("not a token snapshot: it holds more than ASCII", where=where) from None
