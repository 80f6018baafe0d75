"""Rendering as the bounded child does and as transformers does, both in this process, so that hundreds are cheap."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.child.position import Position, shared
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.installed import recording
from kvgate.corpora.rendering import pipeline
from kvgate.corpora.rendering.options import render_options
from kvgate.corpora.rendering.renderer import CLOCKS, Renderer
from kvgate.corpora.sweeps.encoder import Encoder

OPTIONS, _ = render_options({})
Result = list[int] | tuple[str, str]
"""Token ids, or class and message of an error."""


def load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def quickly(
    tokenizer: Any, conversations: Mapping[str, Conversation], template: str
) -> tuple[Iterator[tuple[tuple[str, str], Result]], Coverage]:
    """Render and encode as the bounded child does; of each conversation and date, ids or the error."""
    clocks = CLOCKS if "strftime_now" in template else CLOCKS[:1]
    position = Position(shared())
    renderer = Renderer(tokenizer, template, OPTIONS, "template", 1 << 24, random=False)
    encoder = Encoder(tokenizer, direct=True)
    working = pipeline.Pipeline(renderer, encoder, clocks, direct=True, redact=False, position=position)
    feed = [
        {"id": name, "input": "", "conversation": one.input(), "turns": False, "generated": {}}
        for name, one in conversations.items()
        if one.messages is not None
    ]
    lines: list[bytes] = []
    with recording({"default": template}) as recorder:
        working.run([feed], lambda data, _: lines.extend(data.splitlines()), recorder)
    position.close()
    assert recorder is not None
    return _results(lines, clocks), recorder.coverage()


def _results(lines: list[bytes], clocks: tuple[str, ...]) -> Iterator[tuple[tuple[str, str], Result]]:
    for line in lines:
        entry = json.loads(line)
        for render, clock in zip(entry["renders"], clocks, strict=True):
            error = render.get("error")
            yield (entry["id"], clock), render["ids"] if error is None else (error["class"], error["message"])


def directly(
    tokenizer: Any, conversation: Conversation, template: str | None, clock: str, monkeypatch: pytest.MonkeyPatch
) -> Result:
    """Call transformers once: ids, or class and message of the error."""
    from transformers.utils import chat_template_utils

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Stopped:
            return cls.fromisoformat(clock).replace(tzinfo=tz)

    if conversation.prompt is not None:
        found: list[int] = tokenizer(conversation.prompt)["input_ids"]
        return found
    opened = conversation.add_generation_prompt
    arguments: dict[str, Any] = {
        **conversation.template_kwargs,
        "tools": None if conversation.tools is None else list(conversation.tools),
        "documents": None if conversation.documents is None else list(conversation.documents),
        "chat_template": template,
        "continue_final_message": conversation.continue_final_message,
        "add_generation_prompt": not conversation.continue_final_message if opened is None else opened,
    }
    messages = [_as_an_engine_hands_over(message) for message in conversation.messages or ()]
    monkeypatch.setattr(chat_template_utils, "datetime", Stopped)
    try:
        found = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)
    except Exception as error:
        return type(error).__name__, " ".join(str(error).split())[:200]
    return found


def _as_an_engine_hands_over(message: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM parses the arguments of tool calls, and drops an empty list of calls."""
    handed = json.loads(json.dumps(message))
    if handed.get("role") == "assistant" and handed.get("tool_calls") == []:
        del handed["tool_calls"]
    for call in handed.get("tool_calls") or () if handed.get("role") == "assistant" else ():
        if "function" in call and not isinstance(call["function"].get("arguments"), (dict, list)):
            try:
                parsed = json.loads(call["function"].get("arguments"))
            except (TypeError, ValueError):
                parsed = {}
            call["function"]["arguments"] = parsed
    loaded: dict[str, Any] = handed
    return loaded
