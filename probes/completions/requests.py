"""Requests that are sent to a server, as lines of a file: bodies of an API, or lines of a batch file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvgate.corpora.files import open_regular, reason
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

Api = Literal["/v1/completions", "/v1/chat/completions", "/v1/messages"]
APIS: tuple[Api, ...] = ("/v1/completions", "/v1/chat/completions", "/v1/messages")

MOST_REQUESTS = 10_000
_MAX_LINE = 16 << 20
_DEEPEST = 100  # levels of a body; it is walked through by functions that call themselves
_MAX_BYTES = 256 << 20  # of all lines: they are kept


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        line: its line in the file, from 1.
        id: what the file calls it; ``line N`` where it calls it nothing.
        api: the path that it is for.
        body: as it is sent, but for what a probe changes in it.
        expect: a text that a right answer contains; ``None`` where the file does not say.

    """

    line: int
    id: str
    api: Api
    body: Mapping[str, Any]
    expect: str | None = None


def read_requests(path: Path) -> tuple[Request, ...]:
    """Read a JSONL file of requests.

    A line is a body (``prompt``: a completion; ``messages``: a chat, or Anthropic's messages where a ``cache_control``
    stands in it), or a line of a batch file (``custom_id``, ``url``, ``body``). ``expect`` may stand beside either.

    Raises:
        InputError: naming file and line: not readable, not JSON, neither form, an id twice, too many, none.

    """
    found: list[Request] = []
    seen: set[str] = set()
    size = number = 0
    with open_regular(path) as stream:
        try:
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE + 1), b""), 1):
                where = f"{path}:{number}"
                size += len(line)
                if len(line) > _MAX_LINE or size > _MAX_BYTES:
                    most = _MAX_LINE if len(line) > _MAX_LINE else _MAX_BYTES
                    raise InputError(f"more than the {most:,} bytes allowed", where=where)
                if line.isspace():
                    continue
                if len(found) == MOST_REQUESTS:
                    raise InputError(f"more than {MOST_REQUESTS:,} requests", where=where, hint="send a sample of them")
                request = _request(_parsed(line, where), number, where)
                if request.id in seen:
                    raise InputError(f"the id {request.id!r} stands twice", where=where)
                seen.add(request.id)
                found.append(request)
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=f"{path}:{number + 1}") from None
    if not found:
        raise InputError("holds no request", where=str(path), hint="one JSON object a line")
    return tuple(found)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        data = parse_json(line.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", where=where) from None
    if not isinstance(data, dict):
        raise InputError("not a JSON object", where=where)
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        level = [item for value in level if isinstance(value, (dict, list)) for item in _inside(value)]
        if not level:
            return data
    raise InputError("nested too deeply", where=where)


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _request(data: dict[str, Any], line: int, where: str) -> Request:
    expect = data.pop("expect", None)
    name = data.pop("custom_id", None)
    if not isinstance(expect, (str, type(None))) or not isinstance(name, (str, type(None))):
        raise InputError("custom_id and expect are texts", where=where)
    batch = isinstance(data.get("body"), dict)
    body = data["body"] if batch else data
    api = data.get("url") if batch else _api_of(body)
    if api not in APIS:
        raise InputError(
            "is no request",
            where=where,
            hint=f"a body with prompt or messages, or a line of a batch file whose url is one of {', '.join(APIS)}",
        )
    if ("prompt" if api == "/v1/completions" else "messages") not in body:
        raise InputError(f"a request for {api} without what it asks", where=where)
    if isinstance(body.get("prompt"), list) and not all(type(each) is int for each in body["prompt"]):
        raise InputError("several prompts in one request", where=where, hint="one line each")
    return Request(line, name or f"line {line}", api, body, expect or None)


def _api_of(body: Mapping[str, Any]) -> Api | None:
    if "prompt" in body:
        return "/v1/completions"
    if "messages" in body:
        return "/v1/messages" if marks_breakpoints(body) else "/v1/chat/completions"
    return None


def marks_breakpoints(value: Any) -> bool:
    """Whether a ``cache_control`` stands anywhere in a body: where a hosted API is told to cache up to."""
    if isinstance(value, dict):
        return "cache_control" in value or any(map(marks_breakpoints, value.values()))
    return isinstance(value, list) and any(map(marks_breakpoints, value))
