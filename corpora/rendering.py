"""Renders and encodes conversations with transformers' own code. Runs in the bounded child only."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from datetime import datetime as real_datetime
from typing import Any

from kvgate.rules.errors import InputError

# Two moments that differ in every part, so that whatever a template prints of the clock shows.
CLOCKS = ("2026-02-03T04:05:06", "2027-11-19T20:21:22")


class Renderer:
    """One tokenizer with the template and options in force."""

    def __init__(
        self, tokenizer: Any, override: str | None, options: Mapping[str, Any], where: str, text_bytes: int
    ) -> None:
        self._tokenizer = tokenizer
        self._override = override
        self._options = options
        self._where = where
        self._text_bytes = text_bytes

    def render(self, conversation: Mapping[str, Any], clock: str) -> dict[str, Any]:
        """Render and encode one conversation as if it were ``clock``.

        Returns:
            ``{"state": "ok", "text": ..., "ids": [...]}``, or ``{"state": "render-error", "error": {"class",
            "message"}}`` where the renderer would answer a request with an error.

        Raises:
            InputError: the template reaches for Python's internals, or writes without bounds.
            MemoryError: it needs more memory than it may have.

        """
        try:
            with _frozen(clock):
                text, ids = (
                    self._complete(conversation["prompt"])
                    if conversation["prompt"] is not None
                    else self._chat(conversation)
                )
        except (MemoryError, InputError):
            raise
        except Exception as error:
            return self._failed(error)
        return {"state": "ok", "text": text, "ids": ids}

    def _complete(self, prompt: str) -> tuple[str, list[int]]:
        ids = self._tokenizer(prompt, add_special_tokens=self._options["add_special_tokens"])["input_ids"]
        return prompt, list(ids)

    def _chat(self, conversation: Mapping[str, Any]) -> tuple[str, list[int]]:
        messages = conversation["messages"]
        if self._options["parse_tool_arguments"]:
            messages = [_with_parsed_arguments(message) for message in messages]
        generate = conversation["add_generation_prompt"]
        arguments: dict[str, Any] = {
            **self._options["template_kwargs"],
            **conversation["template_kwargs"],
            "tools": conversation["tools"],
            "documents": conversation["documents"],
            "chat_template": self._override,
            "continue_final_message": conversation["continue_final_message"],
            "add_generation_prompt": (
                self._options["add_generation_prompt"] and not conversation["continue_final_message"]
                if generate is None
                else generate
            ),
        }
        random.seed(0)
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        if len(text) > self._text_bytes:
            raise InputError(
                f"the chat template writes more than {self._text_bytes:,} characters for one conversation",
                where=self._where,
            )
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        random.seed(0)
        direct = self._tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)
        if list(direct) != ids:
            # Engines do one or the other, and nothing here says which.
            raise TextAndIdsDisagreeError("encoding the rendered text gives other ids than apply_chat_template")
        return text, ids

    def _failed(self, error: Exception) -> dict[str, Any]:
        words = " ".join(str(error).split())[:200]
        name = type(error).__name__
        if name == "SecurityError" and "attribute '_" in str(error):
            raise InputError(f"the chat template reaches for Python internals: {words}", where=self._where) from None
        return {"state": "render-error", "error": {"class": name, "message": words}}


class TextAndIdsDisagreeError(Exception):
    """Rendering to text and encoding it is not what rendering to ids gives."""


def _with_parsed_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn the JSON text that the OpenAI API has for tool arguments into what templates expect.

    What is no JSON becomes an empty object, and an empty list of calls goes. Source: vllm-project/vllm,
    vllm/entrypoints/chat_utils.py, ``_postprocess_messages``, commit 001eadcf295d.
    """
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return message
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = {}
    elif not isinstance(arguments, (dict, list)):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}


@contextlib.contextmanager
def _frozen(clock: str) -> Iterator[None]:
    """Stop the clock that transformers gives to templates (``strftime_now``)."""
    from transformers.utils import chat_template_utils

    moment = real_datetime.fromisoformat(clock)

    class Frozen(real_datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Frozen:
            return cls.fromisoformat(moment.isoformat()).replace(tzinfo=tz)

    before = chat_template_utils.datetime
    chat_template_utils.datetime = Frozen
    try:
        yield
    finally:
        chat_template_utils.datetime = before
