"""Strict parsing of the YAML and JSON that people hand in: bounded, no aliases, nothing read two ways.

The scalar rules are YAML 1.2's core schema. A plain scalar that YAML 1.1 tools read differently (``010``,
``1:30``, ``NO``, ``1_000``) is refused with the hint to quote it, because the other program in the
pipeline would see another value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from kvgate.rules.credentials import holds_credential, looks_issued
from kvgate.rules.errors import InputError

MAX_BYTES = 16 * 1024 * 1024  # bulk lives in sidecars; a manifest of a real deployment is under 200 kB
_MAX_DEPTH = 64
_MAX_NODES = 500_000
_MAX_NUMBER = 4000  # characters; Python converts at most 4,300 digits
_QUOTED = 200  # characters

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NUMERIC = re.compile(r"[-+.0-9_:eE]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_FINITE = re.compile(r"[-+]?(\.(inf|Inf|INF|nan|NaN|NAN)|NaN|Infinity)")
_JSON = re.compile(r'\s*(\{\s*["}]|\[)')  # a brace before anything but a quoted key is YAML's own
# What YAML 1.1 resolves to something other than the string it looks like (yaml.org/type, 2005).
_READ_TWO_WAYS = re.compile(
    r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|y|Y|n|N"
    r"|[-+]?0[0-9_]+(\.[0-9_]*)?|[-+]?[0-9]+(_[0-9]+)+(\.[0-9_]*)?|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+"
    r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"
)


def parse_document(data: bytes, source: str) -> tuple[Any, dict[tuple[str, ...], int]]:
    """Parse one YAML or JSON document.

    Args:
        data: the bytes of the document; at most :data:`MAX_BYTES`.
        source: what to call it in errors (a file name, ``-``).

    Returns:
        The plain value (mappings with string keys, lists, strings, integers, floats, booleans, ``None``)
        and the line (from 1) of every mapping key by its path; empty for JSON.

    Raises:
        InputError: too large, not UTF-8, not one well-formed document, duplicate keys, aliases, tags, a
            non-finite number, a scalar that YAML 1.1 and 1.2 read differently.

    """
    text = _text(data, source)
    if _JSON.match(text):
        return parse_json(text, source), {}
    with _parsed(text, source, foreign=False) as events:
        return events.document(), events.lines


def parse_foreign_documents(data: bytes, source: str) -> list[tuple[Any, int]]:
    """Parse every document of a YAML or JSON file that was written for another program.

    As :func:`parse_document`, but there may be several documents (or none), and a plain scalar that YAML 1.1 and 1.2
    read differently becomes :class:`TwoWays`: only who reads it can say whether it matters.

    Returns:
        Each document that is not empty, with the line (from 1) where it starts.

    Raises:
        InputError: as :func:`parse_document`, for everything but those scalars.

    """
    text = _text(data, source)
    if _JSON.match(text):
        return [(parse_json(text, source), 1)]
    with _parsed(text, source, foreign=True) as events:
        return list(events.documents())


class TwoWays(str):
    """A plain scalar, as written, that YAML 1.1 and 1.2 read differently (``0755``, ``no``)."""

    __slots__ = ()


def _text(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        raise InputError(
            f"{len(data):,} bytes is more than the {MAX_BYTES:,} allowed",
            where=source,
            hint="tensor maps and token snapshots belong in sidecar files",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=source, hint="is this the right file?") from None
    if "\x00" in text:
        raise InputError("holds a NUL byte", where=source, hint="is this the right file?")
    return text


def parse_json(text: str, source: str, *, non_finite: bool = False) -> Any:
    """Parse JSON, refusing duplicate keys and, unless ``non_finite``, ``NaN`` and ``Infinity``.

    ``non_finite`` is for files that Python libraries wrote (a published ``config.json`` may hold a bare
    ``Infinity``: incident I42).

    Raises:
        InputError: naming ``source`` and the line.

    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                raise InputError(f"the key {_short(key)!r} stands twice in one object", where=source)
            seen[key] = value
        return seen

    def constant(name: str) -> float:
        if not non_finite:
            raise InputError(f"{name} is not a JSON number", where=source)
        return float(name)

    def number(digits: str) -> float:
        if math.isinf(value := float(digits)) and not non_finite:
            raise InputError(f"{_short(digits)} is too large for a number", where=source)
        return value

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", where=f"{source}:{error.lineno}") from None
    except RecursionError:
        raise InputError("nested too deeply", where=source) from None
    except UnicodeEncodeError:
        raise InputError("holds half a surrogate pair, which is no character", where=source) from None
    except ValueError:  # Python's limit, and its advice how to lift it
        raise InputError("holds an integer of more than 4,300 digits", where=source) from None
    return value


