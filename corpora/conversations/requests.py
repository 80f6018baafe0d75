"""One line of a corpus: an OpenAI chat or completion request as it was sent, and what of it alters the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

_FIELDS = "request_fields.yaml"

_OURS = {"id", "tags", "why"}
_RENDERED = {
    "messages",
    "prompt",
    "tools",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "add_special_tokens",
    "continue_final_message",
}
_GENERATED = "generated_token_ids"
# A line of a batch file: the request and what addresses it.
_ENVELOPE = {"custom_id", "method", "url", "body"}
# Parameters of transformers' `apply_chat_template`: as template variables they would steer the call.
_RESERVED = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
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


def parse_request(line: bytes, number: int, where: str) -> Conversation:
    """Return the conversation that a line holds.

    Args:
        line: the line, UTF-8; the first one may begin with a byte order mark.
        number: its number, from 1; it names a line without an ``id`` or ``custom_id``.
        where: file and line, for errors.

    Raises:
        InputError: not JSON, neither chat nor completion, an unknown field, a field that alters the prompt and is not
            rendered here, or one of the wrong type.

    """
    try:
        value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"), where)
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start} of the line)", where=where) from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=where, hint="one request a line")
    if "body" in value and value.keys() <= _ENVELOPE:
        name = _typed(value, "custom_id", str, where)
        value = _typed(value, "body", dict, where) or {}
    else:
        name = _typed(value, "id", str, where)
    _known(value, where)
    prompt = _prompt(value, where)
    if (value.get("messages") is None) == (prompt is None):
        raise InputError("needs either 'messages' or 'prompt'", where=where)
    tags = _typed(value, "tags", list, where) or []
    if not all(isinstance(tag, str) for tag in tags):
        raise InputError("'tags' must be strings", where=where)
    messages, generated = _messages(value, where)
    return Conversation(
        id=f"line-{number}" if name is None else name,
        tags=tuple(tags),
        why=_typed(value, "why", str, where) or "",
        messages=messages,
        prompt=prompt,
        tools=_objects(value, "tools", where),
        documents=_objects(value, "documents", where),
        template_kwargs=_variables(value, where),
        add_generation_prompt=_typed(value, "add_generation_prompt", bool, where),
        continue_final_message=bool(_typed(value, "continue_final_message", bool, where)),
        generated=generated,
    )


@dataclass(frozen=True)
class _Fields:
    """The fields of a request that are not rendered: their names, and for some the reason to refuse them."""

    inert: frozenset[str]
    refused: Mapping[str, str]


@cache
def _fields() -> _Fields:
    data = resources.files("kvgate.corpora").joinpath("data", _FIELDS).read_bytes()
    document, _ = parse_document(data, _FIELDS)
    return _Fields(frozenset(document["inert"]), document["refused"])


def _known(value: dict[str, Any], where: str) -> None:
    for name in sorted(value.keys() - _OURS - _RENDERED - _fields().inert):
        if name not in _fields().refused:
            raise InputError(
                f"unknown field {name!r}",
                where=where,
                hint="drop it if it does not alter the prompt; template variables go into chat_template_kwargs",
            )
        if value[name] is not None:
            raise InputError(f"{name!r}: {_fields().refused[name]}", where=where)
    # vLLM lets a request say whether BOS is put in front; here the deployment's options do (same source as the fields).
    usual = value.get("messages") is None
    if value.get("add_special_tokens") not in (None, usual):
        raise InputError(
            f"'add_special_tokens' is rendered only as {str(usual).lower()} here, which is the default",
            where=where,
        )


def _prompt(value: dict[str, Any], where: str) -> str | None:
    prompt = value.get("prompt")
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise InputError("'prompt' must be one text", where=where, hint="one prompt a line, and no token ids")
        prompt = prompt[0]
    if not isinstance(prompt, (str, type(None))):
        raise InputError("'prompt' must be a string", where=where)
    return prompt


def _variables(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the template variables of a request.

    ``reasoning_effort`` is one, and decides on ``enable_thinking`` where that is not given, as in vLLM (same source as
    the fields, ``build_chat_params``).
    """
    variables: dict[str, Any] = _typed(value, "chat_template_kwargs", dict, where) or {}
    taken = sorted(variables.keys() & _RESERVED)
    if taken:
        raise InputError(f"chat_template_kwargs: {taken[0]!r} is not a template variable", where=where)
    effort = value.get("reasoning_effort")
    if effort is None:
        return variables
    if not isinstance(effort, (str, float)):
        raise InputError("'reasoning_effort' must be a string", where=where)
    return {"enable_thinking": effort != "none", **variables, "reasoning_effort": effort}


def _messages(
    value: dict[str, Any], where: str
) -> tuple[tuple[dict[str, Any], ...] | None, Mapping[int, tuple[int, ...]]]:
    messages = _objects(value, "messages", where)
    generated = {}
    for index, message in enumerate(messages or ()):
        ids = message.pop(_GENERATED, None)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 1 << 32 for one in ids):
            raise InputError(f"{_GENERATED!r} must be a list of token ids", where=where)
        generated[index] = tuple(ids)
    return messages, generated


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
