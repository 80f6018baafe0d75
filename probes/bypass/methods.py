"""Ways to have one request answered without the cache, the tokens of its prompt unchanged."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal, get_args

from kvgate.probes.completions.completion import LIKELIEST, Completion
from kvgate.probes.completions.requests import APIS, Request, marks_breakpoints
from kvgate.probes.completions.server import AnsweringServer
from kvgate.rules.errors import InputError, UsageError

Method = Literal["vllm-skip", "cache-salt", "sglang", "breakpoint"]
METHODS: tuple[str, ...] = get_args(Method)

SALTED_PROMPT = "prompt-salt"
"""What is no method, and why is said: people know it from benchmarks."""


def choose_method(asked: str, server: AnsweringServer, requests: tuple[Request, ...]) -> Method:
    """Return the method to use.

    Args:
        asked: its name; ``auto``: by what answers.
        server: what answers.
        requests: what is to be sent.

    Raises:
        UsageError: no such method, none that is known for this server, or none for one of the requests.

    """
    if asked == SALTED_PROMPT:
        raise UsageError(
            "random text in the prompt is no bypass: it changes the tokens, so that both answers are to different "
            "prompts and may differ for that reason alone",
            where="--method",
            hint=f"methods that leave the tokens alone: {', '.join(METHODS)}",
        )
    if asked not in ("auto", *METHODS):
        raise UsageError(f"there is no method {asked!r}", where="--method", hint=f"auto, {', '.join(METHODS)}")
    method = _by_server(server, requests) if asked == "auto" else asked
    for request in requests:
        if request.api not in _TAKEN[method]:
            raise UsageError(
                f"the method {method} is none for {request.api} ({request.id})",
                where="--method",
                hint=f"it is for {' and '.join(_TAKEN[method])}",
            )
        if method == "breakpoint" and not marks_breakpoints(request.body):
            raise UsageError(f"{request.id} marks no cache_control to leave out", where="--method")
    return method  # type: ignore[return-value]  # one of METHODS by now


_TAKEN: Mapping[str, tuple[str, ...]] = {
    "vllm-skip": APIS[:2],
    "cache-salt": APIS[:2],
    "sglang": APIS[:2],
    "breakpoint": APIS[2:],
}


def _by_server(server: AnsweringServer, requests: tuple[Request, ...]) -> str:
    if all(request.api == "/v1/messages" for request in requests):
        return "breakpoint"
    if server.engine is None:
        raise UsageError(
            "no way round the cache of this server is known: it is neither vLLM nor SGLang",
            where="--endpoint",
            hint="name one: --method cache-salt, where it takes the field cache_salt",
        )
    return "vllm-skip" if server.engine == "vllm" else "sglang"


class Bypass:
    """Asks one server, with the cache and without it.

    - ``vllm-skip``: ``prompt_logprobs`` has vLLM read neither its own cache nor a connector's
      (``skip_reading_prefix_cache`` in vllm/sampling_params.py, and vllm/v1/core/sched/scheduler.py, 0.32.0; the field
      itself cannot be sent). It reads nothing, and would still write: a fresh ``cache_salt`` beside it keeps what it
      writes from the requests that do read.
    - ``cache-salt``: a fresh ``cache_salt``. It changes the key of every block, where the store's key has it.
    - ``sglang``: ``logprob_start_len: 0`` of ``/generate`` has SGLang match no prefix (``_compute_max_prefix_len`` in
      sglang/srt/managers/schedule_batch.py, 0.5.23; read, not run), again with a fresh salt for what it writes.
    - ``breakpoint``: without ``cache_control`` a hosted API is told of nothing to cache.
    """

    def __init__(self, server: AnsweringServer, method: Method) -> None:
        """Take note of both."""
        self._server = server
        self._method = method

    def reusing(self, request: Request) -> Completion:
        """Answer with the cache, as the request would be.

        Raises:
            InputError: no answer.

        """
        if self._method == "sglang":
            return self._server.complete("/generate", self._generate(request))
        return self._server.complete(request.api, self._server.greedy(request))

    def bypassing(self, request: Request) -> Completion:
        """Answer without it.

        Raises:
            InputError: no answer.

        """
        salt = f"kvgate-bypass-{secrets.token_hex(16)}"
        if self._method == "sglang":
            body = self._generate(request)
            return self._server.complete("/generate", {**body, "logprob_start_len": 0, "cache_salt": salt})
        body = self._server.greedy(request)
        if self._method == "breakpoint":
            return self._server.complete(request.api, _without_breakpoints(body))
        skip = {"prompt_logprobs": 0} if self._method == "vllm-skip" else {}
        return self._server.complete(request.api, {**body, **skip, "cache_salt": salt})

    def _generate(self, request: Request) -> dict[str, Any]:
        """Return a request as ``/generate`` takes it; SGLang renders a chat as it does for chats."""
        body = self._server.greedy(request)
        prompt = body.get("prompt")
        if request.api == "/v1/chat/completions":
            prompt = self._rendered(body)
        given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        tokens = body.get("max_completion_tokens", body.get("max_tokens"))
        return {
            **given,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
            "return_logprob": True,
            "top_logprobs_num": LIKELIEST,
            **{name: body[name] for name in ("cache_salt", "extra_key", "lora_path") if name in body},
            **_adapter(body.get("model")),
        }

    def _rendered(self, body: Mapping[str, Any]) -> list[int]:
        path = "/v1/tokenize"
        kept = ("model", "messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
        answer = self._server.client.post(path, {name: body[name] for name in kept if name in body})
        found = answer.data.get("tokens") if answer.ok and isinstance(answer.data, dict) else None
        if not isinstance(found, list) or not all(type(each) is int for each in found):
            raise InputError("tokenizes no chat", where=f"{self._server.client.url}{path}")
        return found


def _adapter(model: Any) -> dict[str, str]:
    """Return the adapter that a request names behind its model, which comes before ``lora_path``.

    ``_parse_model_parameter`` in sglang/srt/entrypoints/openai/serving_base.py, 0.5.23; read, not run.
    """
    _, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    return {"lora_path": name} if colon and name else {}


def _without_breakpoints(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_breakpoints(each) for name, each in value.items() if name != "cache_control"}
    return [_without_breakpoints(each) for each in value] if isinstance(value, list) else value
