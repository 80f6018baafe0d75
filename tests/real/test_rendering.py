"""Token ids are transformers' own, for every real tokenizer and every real chat template at hand.

The other side of each comparison is ``apply_chat_template`` of transformers itself, called for one conversation after
another in this process: templates as transformers compiles them, no batches, no recording of branches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora import pipeline
from kvgate.corpora.conversation import Conversation
from kvgate.corpora.corpus import load_corpus
from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.installed import recording
from kvgate.corpora.options import render_options
from kvgate.corpora.position import Position, shared
from kvgate.corpora.rendering import CLOCKS, Renderer
from kvgate.corpora.sweeps.encoder import Encoder
from tests.real.models import MODELS, Releases, templates

PARTS = 8  # tests that the templates are spread over, so that workers share them
Result = list[int] | tuple[str, str]
OPTIONS, _ = render_options({})
# Of the branches of all templates, the share that the diagnostic corpus runs; the rest cannot be reached through
# transformers and an engine (a loop over an empty list behind a test that it is not, arguments left as JSON text).
SHARE = 0.9


@pytest.fixture(scope="module")
def conversations() -> dict[str, Conversation]:
    return {one.id: one for one in load_corpus("diagnostic").conversations()}


@pytest.fixture(scope="module")
def tokenizer(releases: Releases) -> Any:
    """The smallest of the real ones; what it encodes are texts that templates of others wrote."""
    return load(releases.folder("mistral"))


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_apply_chat_template(
    name: str, releases: Releases, conversations: Mapping[str, Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = releases.folder(name)
    real = load(folder)
    rendered = 0
    for entry in releases.tokens(folder).entries():
        for render, clock in zip(entry.renders, CLOCKS, strict=False):
            expected = directly(real, conversations[entry.id], None, clock, monkeypatch)
            assert (render.error or list(render.ids)) == expected, entry.id
            rendered += render.ok
    assert rendered > 100


@pytest.mark.parametrize("part", range(PARTS))
def test_the_fast_path_renders_every_template_as_transformers_does(
    part: int, tokenizer: Any, conversations: Mapping[str, Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "CHECKED", 0)  # nothing is rendered a second time, so that this test must do it
    ran = branches = 0
    for template, name in list({text: name for name, text in templates().items()}.items())[part::PARTS]:
        found, coverage = quickly(tokenizer, conversations, template)
        for (identity, clock), result in found:
            expected = directly(tokenizer, conversations[identity], template, clock, monkeypatch)
            assert result == expected, f"{name}: {identity}"
        branches += len(coverage.arms)
        ran += len(coverage.arms) - len(coverage.unexecuted)
    assert ran / branches > SHARE


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
        working.run([feed], lambda data, _: lines.extend(data.splitlines()))
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


def load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))
