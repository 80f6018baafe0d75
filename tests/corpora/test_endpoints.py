"""Asking running servers: a recording of a real vLLM, SGLang as its source says, and servers that misbehave."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.corpora.endpoints.asking import NOT_ASKED, snapshot_endpoint
from kvgate.corpora.endpoints.client import Client
from kvgate.corpora.snapshots.snapshot import SnapshotEntry, SnapshotFile
from kvgate.rules.errors import InputError, UsageError

from .engine_server import RECORDED, Answer, Engine, dribbling, recorded, serving, sglang, vllm

Serve = Callable[..., Engine]
ALL = ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda answer, **how: stack.enter_context(serving(Engine(answer, **how)))


@pytest.fixture
def corpus() -> Corpus:
    return load_corpus(RECORDED / "conversations.jsonl")


def _ask(engine: Engine, corpus: Corpus, folder: Path, **how: Any) -> SnapshotFile:
    with Client(engine.url) as client:
        return snapshot_endpoint(client, corpus, folder / "tokens.jsonl", **how)


def _by_id(snapshot: SnapshotFile) -> dict[str, SnapshotEntry]:
    return {entry.id: entry for entry in snapshot.entries()}


def _chats(engine: Engine) -> dict[str, Any]:
    return {
        body["messages"][0]["content"]: body
        for _, path, body in engine.requests
        if path.endswith("/tokenize") and body.get("messages")
    }


def test_what_a_real_vllm_answered(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    recording, answer = recorded("vllm-0.32.0.json")
    engine = serve(answer)
    snapshot = _ask(engine, corpus, tmp_path)
    header = snapshot.header
    assert header.renderer == {"vllm": "0.32.0"}
    assert (header.made, header.clocks, header.jinja2, header.template, header.tokenizer) == (
        *("endpoint", (), None, None, None),
    )
    assert header.corpus_digest == corpus.digest
    asked = [one for one in recording["exchanges"] if one["path"] == "/tokenize"]
    assert [(body, path) for _, path, body in engine.requests if path == "/tokenize"] == [
        (one["body"], one["path"]) for one in asked
    ]
    entries = _by_id(snapshot)
    assert list(entries) == [one.id for one in corpus.conversations()]
    assert [entry.input for entry in entries.values()] == [one.input_digest for one in corpus.conversations()]
    ids = [entry.renders[0].ids.tolist() for entry in entries.values() if entry.renders[0].ok]
    assert ids == [one["answer"]["tokens"] for one in asked if one["status"] == 200]
    assert {name: entry.renders[0].error for name, entry in entries.items() if not entry.renders[0].ok} == {
        "documents": (NOT_ASKED, "the server does not read documents"),
        "empty": (
            "HTTP 400",
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
    }
    assert entries["completion"].renders[0].text == "The tide is"
    assert entries["chat"].renders[0].text is None
    pieces = snapshot.footer.pieces
    spoken = [pieces[number] for number in entries["chat"].renders[0].ids]
    assert spoken[:2] == ["<|begin|>", "<|role|>"]
    assert len(engine.connections) == 1, "the connection is kept"


def test_what_is_sent_to_sglang(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    engine = serve(sglang(*ALL))
    snapshot = _ask(engine, corpus, tmp_path, options={"template_kwargs": {"mood": "calm"}})
    assert snapshot.header.renderer == {"sglang": "0.5.23"}
    assert snapshot.header.options["template_kwargs"] == {"mood": "calm"}
    assert snapshot.footer.pieces == {}
    chats = _chats(engine)
    calm = {"chat_template_kwargs": {"mood": "calm"}}
    question = {"role": "user", "content": "What is a tide?"}
    assert chats["What is a tide?"] == {"model": "support", "messages": [question], **calm}
    assert chats["Name a prime."]["add_generation_prompt"] is False
    assert "add_generation_prompt" not in chats["Count."]
    assert chats["Count."]["continue_final_message"] is True
    assert chats["Quickly."]["chat_template_kwargs"] == {"mood": "calm", "enable_thinking": False}
    call = chats["Look."]["messages"][1]["tool_calls"][0]["function"]
    assert call["arguments"] == '{"z": true, "a": null}', "the API has text here, in the order of the keys"
    completions = [body for _, path, body in engine.requests if path == "/v1/tokenize" and "prompt" in body]
    assert completions == [{"model": "support", "prompt": "The tide is", "add_special_tokens": True}]


def test_an_older_sglang_by_its_older_names(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    assert _ask(serve(sglang(*ALL, version="0.4.6", old_names=True)), corpus, tmp_path).header.renderer == {
        "sglang": "0.4.6"
    }
    with pytest.raises(InputError, match=r"tokenized no chat.*does not read messages.*sglang 0\.5\.23 may take no"):
        _ask(serve(sglang("model", "prompt")), corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.jsonl"]


def test_a_field_that_a_server_would_ignore_is_not_asked_for(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    """A server takes unknown fields without a word: its ids would be those of another conversation."""
    engine = serve(vllm("messages", "add_generation_prompt", "continue_final_message"))
    entries = _by_id(_ask(engine, corpus, tmp_path))
    errors = {name: entry.renders[0].error for name, entry in entries.items() if entry.renders[0].error}
    assert errors == {
        "tools": (NOT_ASKED, "the server does not read tools"),
        "variable": (NOT_ASKED, "the server does not read chat_template_kwargs"),
        "documents": (NOT_ASKED, "the server does not read documents"),
    }
    assert {body.get("model") for body in _chats(engine).values()} == {"support"}, "not the adapter, which is first"


def test_a_server_without_a_description_is_asked_for_little(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    entries = _by_id(_ask(serve(vllm(describes=False)), corpus, tmp_path))
    assert {name for name, entry in entries.items() if entry.renders[0].ok} == {"chat", "closed", "empty", "completion"}
    assert entries["tools"].renders[0].error == (
        NOT_ASKED,
        "the server does not say (openapi.json) that it reads tools",
    )


def test_redacted(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    _, answer = recorded("vllm-0.32.0.json")
    snapshot = _ask(serve(answer), corpus, tmp_path, redact=True)
    assert snapshot.header.redacted
    text = snapshot.path.read_text()
    assert "The tide is" not in text
    assert "empty conversation" not in text
    assert snapshot.footer.pieces == {}


def test_the_key_is_sent_and_never_shown(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    engine = serve(vllm(*ALL))
    with Client(f"{engine.url}/v1/", "sk-secret") as client:
        snapshot = snapshot_endpoint(client, corpus, tmp_path / "tokens.jsonl")
    assert {headers.get("Authorization") for headers in engine.headers} == {"Bearer sk-secret"}
    assert "sk-" not in snapshot.path.read_text()
    refusing = serve(lambda *_: (401, {"error": "no"}))
    with Client(refusing.url, "sk-secret") as client, pytest.raises(InputError, match="HTTP 401") as caught:
        snapshot_endpoint(client, corpus, tmp_path / "none.jsonl")
    assert "sk-" not in str(caught.value)
    assert "--api-key-env" in str(caught.value)


def test_a_redirect_is_not_followed(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    other = serve(vllm(*ALL))

    def redirect(handler: Any) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"{other.url}{handler.path}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    engine = serve(vllm(*ALL), raw=redirect)
    with Client(engine.url, "sk-secret") as client, pytest.raises(InputError, match="neither vLLM nor SGLang"):
        snapshot_endpoint(client, corpus, tmp_path / "none.jsonl")
    assert other.requests == []


def test_a_connection_that_the_server_closed_is_opened_again(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    engine = serve(vllm(*ALL), close=True)
    assert _ask(engine, corpus, tmp_path).footer.conversations == corpus.count
    assert len(engine.connections) > 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"tokens": "12"}), "what are no token ids"),
        ((200, {"tokens": [1, "2"]}), "what are no token ids"),
        ((200, {"tokens": [-1]}), "what are no token ids"),
        ((200, {"tokens": [2**32]}), "what are no token ids"),
        ((200, {"tokens": [1.5]}), "what are no token ids"),
        ((200, [1]), "what are no token ids"),
        ((429, {"error": "busy"}), "cannot answer now"),
        ((503, b"<html>"), "cannot answer now"),
        ((404, {"error": {"message": "The model `x` does not exist."}}), "about the first: HTTP 404: The model `x`"),
        ((501, b"<html>"), "about the first: HTTP 501"),
        ((422, {"detail": [{"msg": "Field required"}]}), "HTTP 422: Field required"),
        ((200, b"\xff"), "about the first: HTTP 200"),
    ],
)
def test_answers_that_cannot_be_used(serve: Serve, corpus: Corpus, tmp_path: Path, answer: Answer, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        _ask(serve(vllm(*ALL, answers=lambda _: answer)), corpus, tmp_path)
    assert "/tokenize" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def _raw(data: bytes) -> Callable[[Any], None]:
    def write(handler: Any) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    return write


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (_raw(b""), "cannot be reached"),
        (_raw(b"garbage\r\n\r\n"), "cannot be reached"),
        (_raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"), "hung up"),
        (_raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{"), "not valid JSON"),
        (_raw(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n"\xff"'), "not UTF-8"),
        (_raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n"), "cannot be reached"),
    ],
)
def test_servers_that_speak_no_http(
    serve: Serve, corpus: Corpus, tmp_path: Path, raw: Callable[[Any], None], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        _ask(serve(vllm(), raw=raw), corpus, tmp_path)


def test_a_server_that_sends_for_ever(serve: Serve) -> None:
    engine = serve(vllm(), raw=dribbling)
    with Client(engine.url, seconds=0.5) as client, pytest.raises(InputError, match=r"did not answer within 0\.5 s"):
        client.get("/version")


def test_a_server_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with Client(url, seconds=0.3) as client, pytest.raises(InputError, match=r"did not answer within 0\.3 s"):
            client.get("/version")


def test_an_answer_without_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgate.corpora.endpoints.client.MOST", 1000)
    engine = serve(lambda *_: (200, {"version": "x" * 2000}))
    with Client(engine.url) as client, pytest.raises(InputError, match="more than 1,000 bytes"):
        client.get("/version")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(InputError, match="Connection refused"):
        client.get("/version")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8000", "not a URL"),
        ("ftp://host", "not a URL"),
        ("http://", "not a URL"),
        ("http://host:port", "not a URL"),
        ("http://user:secret@host", "credentials"),
        ("http://host?key=secret", "more than a place"),
    ],
)
def test_urls_that_are_refused(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_a_server_does_not_leave_tool_arguments_as_they_are(serve: Serve, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="as it does"):
        _ask(serve(vllm(*ALL)), corpus, tmp_path, options={"parse_tool_arguments": False})


def test_the_recording_is_of_a_real_engine() -> None:
    recording = json.loads((RECORDED / "vllm-0.32.0.json").read_text(encoding="utf-8"))
    assert recording["checked"] == "2026-11-29"
    assert "/work/" not in json.dumps(recording)
    assert "/tmp/" not in json.dumps(recording)
