"""What a renderer made of a corpus, saved so that it can be compared when that renderer is gone."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.corpora.files import open_regular, reason, write_whole
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError, UsageError

SCHEMA = "kvgate/snapshot/v1"

_MAX_LINE = 1 << 30
_STATES = ("ok", "render-error")
_DEFAULTS: Mapping[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "parse_tool_arguments": True,
    "template_kwargs": {},
}


@dataclass(frozen=True)
class Rendered:
    """What became of one conversation on one date.

    Attributes:
        text: the rendered text; ``None`` where rendering failed.
        ids: its token ids; empty where rendering failed.
        error: class and message where rendering failed.

    """

    text: str | None
    ids: array[int]
    error: tuple[str, str] | None = None

    @property
    def ok(self) -> bool:
        """Whether there are token ids to compare."""
        return self.error is None


@dataclass(frozen=True)
class SnapshotEntry:
    """One conversation.

    Attributes:
        id: as in the corpus.
        input: digest of what was rendered; ids are comparable only where it is equal.
        renders: one, or two where the template reads the clock (on the two dates of
            :data:`kvgate.corpora.rendering.CLOCKS`).

    """

    id: str
    input: str
    renders: tuple[Rendered, ...]


@dataclass(frozen=True)
class Snapshot:
    """Rendered text and token ids of a corpus, and what made them.

    Attributes:
        corpus: ``name@digest`` of the corpus.
        corpus_digest: ``"sha256:..."`` of the corpus.
        renderer: version by library.
        jinja2: the version that rendered the templates.
        options: the rendering options that were applied.
        unapplied: names of options that this renderer does not know and did not apply, sorted.
        template: digest of the chat template; ``None``: there is none.
        tokenizer: the effective tokenizer's digest; ``None``: unknown.
        entries: in the order of the corpus.

    """

    corpus: str
    corpus_digest: str
    renderer: Mapping[str, str]
    jinja2: str
    options: Mapping[str, Any]
    unapplied: tuple[str, ...]
    template: str | None
    tokenizer: str | None
    entries: tuple[SnapshotEntry, ...]


def render_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that the renderer applies, defaults filled in, and the names of those it does not.

    Applied are ``add_generation_prompt`` (where the conversation does not say), ``add_special_tokens`` (for
    raw completions), ``parse_tool_arguments`` (JSON text in tool calls becomes objects first, as vLLM
    does) and ``template_kwargs`` (variables for every conversation).

    Raises:
        UsageError: an option has the wrong type.

    """
    for name, default in _DEFAULTS.items():
        if name in options and not isinstance(options[name], type(default)):
            kind = "an object" if isinstance(default, dict) else "true or false"
            raise UsageError(f"the rendering option {name!r} must be {kind}")
    applied = {name: options.get(name, default) for name, default in _DEFAULTS.items()}
    return applied, tuple(sorted(options.keys() - _DEFAULTS.keys()))


def write_snapshot(snapshot: Snapshot, path: Path) -> str:
    """Write a snapshot as JSONL, all or nothing, and return the file's ``"sha256:..."``.

    Raises:
        InputError: the folder cannot be written.

    """
    hasher = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        for value in _documents(snapshot):
            line = json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
            hasher.update(line)
            yield line

    write_whole(path, lines())
    return f"sha256:{hasher.hexdigest()}"


def read_snapshot(path: Path, sha256: str) -> Snapshot:
    """Read a snapshot that a manifest names.

    Args:
        path: the sidecar.
        sha256: ``"sha256:..."`` that it must have.

    Raises:
        InputError: naming the line: not readable, another digest, not a snapshot, cut short.

    """
    hasher = hashlib.sha256()
    with open_regular(path) as stream:
        try:
            while chunk := stream.read(1 << 20):
                hasher.update(chunk)
            found = f"sha256:{hasher.hexdigest()}"
            if found != sha256:
                raise InputError(
                    f"is not the file that the manifest names: it has {found}, the manifest says {sha256}",
                    where=str(path),
                    hint="capture again, or restore the file",
                )
            stream.seek(0)
            lines = enumerate(iter(lambda: stream.readline(_MAX_LINE), b""), 1)
            return _read(lines, str(path))
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None


def entry_of(value: Any, where: str) -> SnapshotEntry:
    """Return one entry from its JSON.

    Raises:
        InputError: it has another shape.

    """
    fields = _object(value, {"id", "input", "renders"}, where)
    name, digest, renders = fields["id"], fields["input"], fields["renders"]
    if not (isinstance(name, str) and isinstance(digest, str) and isinstance(renders, list)):
        raise InputError("not an entry of a token snapshot", where=where)
    if len(renders) not in (1, 2):
        raise InputError(f"an entry has one or two renderings, not {len(renders)}", where=where)
    return SnapshotEntry(name, digest, tuple(_rendered(render, where) for render in renders))


