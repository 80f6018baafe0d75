"""HTTP to one server: bounded in time and size, no redirects, and the key in nothing but its own header."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError, UsageError

SECONDS = 60.0
MOST = 64 << 20
"""Bytes of an answer; a million token ids and their strings fit."""

_TIMEOUT = "did not answer within {:g} s"
_GONE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes:
        status: the HTTP status.
        data: the parsed body; ``None`` where it is no JSON.
        text: the body where it is plain text, as metrics are; else ``None``.

    """

    status: int
    data: Any
    text: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a success with JSON."""
        return self.status == http.client.OK and self.data is not None

    def said(self) -> str:
        """Return the server's own words about an error, one line; empty where it has none."""
        found = self.data
        for key in ("error", "detail", "message"):
            if isinstance(found, dict) and key in found:
                found = found[key]
        if isinstance(found, list) and found and isinstance(found[0], dict):  # FastAPI's list of what is wrong
            found = found[0].get("msg")
        return " ".join(found.split())[:200] if isinstance(found, str) else ""


class Client:
    """One server, over a connection that is kept. A context manager.

    Every failure to get an answer is an :class:`InputError` that names the server; an answer with an error status
    is an answer.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        seconds: float = SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take note of the place; nothing is sent yet.

        Args:
            url: ``http://host:port`` or ``https://...``; a path is kept, apart from the ``/v1`` of an OpenAI base URL.
            key: sent as a bearer token; never part of a message.
            seconds: within which each answer must be complete.
            headers: sent with every request; never part of a message.

        Raises:
            UsageError: it is no such URL, or holds credentials.

        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"not a URL: {error}", where="--endpoint") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("not a URL of a server", where="--endpoint", hint="http://HOST:PORT")
        if parts.username is not None or parts.password is not None:
            raise UsageError("the URL holds credentials", where="--endpoint", hint="name a variable: --api-key-env")
        if parts.query or parts.fragment:
            raise UsageError("the URL holds more than a place", where="--endpoint", hint="http://HOST:PORT")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{self._base}"
        self._seconds = seconds
        self._headers = {"Accept": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        self._headers |= headers or {}
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(parts.hostname, port, timeout=seconds, context=ssl.create_default_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, port, timeout=seconds)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection; the next question opens another one, which may lead elsewhere."""
        self._connection.close()

    def get(self, path: str) -> Answer:
        """Ask for ``path``.

        Raises:
            InputError: no answer, or none that can be used: see the class.

        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Answer:
        """Send JSON to ``path``; see :meth:`get`."""
        return self._ask("POST", path, json.dumps(body).encode("ascii"))

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        where = f"{self.url}{path}"
        kept = self._connection.sock is not None
        try:
            status, kind, data = self._exchange(method, path, body, where)
        except _GONE as error:
            # A server may close a kept connection at any time; only then is asking again no second question.
            self._connection.close()
            if not kept:
                raise InputError(f"cannot be reached: {_reason(error)}", where=where) from None
            status, kind, data = self._again(method, path, body, where)
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise InputError(
                f"refuses to answer (HTTP {status})", where=where, hint="name the variable of a key: --api-key-env"
            )
        if kind.endswith("json"):
            return Answer(status, _parsed(data, where))
        return Answer(status, None, data.decode("utf-8", "replace") if kind == "text/plain" else None)

    def _again(self, method: str, path: str, body: bytes | None, where: str) -> tuple[int, str, bytes]:
        try:
            return self._exchange(method, path, body, where)
        except _GONE as error:
            self._connection.close()
            raise InputError(f"cannot be reached: {_reason(error)}", where=where) from None

    def _exchange(self, method: str, path: str, body: bytes | None, where: str) -> tuple[int, str, bytes]:
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        late = threading.Event()
        try:
            if self._connection.sock is None:
                self._connection.connect()
            with _deadline(self._connection.sock, self._seconds, late):
                self._connection.request(method, f"{self._base}{path}", body, headers)
                response = self._connection.getresponse()
                data = response.read(MOST + 1)
        except _GONE:
            if late.is_set():
                raise self._slow(where) from None
            raise
        except TimeoutError:
            raise self._slow(where) from None
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if late.is_set():
                raise self._slow(where) from None
            raise InputError(f"cannot be reached: {_reason(error)}", where=where) from None
        if late.is_set():
            raise self._slow(where)
        if len(data) > MOST:
            self._connection.close()
            raise InputError(f"answers with more than {MOST:,} bytes", where=where)
        if response.length:
            self._connection.close()
            raise InputError("hung up in the middle of an answer", where=where)
        # Without a type of its own an answer is none of either: the library would call it plain text.
        kind = response.headers.get_content_type() if "Content-Type" in response.headers else ""
        return response.status, kind, data

    def _slow(self, where: str) -> InputError:
        self._connection.close()
        return InputError(_TIMEOUT.format(self._seconds), where=where)


@contextlib.contextmanager
def _deadline(connection: Any, seconds: float, late: threading.Event) -> Iterator[None]:
    """Cut a connection off in the end: its own timeout is for each piece, and a server may send piece by piece."""

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _parsed(data: bytes, where: str) -> Any:
    try:
        return parse_json(data.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise InputError("answers with what is not UTF-8", where=where) from None


def _reason(error: BaseException) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split())[:200]
