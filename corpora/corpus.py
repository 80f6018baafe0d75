"""Conversations to render: the diagnostic ones that kvgate ships, or a user's own JSONL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from kvgate.corpora.files import open_regular, reason
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

DIAGNOSTIC = "diagnostic"

_MAX_LINE = 16 << 20
_MAX_BYTES = 256 << 20

_OURS = {"id", "tags", "why"}
_INPUTS = {
    "messages",
    "prompt",
    "tools",
    "documents",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
}
# Fields of an OpenAI chat or completion request that transformers' renderer has no use for, so that
# production samples can be used as they are. Anything else is a slip of the pen, or alters the prompt.
_INERT = {
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "min_p",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "user",
}
# Parameters of transformers' `apply_chat_template`: as template variables they would steer the call.
_RESERVED = {
    "chat_template",
    "conversation",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
}


@dataclass(frozen=True)
class Conversation:
    """One line of a corpus: a chat, or the text of a raw completion.

    Attributes:
        id: unique in its corpus.
        tags: what it exercises.
        why: the reason it is there; empty for a user's own.
        messages: the chat; ``None`` for a raw completion.
        prompt: the text of a raw completion, which gets the tokenizer's own prefix; ``None`` for a chat.
        tools: tool definitions; ``None`` differs from an empty list (which selects another template).
        documents: documents for retrieval templates.
        template_kwargs: further template variables (``enable_thinking`` ...).
        add_generation_prompt: ``None``: as the renderer's options say.
        continue_final_message: whether the last message is left open.

    """

    id: str
    tags: tuple[str, ...] = ()
    why: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    documents: tuple[Mapping[str, Any], ...] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    def input(self) -> dict[str, Any]:
        """Return what is rendered, as JSON: everything but id, tags and reason."""
        return {
            "messages": None if self.messages is None else list(self.messages),
            "prompt": self.prompt,
            "tools": None if self.tools is None else list(self.tools),
            "documents": None if self.documents is None else list(self.documents),
            "template_kwargs": dict(self.template_kwargs),
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }

    @cached_property
    def input_digest(self) -> str:
        """Sixteen hex digits that are equal where the same thing is rendered.

        The order of keys stays in: templates print tool definitions in the order they came in.
        """
        text = json.dumps(self.input(), separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


@dataclass(frozen=True)
class Corpus:
    """Conversations in order.

    Attributes:
        name: ``"diagnostic"``, or the file's name without its ending.
        digest: ``"sha256:..."`` of the file.
        conversations: the lines.

    """

    name: str
    digest: str
    conversations: tuple[Conversation, ...]

    @property
    def id(self) -> str:
        """``name@<first 12 hex of the digest>``."""
        return f"{self.name}@{self.digest.removeprefix('sha256:')[:12]}"


def load_corpus(source: str | Path) -> Corpus:
    """Load the diagnostic corpus, or a JSONL file of OpenAI chat or completion requests.

    Args:
        source: ``"diagnostic"``, or a path; one JSON object a line, blank lines allowed, 256 MiB in all.

    Raises:
        InputError: naming file and line: not readable, not JSON, an unknown field, a wrong type, an id
            that stands twice, no line at all.

    """
    if source == DIAGNOSTIC:
        packaged = resources.files("kvgate.corpora") / "conversations" / "diagnostic.jsonl"
        lines = iter(packaged.read_bytes().splitlines(keepends=True))
        return _read(DIAGNOSTIC, lines, "diagnostic.jsonl")
    path = Path(source)
    with open_regular(path) as stream:
        return _read(path.stem, iter(lambda: stream.readline(_MAX_LINE + 1), b""), str(path))


def _read(name: str, lines: Iterator[bytes], source: str) -> Corpus:
    hasher = hashlib.sha256()
    conversations: dict[str, Conversation] = {}
    size = 0
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            where = f"{source}:{number}"
            hasher.update(line)
            size += len(line)
            if len(line) > _MAX_LINE:
                raise InputError(f"the line is longer than {_MAX_LINE:,} bytes", where=where)
            if size > _MAX_BYTES:
                raise InputError(f"more than {_MAX_BYTES:,} bytes", where=where, hint="use a sample")
            if line.isspace():
                continue
            conversation = _conversation(line, number, where)
            if conversation.id in conversations:
                raise InputError(f"the id {conversation.id!r} stands twice", where=where)
            conversations[conversation.id] = conversation
    except OSError as error:
        raise InputError(f"cannot be read: {reason(error)}", where=f"{source}:{number + 1}") from None
    if not conversations:
        raise InputError("holds no conversation", where=source, hint="one JSON object a line")
    return Corpus(name, f"sha256:{hasher.hexdigest()}", tuple(conversations.values()))


def _conversation(line: bytes, number: int, where: str) -> Conversation:
    try:
        value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"), where)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start} of the line)", where=where) from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=where, hint="one request a line")
    unknown = sorted(value.keys() - _OURS - _INPUTS - _INERT)
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}", where=where)
    if (value.get("messages") is None) == (value.get("prompt") is None):
        raise InputError("needs either 'messages' or 'prompt'", where=where)
    kwargs = _typed(value, "chat_template_kwargs", dict, where) or {}
    taken = sorted(kwargs.keys() & (_RESERVED | _INPUTS))
    if taken:
        raise InputError(f"chat_template_kwargs: {taken[0]!r} is not a template variable", where=where)
    tags = _typed(value, "tags", list, where) or []
    if not all(isinstance(tag, str) for tag in tags):
        raise InputError("'tags' must be strings", where=where)
    name = _typed(value, "id", str, where)
    return Conversation(
        id=f"line-{number}" if name is None else name,
        tags=tuple(tags),
        why=_typed(value, "why", str, where) or "",
        messages=_objects(value, "messages", where),
        prompt=_typed(value, "prompt", str, where),
        tools=_objects(value, "tools", where),
        documents=_objects(value, "documents", where),
        template_kwargs=kwargs,
        add_generation_prompt=_typed(value, "add_generation_prompt", bool, where),
        continue_final_message=bool(_typed(value, "continue_final_message", bool, where)),
    )


def _typed(value: dict[str, Any], key: str, kind: type, where: str) -> Any:
    found = value.get(key)
    if found is not None and not isinstance(found, kind):
        names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
        raise InputError(f"{key!r} must be {names[kind]}", where=where)
    return found


def _objects(value: dict[str, Any], key: str, where: str) -> tuple[dict[str, Any], ...] | None:
    items = _typed(value, key, list, where)
    if items is None:
        return None
    if not all(isinstance(item, dict) for item in items):
        raise InputError(f"{key!r} must be a list of objects", where=where)
    return tuple(items)
