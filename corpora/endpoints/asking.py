"""What a server makes of a corpus: a snapshot of a renderer whose files nobody needs to have."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.endpoints.client import Answer, Client
from kvgate.corpora.endpoints.server import Server, identify
from kvgate.corpora.rendering.options import render_options
from kvgate.corpora.snapshots.snapshot import (
    Rendered,
    SnapshotEntry,
    SnapshotFile,
    SnapshotHeader,
    SnapshotWriter,
    redacted,
)
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.progress import Progress, silent

NOT_ASKED = "NotAsked"
"""The error class of a conversation that needs a field which the server is not known to read."""

_STRINGS = "return_token_strs"
# Statuses that say something of the moment, and nothing of the conversation.
_NOT_NOW = frozenset({408, 429, 502, 503, 504})


def snapshot_endpoint(
    client: Client,
    corpus: Corpus,
    path: Path,
    *,
    options: Mapping[str, Any] | None = None,
    redact: bool = False,
    progress: Progress = silent,
) -> SnapshotFile:
    """Have a running server tokenize a corpus.

    The server renders as it does for requests, with its own template and its own clock. It says no rendered text, and
    nothing of its tokenizer or template; a conversation that it is not known to understand in full is not asked.

    Args:
        client: of the server.
        corpus: what to ask.
        path: where the snapshot goes.
        options: see :func:`kvgate.corpora.rendering.options.render_options`. A server parses tool arguments as it does.
        redact: leave out prompt text.
        progress: called once for each conversation.

    Raises:
        InputError: the server cannot be reached, is no known engine, gives answers that are no token ids, or
            refuses every chat.
        UsageError: an option of the wrong type, or that a server cannot be asked for.

    """
    applied, unapplied = render_options(options or {})
    if not applied["parse_tool_arguments"]:
        raise UsageError("a server parses tool arguments as it does", where="parse_tool_arguments")
    server = identify(client)
    header = SnapshotHeader(
        corpus=corpus.id,
        corpus_digest=corpus.digest,
        renderer={server.engine: server.version},
        jinja2=None,
        made="endpoint",
        options=applied,
        unapplied=unapplied,
        template=None,
        tokenizer=None,
        clocks=(),
        redacted=redact,
    )
    asker = _Asker(client, server, applied)
    with SnapshotWriter(path, header) as writer:
        for number, conversation in enumerate(corpus.conversations(), 1):
            rendered = asker.ask(conversation)
            kept = redacted(rendered) if redact else rendered
            writer.entry(SnapshotEntry(conversation.id, conversation.input_digest, (kept,)))
            progress("asking the server", number, corpus.count, "conversations")
        asker.refuse_if_no_chat_was_taken()
        return writer.finish(None, {} if redact else asker.pieces)


class _Asker:
    def __init__(self, client: Client, server: Server, options: Mapping[str, Any]) -> None:
        self._client = client
        self._server = server
        self._options = options
        self._chats = 0
        self._refusal: str | None = None
        self.pieces: dict[int, str] = {}

    def ask(self, conversation: Conversation) -> Rendered:
        """Ask about one conversation."""
        body = self._completion(conversation.prompt) if conversation.prompt is not None else self._chat(conversation)
        unread = sorted(body.keys() - self._server.chat - {"model"}) if conversation.prompt is None else []
        if unread:
            known = "does not read" if self._server.described else "does not say (openapi.json) that it reads"
            return self._failed(conversation, NOT_ASKED, f"the server {known} {', '.join(unread)}")
        answer = self._client.post(self._server.path, body)
        if answer.status in _NOT_NOW:
            raise InputError(
                f"cannot answer now (HTTP {answer.status})", where=f"{self._client.url}{self._server.path}"
            )
        if not answer.ok:
            return self._failed(conversation, f"HTTP {answer.status}", answer.said())
        self._chats += conversation.prompt is None
        return Rendered(conversation.prompt, self._ids(answer))

    def refuse_if_no_chat_was_taken(self) -> None:
        """Say so where the server tokenized no chat at all: a snapshot of nothing would compare with nothing."""
        if self._refusal is not None and not self._chats:
            raise InputError(
                f"tokenized no chat; about the first: {self._refusal}",
                where=f"{self._client.url}{self._server.path}",
                hint=f"{self._server.engine} {self._server.version} may take no messages",
            )

    def _failed(self, conversation: Conversation, kind: str, message: str) -> Rendered:
        if conversation.prompt is None and self._refusal is None:
            self._refusal = f"{kind}: {message}" if message else kind
        return Rendered(None, array("I"), (kind, message))

    def _completion(self, prompt: str) -> dict[str, Any]:
        return self._addressed({"prompt": prompt, "add_special_tokens": self._options["add_special_tokens"]})

    def _chat(self, conversation: Conversation) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": [_as_request(message) for message in conversation.messages or ()]}
        generate, going_on = conversation.add_generation_prompt, conversation.continue_final_message
        default = self._options["add_generation_prompt"] and not going_on
        # SGLang renders a chat as it does a request's unless this field is there; vLLM has one way for both.
        if self._server.engine == "vllm" or (default if generate is None else generate) != (not going_on):
            body["add_generation_prompt"] = default if generate is None else generate
        if going_on:
            body["continue_final_message"] = True
        for name in ("tools", "documents"):
            if (value := getattr(conversation, name)) is not None:
                body[name] = list(value)
        if kwargs := {**self._options["template_kwargs"], **conversation.template_kwargs}:
            body["chat_template_kwargs"] = kwargs
        return self._addressed(body)

    def _addressed(self, body: dict[str, Any]) -> dict[str, Any]:
        model = {} if self._server.model is None else {"model": self._server.model}
        return {**model, **body, **({_STRINGS: True} if _STRINGS in self._server.chat else {})}

    def _ids(self, answer: Answer) -> array[int]:
        found = answer.data.get("tokens") if isinstance(answer.data, dict) else None
        try:
            if not isinstance(found, list) or any(isinstance(number, bool) for number in found):
                raise TypeError
            ids = array("I", found)
        except (TypeError, OverflowError):
            raise InputError(
                "answers with what are no token ids", where=f"{self._client.url}{self._server.path}"
            ) from None
        pieces = answer.data.get("token_strs")
        if isinstance(pieces, list) and len(pieces) == len(ids):
            self.pieces.update(
                (number, piece) for number, piece in zip(ids, pieces, strict=True) if isinstance(piece, str)
            )
        return ids


def _as_request(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write tool arguments as the API has them, as JSON text: the server parses them before it renders."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_text(call) for call in calls]}


def _with_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or isinstance(function.get("arguments", ""), str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