def _documents(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    yield {
        "schema": SCHEMA,
        "corpus": {"id": snapshot.corpus, "digest": snapshot.corpus_digest},
        "conversations": len(snapshot.entries),
        "renderer": dict(snapshot.renderer),
        "jinja2": snapshot.jinja2,
        "options": dict(snapshot.options),
        "unapplied": list(snapshot.unapplied),
        "template": snapshot.template,
        "tokenizer": snapshot.tokenizer,
    }
    for entry in snapshot.entries:
        yield {
            "id": entry.id,
            "input": entry.input,
            "renders": [
                {"state": "ok", "text": render.text, "ids": render.ids.tolist()}
                if render.error is None
                else {
                    "state": "render-error",
                    "error": {"class": render.error[0], "message": render.error[1]},
                }
                for render in entry.renders
            ],
        }


def _read(lines: Iterator[tuple[int, bytes]], source: str) -> Snapshot:
    header = _header(_json(next(lines, (1, b""))[1], f"{source}:1"), f"{source}:1")
    entries: dict[str, SnapshotEntry] = {}
    for number, line in lines:
        where = f"{source}:{number}"
        entry = entry_of(_json(line, where), where)
        if entry.id in entries:
            raise InputError(f"the conversation {entry.id!r} stands twice", where=where)
        entries[entry.id] = entry
    if len(entries) != header["conversations"]:
        raise InputError(
            f"holds {len(entries)} conversations, its first line says {header['conversations']}", where=source
        )
    return Snapshot(
        corpus=header["corpus"]["id"],
        corpus_digest=header["corpus"]["digest"],
        renderer=header["renderer"],
        jinja2=header["jinja2"],
        options=header["options"],
        unapplied=tuple(header["unapplied"]),
        template=header["template"],
        tokenizer=header["tokenizer"],
        entries=tuple(entries.values()),
    )


def _header(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise InputError(f"not a token snapshot (its first line has no schema {SCHEMA!r})", where=where)
    header = _object(
        value,
        {
            "schema",
            "corpus",
            "conversations",
            "renderer",
            "jinja2",
            "options",
            "unapplied",
            "template",
            "tokenizer",
        },
        where,
    )
    corpus = _object(header["corpus"], {"id", "digest"}, where)
    strings = [corpus["id"], corpus["digest"], header["jinja2"]]
    strings += [header[name] for name in ("template", "tokenizer") if header[name] is not None]
    if isinstance(header["renderer"], dict):
        strings.extend(header["renderer"].values())
    if isinstance(header["unapplied"], list):
        strings.extend(header["unapplied"])
    kinds = {"conversations": int, "renderer": dict, "options": dict, "unapplied": list}
    if not all(isinstance(text, str) for text in strings) or not all(
        isinstance(header[name], kind) for name, kind in kinds.items()
    ):
        raise InputError("a field of the snapshot's first line has the wrong type", where=where)
    return header


def _rendered(value: Any, where: str) -> Rendered:
    if not isinstance(value, dict) or value.get("state") not in _STATES:
        raise InputError("a rendering has no state", where=where)
    if value["state"] == "ok":
        fields = _object(value, {"state", "text", "ids"}, where)
        if not isinstance(fields["text"], str) or not isinstance(fields["ids"], list):
            raise InputError("a rendering's text or ids have the wrong type", where=where)
        try:
            return Rendered(fields["text"], array("I", fields["ids"]))
        except (TypeError, OverflowError):
            raise InputError("a token id is not a number between 0 and 2**32", where=where) from None
    error = _object(value, {"state", "error"}, where)["error"]
    fields = _object(error, {"class", "message"}, where)
    if not (isinstance(fields["class"], str) and isinstance(fields["message"], str)):
        raise InputError("a rendering's error has the wrong type", where=where)
    return Rendered(None, array("I"), (fields["class"], fields["message"]))


def _object(value: Any, keys: set[str], where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise InputError(f"expected an object with {', '.join(sorted(keys))}", where=where)
    return value


def _json(line: bytes, where: str) -> Any:
    if not line.endswith(b"\n"):
        raise InputError("the file ends in the middle of a line", where=where)
    try:
        return parse_json(line.decode("ascii"), where)
    except UnicodeDecodeError:
        raise InputError("not a token snapshot: it holds more than ASCII", where=where) from None
