"""What is rendered: a chat, or the text of a raw completion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder for each call


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
        return _ENCODE(self.input())

    @cached_property
    def input_digest(self) -> str:
        """Sixteen hex digits that are equal where the same thing is rendered."""
        return hashlib.sha256(self.input_text.encode("ascii")).hexdigest()[:16]
