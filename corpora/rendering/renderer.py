"""Renders conversations with transformers' own code. Runs in the bounded child only."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import datetime as real_datetime
from typing import Any

from kvgate.rules.errors import InputError

# Two moments that differ in every part, so that whatever a template prints of the clock shows.
CLOCKS = ("2026-02-03T04:05:06", "2027-11-19T20:21:22")


class Renderer:
    """One tokenizer with the template and options in force; what it raises is what the renderer answers a request with.

    Args:
        tokenizer: as transformers built it.
        override: a template that replaces the tokenizer's.
        options: as :func:`kvgate.corpora.rendering.options.render_options` returns them.
        where: the template's file, for errors.
        text_bytes: characters that one conversation may render to.
        random: whether the template draws random text: it draws the same each time then.

    """

    def __init__(
        self,
        tokenizer: Any,
        override: str | None,
        options: Mapping[str, Any],
        where: str,
        text_bytes: int,
        *,
        random: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._override = override
        self._options = options
        self._where = where
        self._text_bytes = text_bytes
        self._random = random

    def text(self, conversation: Mapping[str, Any]) -> str:
        """Return the text that is encoded for a conversation (as ``Conversation.input()`` gives it).

        Raises:
            InputError: the template reaches for Python's internals, or writes without bounds.
            MemoryError: it needs more memory than it may have.
            Exception: the renderer would answer a request with this error.

        """
        if conversation["prompt"] is not None:
            return str(conversation["prompt"])
        text: str = self._apply(conversation, tokenize=False)
        if len(text) > self._text_bytes:
            raise InputError(
                f"the chat template writes more than {self._text_bytes:,} characters for one conversation",
                where=self._where,
            )
        return text

    def ids(self, conversation: Mapping[str, Any]) -> list[int]:
        """Return the ids that transformers gives for a conversation in one call; raises as :meth:`text`."""
        if conversation["prompt"] is not None:
            return list(
                self._tokenizer(conversation["prompt"], add_special_tokens=self.special_tokens(conversation))[
                    "input_ids"
                ]
            )
        return list(self._apply(conversation, tokenize=True, return_dict=False))

    def special_tokens(self, conversation: Mapping[str, Any]) -> bool:
        """Whether the tokenizer puts its own tokens round the text: never where a template writes them."""
        return conversation["prompt"] is not None and bool(self._options["add_special_tokens"])

    def refused(self, error: Exception) -> tuple[str, str]:
        """Return class and message of an error that is a result.

        Raises:
            InputError: it is an attempt to get out of the sandbox.

        """
        words = " ".join(str(error).split())[:200]
        name = type(error).__name__
        if name == "SecurityError" and "attribute '_" in str(error):
            raise InputError(f"the chat template reaches for Python internals: {words}", where=self._where) from None
        return name, words

    def _apply(self, conversation: Mapping[str, Any], **how: Any) -> Any:
        messages = conversation["messages"]
        if self._options["parse_tool_arguments"]:
            messages = [_with_parsed_arguments(message) for message in messages]
        generate = conversation["add_generation_prompt"]
        open_ended = conversation["continue_final_message"]
        if generate is None:
            generate = self._options["add_generation_prompt"] and not open_ended
        if self._random:
            random.seed(0)
        return self._tokenizer.apply_chat_template(
            messages,
            tools=conversation["tools"],
            documents=conversation["documents"],
            chat_template=self._override,
            add_generation_prompt=generate,
            continue_final_message=open_ended,
            **how,
            **{**self._options["template_kwargs"], **conversation["template_kwargs"]},
        )


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


class Clock:
    """Stops the clock that transformers gives to templates (``strftime_now``), while it is entered."""

    def __init__(self) -> None:
        from transformers.utils import chat_template_utils

        self._library = chat_template_utils
        self._moment = real_datetime.fromisoformat(CLOCKS[0])

    def set(self, clock: str) -> None:
        """Let it be that time from now on."""
        self._moment = real_datetime.fromisoformat(clock)

    def __enter__(self) -> Clock:
        stopped = self

        class Frozen(real_datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Frozen:
                return cls.fromisoformat(stopped._moment.isoformat()).replace(tzinfo=tz)

        self._before = self._library.datetime
        self._library.datetime = Frozen
        return self

    def __exit__(self, *_: object) -> None:
        self._library.datetime = self._before