@contextmanager
def _parsed(text: str, source: str, *, foreign: bool) -> Iterator[_Events]:
    loader = _Loader(text)
    try:
        yield _Events(loader, source, foreign=foreign)
    except yaml.YAMLError as error:
        line = _line(error)
        where = source if line is None else f"{source}:{line}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        raise InputError(f"not valid YAML: {problem}", where=where) from None
    finally:
        loader.dispose()


def _line(error: Any) -> int | None:
    for name in ("problem_mark", "context_mark"):
        if (mark := getattr(error, name, None)) is not None:
            return int(mark.line) + 1
    return None


class _Events:
    """Builds plain values from the parser's events, so that nothing is composed before it is checked."""

    def __init__(self, loader: Any, source: str, *, foreign: bool) -> None:
        self._loader = loader
        self._source = source
        self._foreign = foreign
        self._nodes = 0
        self.lines: dict[tuple[str, ...], int] = {}

    def _next(self) -> Any:
        self._nodes += 1
        event = self._loader.get_event()
        if self._nodes > _MAX_NODES:
            raise self._refuse(event, f"more than {_MAX_NODES:,} values")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._refuse(event, "anchors and aliases are not allowed", "write the value out")
        if getattr(event, "tag", None) and not isinstance(event, yaml.DocumentStartEvent):
            raise self._refuse(event, f"the tag {_short(event.tag)!r} is not allowed")
        return event

    @staticmethod
    def _line_of(event: Any) -> int:
        return int(event.start_mark.line) + 1

    def _refuse(self, event: Any, message: str, hint: str | None = None) -> InputError:
        return InputError(message, where=f"{self._source}:{self._line_of(event)}", hint=hint)

    def document(self) -> Any:
        self._next()  # stream start
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            raise InputError("is empty", where=self._source)
        value = self._value(self._next(), ())
        self._next()  # document end
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._refuse(event, "holds a second document", "one manifest a file")
        return value

    def documents(self) -> Iterator[tuple[Any, int]]:
        self._next()  # stream start
        while not isinstance(self._next(), yaml.StreamEndEvent):
            self.lines.clear()
            event = self._next()
            line = self._line_of(event)
            if (value := self._value(event, ())) is not None:
                yield value, line
            self._next()  # document end

    def _value(self, event: Any, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            raise self._refuse(event, "nested too deeply")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := self._next(), yaml.SequenceEndEvent):
                items.append(self._value(event, (*path, str(len(items)))))
            return items
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refuse(event, "a mapping key must be a plain string")
            key, line = event.value, self._line_of(event)
            if event.implicit[0] and (key == "<<" or _READ_TWO_WAYS.fullmatch(key)):
                raise self._refuse(
                    event,
                    f"the key {_dotted((*path, key))} is read differently by different YAML tools",
                    f'quote it: "{key}"',
                )
            if key in mapping:
                first = self.lines.get((*path, key))
                raise self._refuse(event, f"the key {_dotted((*path, key))} stands twice (first in line {first})")
            self.lines[(*path, key)] = line
            mapping[key] = self._value(self._next(), (*path, key))
        return mapping

    def _scalar(self, event: Any, path: tuple[str, ...]) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted or a block: a string, as written
            return text
        if text in _NULL:
            return None
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        if len(text) > _MAX_NUMBER:  # the expressions below take memory in proportion to what they match
            if _NUMERIC.fullmatch(text):
                raise self._refuse(event, f"{_dotted(path)}: a number of {len(text):,} digits")
            return text
        if _NOT_FINITE.fullmatch(text):
            raise self._refuse(event, f"{_dotted(path)}: {text} is not a number kvgate can compare")
        if _READ_TWO_WAYS.fullmatch(text):
            if self._foreign:
                return TwoWays(text)
            raise self._refuse(
                event,
                f"{_dotted(path)}: {_short(text)} is read differently by different YAML tools",
                f'quote it if a string is meant: "{_short(text)}"',
            )
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            if math.isinf(value := float(text)):
                raise self._refuse(
                    event,
                    f"{_dotted(path)}: {_short(text)} is too large for a number",
                    f'quote it if a string is meant: "{_short(text)}"',
                )
            return value
        return text


def _dotted(path: tuple[str, ...]) -> str:
    return _cut(".".join("…" if looks_issued(key) else key for key in path))


def _short(text: str) -> str:
    """Return what an error may quote from a hostile document: no credential, and no more than fits a line."""
    return "…" if looks_issued(text) or holds_credential(text) else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
