"""A server that stands in for engines and hosted APIs: it caches prompts, and can be made to do so wrongly."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.corpora.engine_server import Answer, Engine, metrics, serving

STEPS = 4
_NOT_FOUND: Answer = (404, {"detail": "Not Found"})


@dataclass
class Toy:
    """What it does.

    Attributes:
        engine: whose API it has; ``None``: a hosted one.
        wrong: an answer from the cache is to another prompt.
        shift: nats that log-probabilities move by from the cache.
        gap: nats between the two likeliest tokens.
        flips: from the cache the second likeliest is taken, at this step.
        drifts: every answer is another one.
        tells: whether it tells cached tokens.
        logs: whether it tells log-probabilities.
        ignores: fields of a request that are not part of the key.
        caches: whether it caches.
        fails: statuses of the next answers; ``None``: answer.
        seconds: how long an answer takes that is not cached.
        started: when each of its processes started, which take turns; empty: it does not tell.
        configurations: what its answers name as what made them, in turns.
        held: what it is asked without a salt is in its cache already: somebody has asked before.
        old: nats that log-probabilities move by where an entry that was in its cache before is read.
        omits_zero: it tells cached tokens only where there are any.
    """

    engine: str | None = "vllm"
    wrong: bool = False
    shift: float = 0.0
    gap: float = 3.0
    flips: int | None = None
    drifts: bool = False
    tells: bool = True
    logs: bool = True
    ignores: tuple[str, ...] = ()
    caches: bool = True
    fails: list[int | None] = field(default_factory=list)
    seconds: float = 0.0
    started: tuple[float, ...] = ()
    configurations: tuple[str, ...] = ()
    omits_zero: bool = False
    held: bool = False
    old: float = 0.0
    _mine: set[str] = field(default_factory=set)
    cached: set[str] = field(default_factory=set)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    _moved: float = 0.0
    _count: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if method == "GET":
            return self._about(path)
        self.asked.append((path, body))
        if self.fails and (status := self.fails.pop(0)) is not None:
            return status, {"error": {"message": "no"}}
        if path == "/v1/tokenize":
            return 200, {"tokens": list(json.dumps(body["messages"]).encode())}
        hit = self._looked_up(path, body)
        if not hit and self.seconds:
            time.sleep(self.seconds)
        return 200, self._answered(path, hit)

    def _about(self, path: str) -> Answer:
        if path == "/metrics" and self.started:
            return 200, metrics(self.started[next(self._count) % len(self.started)])
        if self.engine == "vllm" and path == "/version":
            return 200, {"version": "0.32.0"}
        if self.engine == "sglang" and path in ("/model_info", "/server_info"):
            return 200, {"tokenizer_path": "/m", "version": "0.5.23"}
        return (200, {"data": [{"id": "m", "parent": None}]}) if self.engine and path == "/v1/models" else _NOT_FOUND

    def _looked_up(self, path: str, body: Any) -> bool:
        prompt = body.get("prompt", body.get("messages", body.get("text", body.get("input_ids"))))
        salt = None if "cache_salt" in self.ignores else body.get("cache_salt")
        key = json.dumps([prompt, body.get("system"), salt])
        marked = "cache_control" in json.dumps(body) or path != "/v1/messages"
        reads = self.caches and marked and body.get("prompt_logprobs") is None and body.get("logprob_start_len") is None
        hit = reads and (key in self.cached or (self.held and salt is None))
        if self.caches and marked:
            if not hit:
                self._mine.add(key)
            self.cached.add(key)
        self._moved = self.shift + (self.old if hit and key not in self._mine else 0)
        return hit

    def _answered(self, path: str, hit: bool) -> dict[str, Any]:
        offset = (100 if hit and self.wrong else 0) + (next(self._count) * 7 if self.drifts else 0)
        steps = []
        for step in range(STEPS):
            first, second = 10 + step + offset, 50 + step + offset
            flipped = hit and step == self.flips
            top = {first: -0.1, second: -0.1 - self.gap}
            if flipped:  # the two have all but changed places
                top = {second: -0.1, first: -0.1 - self.gap}
            steps.append((second if flipped else first, {k: v - (self._moved if hit else 0) for k, v in top.items()}))
        text = " ".join(str(token) for token, _ in steps)
        cached = 96 if hit else 0
        if path == "/v1/messages":
            usage = {"input_tokens": 120 - cached, "output_tokens": STEPS}
            return {
                "content": [{"type": "text", "text": text}],
                "usage": usage | ({"cache_read_input_tokens": cached} if self.tells else {}),
            }
        if path == "/generate":
            info = {
                "prompt_tokens": 120,
                "cached_tokens": cached,
                "output_token_logprobs": [[top[token], token, None] for token, top in steps],
                "output_top_logprobs": [[[value, token, None] for token, value in top.items()] for _, top in steps],
            }
            return {"text": text, "meta_info": info}
        tells = self.tells and bool(cached or not self.omits_zero)
        told = {"prompt_tokens_details": {"cached_tokens": cached} if tells else None}
        named = {}
        if self.configurations:
            named = {"system_fingerprint": self.configurations[next(self._count) % len(self.configurations)]}
        return {"choices": [self._choice(path, text, steps)], "usage": {"prompt_tokens": 120, **told}, **named}

    def _choice(self, path: str, text: str, steps: list[tuple[int, dict[int, float]]]) -> dict[str, Any]:
        if path == "/v1/completions":
            logs = {
                "tokens": [f"token_id:{token}" for token, _ in steps],
                "token_logprobs": [top[token] for token, top in steps],
                "top_logprobs": [{f"token_id:{token}": value for token, value in top.items()} for _, top in steps],
            }
            return {"text": text, "logprobs": logs if self.logs else None}
        content = [
            {
                "token": str(token),
                "bytes": list(str(token).encode()),
                "logprob": top[token],
                "top_logprobs": [
                    {"token": str(one), "bytes": list(str(one).encode()), "logprob": value}
                    for one, value in top.items()
                ],
            }
            for token, top in steps
        ]
        return {"message": {"content": text}, "logprobs": {"content": content} if self.logs else None}


@contextmanager
def running(toy: Toy) -> Iterator[str]:
    with serving(Engine(toy.answer)) as engine:
        yield engine.url
