"""Renders templates with transformers' own function, with and without a recorder. No tokenizer is needed for text."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from transformers.utils import chat_template_utils

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.installed import recording
from kvgate.corpora.coverage.recording import Recorder
from kvgate.corpora.coverage.tree import Node, walk

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def render(text: str, conversation: Conversation) -> str | tuple[str, str]:
    """Return the rendered text, or class and message of the error that a request would get."""
    try:
        messages = chat_template_utils._normalize_chat_messages(list(conversation.messages or ()))
        rendered, _ = chat_template_utils.render_jinja_template(
            [messages],
            tools=None if conversation.tools is None else list(conversation.tools),
            documents=None if conversation.documents is None else list(conversation.documents),
            chat_template=text,
            continue_final_message=conversation.continue_final_message,
            add_generation_prompt=conversation.add_generation_prompt is not False
            and not conversation.continue_final_message,
            **SPECIAL,
            **conversation.template_kwargs,
        )
    except Exception as error:
        return type(error).__name__, str(error)
    assert isinstance(rendered[0], str)
    return rendered[0]


def render_all(
    text: str, conversations: Iterable[Conversation], *, recorded: bool = True
) -> tuple[list[str | tuple[str, str]], Coverage]:
    """Render conversations, and say what of the template ran (nothing, where it is not recorded)."""
    with recording({"default": text}) if recorded else contextlib.nullcontext() as recorder:
        rendered = [render(text, each) for each in conversations if each.messages is not None]
    return rendered, Coverage({}) if recorder is None else recorder.coverage()


def covered(text: str, *, everything: bool = True) -> Coverage:
    """The coverage of a template of which everything ran, or nothing."""
    found = Recorder({"default": text}).coverage().templates["default"]
    assert found is not None
    ran = numbers(found.tree) if everything else frozenset()
    return Coverage({"default": dataclasses.replace(found, executed=ran)})


def numbers(tree: Node) -> frozenset[int]:
    """The numbers of all branches of a template."""
    return frozenset(number for node in walk(tree) for number in node.arms)


def chat(**fields: Any) -> Conversation:
    """A conversation of one question, or of what is given."""
    messages: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": "hi"},)
    return Conversation("c", **{"messages": messages, **fields})
