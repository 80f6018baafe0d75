"""Engines on the loopback interface: recorded answers of a real one, and what a test makes up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded")

Answer = tuple[int, Any]


@dataclass
class Engine:
    """The server's answers, and what it saw."""

    answer: Callable[[str, str, Any], Answer]
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    raw: Callable[[Any], None] | None = None  # writes the answer itself
    close: bool = False  # hang up after every answer
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        self.engine.requests.append((self.command, self.path, body))
        self.engine.headers.append(dict(self.headers))
        self.engine.connections.add(self.client_address)
        if self.engine.raw is not None:
            self.engine.raw(self)
            return
        status, data = self.engine.answer(self.command, self.path, body)
        kind, sent = "application/json", json.dumps(data).encode() if not isinstance(data, (bytes, str)) else b""
        if isinstance(data, bytes):
            kind, sent = "text/html", data
        elif isinstance(data, str):
            kind, sent = "text/plain; version=0.0.4; charset=utf-8", data.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)
        if self.engine.close:
            self.close_connection = True

    do_GET = do_POST = _do  # noqa: N815 - the names are http.server's


@contextmanager
def serving(engine: Engine) -> Iterator[Engine]:
    """Serve on a free port of the loopback interface."""
    handler = type("Handler", (_Handler,), {"engine": engine})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    engine.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()


def recorded(name: str) -> tuple[dict[str, Any], Callable[[str, str, Any], Answer]]:
    """Return a recording and a function that answers what was recorded, and nothing else."""
    data: dict[str, Any] = json.loads((RECORDED / name).read_text(encoding="utf-8"))
    known = {
        (one["method"], one["path"], json.dumps(one["body"])): (one["status"], one["answer"])
        for one in data["exchanges"]
    }
    return data, lambda method, path, body: known.get(
        (method, path, json.dumps(body)), (418, {"error": "not recorded"})
    )


def described(path: str, *fields: str) -> dict[str, Any]:
    """Return as much of an openapi.json as says which fields a request has."""
    schema: dict[str, Any] = {"properties": {name: {} for name in fields}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Request"}}}}
    return {"paths": {path: {"post": {"requestBody": body}}}, "components": {"schemas": {"Request": schema}}}


def sglang(
    *fields: str, version: str = "0.5.23", old_names: bool = False, ids: Callable[[Any], list[int]] = lambda _: [1, 2]
) -> Callable[[str, str, Any], Answer]:
    """Answer as SGLang does (sglang/srt/entrypoints/http_server.py, 0.5.23); no recording: it does not run here."""
    prefix = "/get_" if old_names else "/"

    def answer(method: str, path: str, body: Any) -> Answer:
        if path == f"{prefix}model_info":
            return 200, {"model_path": "/models/support", "tokenizer_path": "/models/support"}
        if path == f"{prefix}server_info":
            return 200, {"version": version, "api_key": "sk-internal", "internal_states": []}
        if path == "/openapi.json":
            return 200, described("/v1/tokenize", *fields)
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "support", "root": "support"}]}
        if path == "/v1/tokenize" and method == "POST":
            found = ids(body)
            return 200, {"tokens": found, "count": len(found), "max_model_len": 4096}
        return 404, {"detail": "Not Found"}

    return answer


def vllm(
    *fields: str,
    ids: list[int] | None = None,
    answers: Callable[[Any], Answer] | None = None,
    describes: bool = True,
    version: str = "0.8.0",
) -> Callable[[str, str, Any], Answer]:
    """Answer as vLLM does, with a description that names these fields of a chat, and always the same."""

    def answer(method: str, path: str, body: Any) -> Answer:
        if path == "/version":
            return 200, {"version": version}
        if path == "/openapi.json" and describes:
            return 200, described("/tokenize", *fields)
        if path == "/v1/models":
            lora = {"id": "billing", "parent": "support"}
            return 200, {"data": [lora, {"id": "support", "parent": None}]}
        if path == "/tokenize" and method == "POST":
            return (200, {"tokens": ids or [1]}) if answers is None else answers(body)
        return 404, {"detail": "Not Found"}

    return answer


def metrics(started: float, caches: int = 1) -> str:
    """Say when a process started and how many caches it has, as vLLM's ``/metrics`` does (0.32.0)."""
    told = "".join(f'vllm:cache_config_info{{block_size="16",engine="{number}"}} 1.0\n' for number in range(caches))
    return f"process_start_time_seconds {started}\n{told}"


def dribbling(handler: Any) -> None:
    """Send a byte now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(600):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
