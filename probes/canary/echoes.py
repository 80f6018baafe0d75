"""Answers against the references of their tenants: whose reference does each hold?"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

from kvgate.probes.canary.markers import BEGINNING, FIELD, REFERENCE, Marker
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

Echo = Literal["own", "foreign", "unknown", "malformed", "missing", "unreadable"]
MAX_LINE = 4 << 20
NAMED = 100
"""Leaks that are named; all are counted."""

_IN_FIELD = re.compile(rf'\\?"{FIELD}\\?"\s*:\s*(?:\\?"([^"\\]{{0,200}})|(null|[^\s",}}]{{1,200}}))')
_LONGEST_ID = 200


@dataclass(frozen=True)
class Leak:
    """One answer that holds another tenant's reference.

    Attributes:
        line: its line.
        request: its name; ``line N`` where it has none.
        expected: the tenant that asked.
        seen: the tenant whose reference it holds.

    """

    line: int
    request: str
    expected: str
    seen: str


@dataclass
class Echoes:
    """What a stream of answers held.

    Attributes:
        counts: answers by what they hold: ``own``: their tenant's reference; ``foreign``: another tenant's, wherever
            it stands; ``unknown``: one that is of no tenant in the file; ``malformed``: something else in the field,
            or the right one beside it; ``missing``: neither; ``unreadable``: a line that is no answer of a known
            tenant.
        leaks: the first foreign ones.
        first: the first line of each other kind.
        tenants: how many tenants answered with their own.

    """

    counts: Counter[str] = field(default_factory=Counter)
    leaks: list[Leak] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    tenants: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """How many lines there were."""
        return sum(self.counts.values())


def check_echoes(stream: BinaryIO, markers: Mapping[str, Marker], progress: Progress = silent) -> Echoes:
    """Read answers, one JSON object a line, and keep none of them.

    A line has ``tenant``, and ``response``: a text, or an answer of an API. ``request`` or ``custom_id`` names it. A
    line of a batch's output (``response.body``) does as well, with ``tenant`` beside it.

    Raises:
        InputError: there is no line at all.

    """
    owners = Owners(markers)
    found = Echoes()
    for number, line in _lines(stream):
        if number % 1000 == 0:
            progress("reading answers", number, None, "answers")
        if not line.strip():
            continue
        kind = _take(line, number, markers, owners, found)
        found.counts[kind] += 1
        found.first.setdefault(kind, number)
    if not found.total:
        raise InputError("holds no answer", where="RESPONSES", hint="one JSON object a line: tenant, response")
    return found


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield lines; of one that is too long its beginning, which is then no JSON."""
    number = 0
    while line := stream.readline(MAX_LINE):
        number += 1
        yield number, line
        while not line.endswith(b"\n") and (line := stream.readline(MAX_LINE)):
            pass


class Owners:
    """Whose a reference is, also where an answer was cut off in the middle of it."""

    def __init__(self, markers: Mapping[str, Marker]) -> None:
        self._tenants = {marker.reference: marker.tenant for marker in markers.values()}
        self._sorted = sorted(self._tenants)

    def of(self, reference: str) -> str | None:
        """Return the tenant of a reference or of its beginning; ``None``: nobody's in the file."""
        place = bisect_left(self._sorted, reference)
        if place < len(self._sorted) and self._sorted[place].startswith(reference):
            return self._tenants[self._sorted[place]]
        return None


def _take(line: bytes, number: int, markers: Mapping[str, Marker], owners: Owners, found: Echoes) -> Echo:
    try:
        data = parse_json(line.decode("utf-8"), f"line {number}")
        tenant = data["tenant"]
        own = markers[tenant].reference
        response = data["response"]
        if not isinstance(response, (str, dict, list)):
            return "unreadable"
        whole = response if isinstance(response, str) else json.dumps(response)
    except (InputError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return "unreadable"
    lower = whole.lower()  # wherever it stands, and a model may write a reference as it likes
    begun = {reference for reference in BEGINNING.findall(lower) if not own.startswith(reference)}
    foreign = sorted({name for name in map(owners.of, begun) if name is not None})
    if foreign:
        if len(found.leaks) < NAMED:
            name = data.get("request", data.get("custom_id"))
            shown = str(name)[:_LONGEST_ID] if isinstance(name, (str, int)) else f"line {number}"
            found.leaks.append(Leak(number, shown, tenant, foreign[0]))
        return "foreign"
    if any(map(REFERENCE.fullmatch, begun)):
        return "unknown"
    echoed = _in_field("\n".join([*_texts(response), whole]))
    if echoed == own:
        found.tenants.add(tenant)
        return "own"
    return "missing" if echoed is None and own not in whole else "malformed"


def _in_field(text: str) -> str | None:
    """Return what stands in the field; ``None``: there is none."""
    match = _IN_FIELD.search(text)
    return None if match is None else (match[1] if match[1] is not None else match[2])


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of an answer as they were written: within JSON a field's name and value stand in escapes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
