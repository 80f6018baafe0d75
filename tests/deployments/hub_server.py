"""A hub on the loopback interface: enough of the API for huggingface_hub's own client."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 10_000  # bytes; the hub keeps larger files in LFS


@dataclass
class Repository:
    """What the server knows of one repository."""

    revisions: Mapping[str, Mapping[str, bytes]]  # by commit
    refs: Mapping[str, str]  # branch or tag to commit
    gated: bool = False
    token: str | None = None  # private: only with this one
    parents: Mapping[str, str] = field(default_factory=dict)  # commit to the one before it


@dataclass
class Hub:
    """The server's state and what it saw."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    cut_after: int | None = None  # send only so many bytes of a large file, then hang up
    sent: int = 0  # bytes of files
    broken: int | None = None  # answer everything with this status
    url: str = ""


def etag(data: bytes) -> str:
    """Return what the hub calls a file: SHA-256 in LFS, else Git's object id."""
    if len(data) > LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sibling(path: str, data: bytes) -> dict[str, object]:
    """Describe a file as the hub does where it is asked for the files' metadata too."""
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    sibling: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": blob}
    if len(data) > LARGE:
        sibling["lfs"] = {"sha256": etag(data), "size": len(data), "pointerSize": 134}
    return sibling


def _history(repository: Repository, commit: str) -> Iterator[dict[str, object]]:
    """Describe a commit and those before it as the hub does."""
    at: str | None = commit
    while at is not None:
        yield {"id": at, "authors": [], "date": "2026-11-01T00:00:00.000Z", "title": "", "message": ""}
        at = repository.parents.get(at)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        self._route()

    def _route(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        hub.tokens.add(token)
        if hub.broken is not None:
            return self._answer(hub.broken)
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|commits)/([^/]+)(?:/.*)?)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = match[1] if match else file[1] if file else ""
        repository = hub.repositories.get(name)
        if repository is None or (repository.token and repository.token != token):
            return self._answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if repository.gated and (file or (match and match[2] == "tree")):
            return self._answer(403, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        revision = (match[3] if match else file[2] if file else None) or "main"
        commit = repository.refs.get(revision, revision)
        files = repository.revisions.get(commit)
        if files is None:
            return self._answer(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        if match and match[2] == "commits":
            return self._json(list(_history(repository, commit)))
        if match:
            return self._api(name, match[2], commit, files)
        assert file is not None
        return self._file(commit, files.get(file[3]))

    def _api(self, name: str, kind: str | None, commit: str, files: Mapping[str, bytes]) -> None:
        entries = []
        for path, data in files.items():
            entry: dict[str, object] = {"type": "file", "oid": etag(data), "size": len(data), "path": path}
            if len(data) > LARGE:
                entry["lfs"] = {"oid": etag(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        if kind == "tree":
            return self._json(entries)
        siblings = [_sibling(path, data) for path, data in files.items()]
        return self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False})

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def _file(self, commit: str, data: bytes | None) -> None:
        if data is None:
            return self._answer(
                404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=commit
            )
        common = {"X_Repo_Commit": commit, "ETag": f'"{etag(data)}"', "Accept_Ranges": "bytes"}
        if len(data) > LARGE:
            common |= {"X_Linked_Etag": f'"{etag(data)}"', "X_Linked_Size": str(len(data))}
        start, end, status = 0, len(data), 200
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, end, status = int(wanted[1]), min(int(wanted[2] or end) + 1, end), 206
            common["Content_Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        self.hub.sent += len(body) if self.command == "GET" else 0
        cut = self.hub.cut_after
        if self.command == "GET" and cut is not None and len(data) > LARGE:
            self._answer(status, body[:cut], Content_Length=str(len(body)), **common)
            self.close_connection = True
            self.connection.close()
            return None
        return self._answer(status, body, Content_Length=str(len(body)), **common)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve ``hub`` on a free loopback port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
