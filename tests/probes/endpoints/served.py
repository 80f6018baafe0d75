"""Deployments that run already, for rehearsals: each with a memory of its own in front of a store that others share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.corpora.engine_server import Answer, Engine, metrics, serving

BLOCK = 32  # no longer than what every prompt of a rehearsal begins with


class Late(dict[str, int]):
    """A store that is written in the background: an entry is there once the store was asked so many times since."""

    def __init__(self, delay: int) -> None:
        self._delay, self._asked, self._due = delay, 0, dict[str, int]()

    def get(self, key: str, default: Any = None) -> Any:
        self._asked += 1
        return super().get(key, default) if self._asked > self._due.get(key, 0) else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._due.setdefault(key, self._asked + self._delay)
        return super().setdefault(key, default)


@dataclass
class Server:
    """A deployment in front of a store that it shares with others; its own memory in front of that.

    Attributes:
        weights: what its KV is made of, and its answers.
        store: whose weights each prefix was computed with, by the prefix and its salt.
        tells: whether it tells cached tokens.
        salts: whether its keys hold salts.
        bypasses: whether it has a way round its caches.
        lies: whether it says that nothing is cached, whatever is.
        slight: nats that an entry of other weights moves its answers by; ``None``: it answers something else.
        noise: nats that any entry does.
        started: when each of its processes started, which take turns; empty: it does not tell.
        asked: the bodies it was sent.
    """

    weights: int
    store: dict[str, int]
    version: str = "0.33.0"
    tells: bool = True
    salts: bool = True
    bypasses: bool = True
    lies: bool = False
    slight: float | None = None
    noise: float = 0.0
    started: tuple[float, ...] = ()
    asked: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if method == "GET":
            told = {"/version": {"version": self.version}, "/v1/models": {"data": [{"id": "m", "parent": None}]}}
            if path == "/metrics" and self.started:
                return 200, metrics(self.started[next(self._turns) % len(self.started)])
            return (200, told[path]) if path in told else (404, {})
        self.asked.append(body)
        ids, salt = body["prompt"], body.get("cache_salt") if self.salts else None
        reads = body.get("prompt_logprobs") is None or not self.bypasses
        cached, weights = 0, {self.weights}
        for end in range(BLOCK, len(ids), BLOCK):
            key = json.dumps([ids[:end], salt])
            found = self.memory.get(key, self.store.get(key))
            if reads and found is not None and cached == end - BLOCK:
                cached = end
                weights.add(found)
            kept = found if reads and found is not None else self.weights
            self.memory[key] = kept
            self.store.setdefault(key, kept)
        moved = self.noise if cached else 0.0
        if self.slight is not None and len(weights) > 1:
            weights, moved = {self.weights}, moved + self.slight
        # Where weights make but a slight difference, they make none of the words.
        first = 1000 + (sum(weights) * 10 if self.slight is None else 0) + sum(ids) % 7
        top = {f"token_id:{first}": -0.1 - moved, f"token_id:{first + 1}": -3.0}
        steps = body["max_tokens"]
        for end in range(len(ids) // BLOCK * BLOCK + BLOCK, len(ids) + steps, BLOCK):  # what is generated is kept, too
            key = json.dumps([[*ids, *[first] * steps][:end], salt])
            self.memory.setdefault(key, self.weights)
            self.store.setdefault(key, self.weights)
        logs = {
            "tokens": [f"token_id:{first}"] * steps,
            "token_logprobs": [-0.1] * steps,
            "top_logprobs": [top] * steps,
        }
        usage = {"prompt_tokens_details": {"cached_tokens": 0 if self.lies else cached}} if self.tells else {}
        return 200, {"choices": [{"text": "", "logprobs": logs}], "usage": usage}


@contextmanager
def running(*servers: Server) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Engine(server.answer))).url for server in servers]
