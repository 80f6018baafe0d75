"""Conversations to render: the diagnostic ones that kvgate ships, or a user's own JSONL."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from kvgate.corpora.files import open_regular, reason
from kvgate.corpora.fingerprint import short_digest
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

DIAGNOSTIC = "diagnostic"

_MAX_LINE = 16 << 20
_REPORTED = 4 << 20  # bytes between two reports of progress

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
        generated: token ids that answers were generated as, by the index of their message; they are not rendered.

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
    generated: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def input(self) -> dict[str, Any]:
        """Return what is rendered, as JSON: everything but id, tags, reason and generated ids."""
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
    def input_text(self) -> str:
        """What is rendered, as JSON text: ASCII, on one line.

        The order of keys stays in: templates print tool definitions in the order they came in.
        """
        return json.dumps(self.input(), separators=(",", ":"))

    @cached_property
    def input_digest(self) -> str:
        """Sixteen hex digits that are equal where the same thing is rendered."""
        return hashlib.sha256(self.input_text.encode("ascii")).hexdigest()[:16]


@dataclass(frozen=True)
class Corpus:
    """Conversations in order, read from their file each time they are asked for.

    Attributes:
        name: ``"diagnostic"``, or the file's name without its ending.
        digest: ``"sha256:..."`` of the file.
        count: how many conversations there are.
        read: gives them from the beginning.

    """

    name: str
    digest: str
    count: int
    read: Callable[[], Iterator[Conversation]]

    @property
    def id(self) -> str:
        """``name@<first 12 hex of the digest>``."""
        return f"{self.name}@{self.digest.removeprefix('sha256:')[:12]}"

    def conversations(self) -> Iterator[Conversation]:
        """Yield the conversations in order, one line at a time.

        Raises:
            InputError: the file is no longer the one that was loaded.

        """
        return self.read()


def load_corpus(source: str | Path, progress: Progress = silent) -> Corpus:
    """Load the diagnostic corpus, or a JSONL file of OpenAI chat or completion requests.

    Every line is read and checked, and none is kept: a file of millions of lines takes the memory of its longest line
    and 8 bytes of each id.

    Args:
        source: ``"diagnostic"``, or a path; one JSON object a line, blank lines allowed.
        progress: told how many bytes have been checked.

    Raises:
        InputError: naming file and line: not readable, not JSON, an unknown field, a wrong type, an id
            that stands twice, no line at all.

    """
    if source == DIAGNOSTIC:
        packaged = resources.files("kvgate.corpora") / "conversations" / "diagnostic.jsonl"
        return _load(DIAGNOSTIC, lambda: io.BytesIO(packaged.read_bytes()), "diagnostic.jsonl", progress)
    path = Path(source)
    return _load(path.stem, lambda: open_regular(path), str(path), progress)


def _load(name: str, opened: Callable[[], BinaryIO], source: str, progress: Progress) -> Corpus:
    hasher = hashlib.sha256()
    seen: set[bytes] = set()
    for conversation, where in _read(opened, source, hasher, progress):
        if (short := short_digest(conversation.id)) in seen:
            raise InputError(f"the id {conversation.id!r} stands twice", where=where)
        seen.add(short)
    if not seen:
        raise InputError("holds no conversation", where=source, hint="one JSON object a line")
    digest = hasher.hexdigest()

    def again() -> Iterator[Conversation]:
        hasher = hashlib.sha256()
        for conversation, _ in _read(opened, source, hasher, silent):
            yield conversation
        if hasher.hexdigest() != digest:
            raise InputError("was changed while it was being read", where=source)

    return Corpus(name, f"sha256:{digest}", len(seen), again)


def _read(
    opened: Callable[[], BinaryIO], source: str, hasher: hashlib._Hash, progress: Progress
) -> Iterator[tuple[Conversation, str]]:
    """Yield each conversation with its file and line; what ``hasher`` is given in the end is the whole file."""
    done = reported = number = 0
    with opened() as stream:
        try:
            total = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE + 1), b""), 1):
                where = f"{source}:{number}"
                hasher.update(line)
                done += len(line)
                if done - reported > _REPORTED:
                    progress("reading the corpus", done, total, "bytes")
                    reported = done
                if len(line) > _MAX_LINE:
                    raise InputError(f"the line is longer than {_MAX_LINE:,} bytes", where=where)
                if not line.isspace():
                    yield _conversation(line, number, where), where
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=f"{source}:{number + 1}") from None


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
