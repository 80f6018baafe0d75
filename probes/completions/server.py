"""A running server that answers prompts: which one it is, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from kvgate.corpora.endpoints.client import SECONDS, Client
from kvgate.corpora.endpoints.server import NoKnownEngineError, engine_and_version, served_model
from kvgate.probes.completions.completion import LIKELIEST, Completion, Numbers, read_completion
from kvgate.probes.completions.replicas import LOOKS, Seen, look, together
from kvgate.probes.completions.requests import Request
from kvgate.rules.errors import InputError

MESSAGES_VERSION = "2023-06-01"  # Anthropic's API wants one named (its API reference, "Versions")
_LONGEST = 200
_TOKENS = 64  # where a request does not say how many


@dataclass
class AnsweringServer:
    """A server that answers prompts.

    Attributes:
        client: of it.
        engine: ``"vllm"``, ``"sglang"``, or ``None``: it is neither.
        version: as it says itself.
        model: what a request that names none is for.

    """

    client: Client
    engine: str | None
    version: str | None
    model: str | None
    _numbers: Numbers = field(default_factory=Numbers)
    _seen: list[Seen] = field(default_factory=list)
    _configurations: dict[str, set[str]] = field(default_factory=dict)

    def complete(self, path: str, body: Mapping[str, Any]) -> Completion:
        """Send a request and return its answer.

        Raises:
            InputError: none came, or one with an error, or what is no completion.

        """
        where = f"{self.client.url}{path}"
        answer = self.client.post(path, dict(body))
        if answer.status != HTTPStatus.OK:
            said = f": {answer.said()}" if answer.said() else ""
            raise InputError(f"answers with HTTP {answer.status}{said}", where=where)
        if answer.data is None:
            raise InputError("answers with what is not JSON", where=where)
        found = read_completion(answer.data, self._numbers, where)
        if found.configuration is not None:
            self._configurations.setdefault(str(body.get("model"))[:_LONGEST], set()).add(found.configuration)
        return found

    def longest_prompt(self) -> int | None:
        """Return how many tokens a prompt may have with its answer (``max_model_len``); ``None``: it is not told.

        Raises:
            InputError: it cannot be reached.

        """
        data = self.client.get("/v1/models").data if self.engine is not None else None
        listed = data.get("data") if isinstance(data, dict) else None
        found = [one.get("max_model_len") for one in listed or () if isinstance(one, dict)]
        return min((one for one in found if type(one) is int and one > 0), default=None)

    def look(self, times: int = LOOKS) -> Seen:
        """Look which process answers, and return who has answered so far.

        Raises:
            InputError: it cannot be reached.

        """
        self._seen.append(look(self.client, self.engine, times))
        # One that is asked for several models names as many; each should be made by one.
        most = max(self._configurations.values(), key=len, default=set[str]())
        return together([*self._seen, Seen(certain=True, configurations=frozenset(most))])

    def look_again(self) -> Seen:
        """Look once more when all is done; a server that is gone leaves open who it was to the end."""
        try:
            return self.look()
        except InputError:
            self._seen.append(Seen())
            return self.look(0)

    @property
    def several_configurations(self) -> bool:
        """Whether answers for one model named more than one configuration as that which made them."""
        return any(len(names) > 1 for names in self._configurations.values())

    def greedy(self, request: Request) -> dict[str, Any]:
        """Return a request's body so that its answer is the likeliest one, with what tells how close others were."""
        body: dict[str, Any] = {"max_tokens": _TOKENS, **request.body, "temperature": 0, "stream": False}
        if "max_completion_tokens" in request.body:
            body.pop("max_tokens")
        if self.model is not None:
            body.setdefault("model", self.model)
        # With `echo` vLLM reads no cache at all where log-probabilities are asked for.
        for name in ("stream_options", "top_p", "top_k", "n", "best_of", "echo"):
            body.pop(name, None)
        if request.api == "/v1/chat/completions":
            body |= {"logprobs": True, "top_logprobs": LIKELIEST}
        elif request.api == "/v1/completions":
            body |= {"logprobs": LIKELIEST}
        if self.engine == "vllm" and request.api != "/v1/messages":
            body["return_tokens_as_token_ids"] = True  # a text may be that of several tokens
        return body


def answering_server(client: Client) -> AnsweringServer:
    """Ask a server what it is.

    Raises:
        InputError: it cannot be reached.

    """
    try:
        engine, version = engine_and_version(client)
    except NoKnownEngineError:
        return AnsweringServer(client, None, None, None)
    return AnsweringServer(client, engine, version, served_model(client))


def open_client(url: str, key: str | None, seconds: float = SECONDS) -> Client:
    """Return a client for any of the APIs; a key goes where each of them looks for it.

    Raises:
        UsageError: it is no URL of a server.

    """
    headers = {} if key is None else {"x-api-key": key}
    return Client(url, key, seconds=seconds, headers={"anthropic-version": MESSAGES_VERSION, **headers})
