"""Which engine answers at a URL, and what its tokenize endpoint takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.corpora.endpoints.client import Client
from kvgate.rules.errors import InputError

# Fields of a chat that a server is asked about without its own description of them: what vLLM has taken ever since it
# tokenizes chats (vllm/entrypoints/openai/protocol.py, 0.5.0, TokenizeChatRequest).
_ALWAYS = frozenset({"messages", "add_generation_prompt"})


class NoKnownEngineError(InputError):
    """Something answers, and it is no engine that is known here."""


@dataclass(frozen=True)
class Server:
    """A running engine.

    Attributes:
        engine: ``"vllm"`` or ``"sglang"``.
        version: as it says itself.
        model: the name that requests give; ``None``: it lists none.
        path: of the endpoint that tokenizes.
        chat: fields of a chat that it is known to read.
        described: whether that is from its own description (``/openapi.json``). A field that is not read is ignored
            without a word, so that without a description nothing is asked that needs another.

    """

    engine: str
    version: str
    model: str | None
    path: str
    chat: frozenset[str]
    described: bool


def identify(client: Client) -> Server:
    """Ask a server what it is.

    vLLM: ``/version``, ``/v1/models``, ``/tokenize`` (vllm/entrypoints/serve/tokenize/protocol.py, 0.32.0).
    SGLang: ``/model_info``, ``/server_info`` (``/get_...`` in older releases) and ``/v1/tokenize``
    (sglang/srt/entrypoints/http_server.py and openai/protocol.py, 0.5.23).

    Raises:
        InputError: neither answers, or it does not tokenize.

    """
    engine, version = engine_and_version(client)
    description = client.get("/openapi.json")
    described = description.ok and isinstance(description.data, dict)
    path = "/tokenize" if engine == "vllm" else "/v1/tokenize"
    fields = _chat_fields(description.data, path) if described else _ALWAYS
    if fields is None:
        raise InputError(f"this {engine} {version} does not tokenize", where=f"{client.url}{path}")
    return Server(engine, version, served_model(client), path, fields, described)


def engine_and_version(client: Client) -> tuple[str, str]:
    """Return ``"vllm"`` or ``"sglang"``, and the version that the server says.

    Raises:
        NoKnownEngineError: neither answers.
        InputError: nothing can be reached, or it does not say its version.

    """
    for name in ("/model_info", "/get_model_info"):
        answer = client.get(name)
        if answer.ok and isinstance(answer.data, dict) and "tokenizer_path" in answer.data:
            for info in ("/server_info", "/get_server_info"):
                version = _version(client, info)
                if version is not None:
                    return "sglang", version
            raise InputError("this SGLang does not say its version", where=client.url)
    version = _version(client, "/version")
    if version is None:
        raise NoKnownEngineError("neither vLLM nor SGLang answers here", where=client.url)
    return "vllm", version


def _version(client: Client, path: str) -> str | None:
    answer = client.get(path)
    version = answer.data.get("version") if answer.ok and isinstance(answer.data, dict) else None
    return version if isinstance(version, str) and version else None


def served_model(client: Client) -> str | None:
    """Return the name that requests give for the model; ``None`` where none is listed.

    Raises:
        InputError: no answer.

    """
    answer = client.get("/v1/models")
    listed = answer.data.get("data") if answer.ok and isinstance(answer.data, dict) else None
    for entry in listed if isinstance(listed, list) else []:
        # An adapter is listed like a model, with the model that it belongs to.
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry.get("parent") is None:
            return str(entry["id"])
    return None


def _chat_fields(description: Mapping[str, Any], path: str) -> frozenset[str] | None:
    """Return the fields of the request that has ``messages``; empty: chats are not taken; ``None``: no such path."""
    body = _at(description, "paths", path, "post", "requestBody", "content", "application/json", "schema")
    if not isinstance(body, dict):
        return None
    for one in body.get("anyOf") or body.get("oneOf") or [body]:
        name = one.get("$ref") if isinstance(one, dict) else None
        schema = _at(description, *str(name).removeprefix("#/").split("/")) if name is not None else one
        fields = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(fields, dict) and "messages" in fields:
            return frozenset(fields)
    return frozenset()


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
