"""One answer of a server, whichever API it came over."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.probes.completions.usage import Usage, read_usage
from kvgate.rules.errors import InputError

LIKELIEST = 5
"""How many tokens of each step are asked for and compared: the most that OpenAI's completions give."""

_IDS = "token_id:"  # vLLM's return_tokens_as_token_ids
_MOST_TOKENS = 1 << 20
_MOST_NAMES = 1 << 22  # of tokens that are kept, of all answers
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Completion:
    """What was answered.

    Attributes:
        text: the answer's, calls of tools as JSON behind it.
        tokens: a number for each token, the same for the same one: its id, where the server tells it.
        top: of each step the log-probabilities of the likeliest tokens, by that number; empty: not told.
        usage: what was told of the cache.
        configuration: what the server names as the model and configuration that made it; ``None``: neither is told.

    """

    text: str
    tokens: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]
    usage: Usage
    configuration: str | None = None


@dataclass
class Numbers:
    """Numbers for tokens that a server names by their text: below zero, so that none is an id."""

    _known: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int:
        """Return a token's number."""
        digits = name.removeprefix(_IDS)
        if name.startswith(_IDS) and digits.isdecimal() and len(digits) < 16:
            return int(digits)
        if len(self._known) == _MOST_NAMES and name not in self._known:
            raise ValueError
        return self._known.setdefault(name, -1 - len(self._known))


def read_completion(data: Any, numbers: Numbers, where: str) -> Completion:
    """Read an answer of ``/v1/completions``, ``/v1/chat/completions``, ``/v1/messages`` or SGLang's ``/generate``.

    Raises:
        InputError: it is none.

    """
    try:
        text, steps = _read(data, numbers)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise InputError("answers with what is no completion", where=where) from None
    named = [name for name in (data.get("model"), data.get("system_fingerprint")) if isinstance(name, str) and name]
    configuration = " ".join(name[:_LONGEST_NAME] for name in named) or None
    tokens, top = tuple(each for each, _ in steps), tuple(top for _, top in steps)
    return Completion(text, tokens, top, read_usage(data), configuration)


_Steps = Sequence[tuple[int, Mapping[int, float]]]


def _read(data: Any, numbers: Numbers) -> tuple[str, _Steps]:
    if "choices" in data:
        choice = data["choices"][0]
        if "message" in choice:
            return _message(choice["message"]), _chat_steps(choice.get("logprobs"), numbers)
        return _text(choice["text"]), _completion_steps(choice.get("logprobs"), numbers)
    if "meta_info" in data:
        return _text(data["text"]), _generated_steps(data["meta_info"])
    return "".join(_block(block) for block in data["content"]), ()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _message(message: Any) -> str:
    parts = [message.get("reasoning_content") or message.get("reasoning") or "", message.get("content") or ""]
    calls = message.get("tool_calls") or []
    return "".join(map(_text, parts)) + "".join(json.dumps(call["function"], sort_keys=True) for call in calls)


def _block(block: Any) -> str:
    if block.get("type") == "tool_use":
        return json.dumps([block["name"], block["input"]], sort_keys=True)
    return _text(block.get("text", block.get("thinking", "")))


def _chat_steps(given: Any, numbers: Numbers) -> _Steps:
    steps = []
    for one in _bounded((given or {}).get("content") or []):
        listed = one.get("top_logprobs") or [one]
        steps.append(
            (numbers.of(_name(one)), _likeliest((numbers.of(_name(each)), each["logprob"]) for each in listed))
        )
    return steps


def _name(one: Any) -> str:
    """Name a token by its bytes where its text may be that of several."""
    name, spelled = _text(one["token"]), one.get("bytes")
    return name if name.startswith(_IDS) or not isinstance(spelled, list) else f"bytes:{bytes(spelled).hex()}"


def _completion_steps(given: Any, numbers: Numbers) -> _Steps:
    given = given or {}
    tops = given.get("top_logprobs") or [None] * len(given.get("tokens") or [])
    steps = []
    for name, own, top in zip(
        _bounded(given.get("tokens") or []), given.get("token_logprobs") or [], tops, strict=True
    ):
        listed = (top or {_text(name): own}).items()
        steps.append((numbers.of(name), _likeliest((numbers.of(each), logprob) for each, logprob in listed)))
    return steps


def _generated_steps(info: Any) -> _Steps:
    """Read SGLang's: each step a log-probability, an id and perhaps its text, and the same of the likeliest."""
    chosen = _bounded(info.get("output_token_logprobs") or [])
    tops = info.get("output_top_logprobs") or [None] * len(chosen)
    steps = []
    for (own, token, *_), top in zip(chosen, tops, strict=True):
        listed = [(each[1], each[0]) for each in top] if top else [(token, own)]
        steps.append((_id(token), _likeliest((_id(each), logprob) for each, logprob in listed)))
    return steps


def _id(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _bounded(items: Any) -> Any:
    if not isinstance(items, list) or len(items) > _MOST_TOKENS:
        raise TypeError
    return items


def _likeliest(listed: Any) -> Mapping[int, float]:
    found = {}
    for token, logprob in listed:
        if isinstance(logprob, bool) or not math.isfinite(logprob):
            raise TypeError
        found[token] = float(logprob)
    # One that was not among the likeliest may be listed because it was chosen.
    return dict(sorted(found.items(), key=lambda item: -item[1])[:LIKELIEST])
