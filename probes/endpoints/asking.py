"""One running server as the workers of a rehearsal ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvgate.probes.bypass.methods import Bypass, choose_method
from kvgate.probes.completions.completion import Completion
from kvgate.probes.completions.replicas import SEVERAL
from kvgate.probes.completions.requests import Request
from kvgate.probes.completions.server import AnsweringServer
from kvgate.probes.rehearsal.backend import CannotStageError, Generation, Prompt
from kvgate.rules.errors import InputError, UsageError


@dataclass
class Asked:
    """A server, and what it has computed in this rehearsal.

    Attributes:
        name: how messages name it.
        server: that answers.
        prefix: token ids in front of every prompt.

    """

    name: str
    server: AnsweringServer
    prefix: tuple[int, ...]
    _computed: list[tuple[str | None, tuple[int, ...]]] = field(default_factory=list)

    def reading(self, prompt: Prompt, salt: str | None, tokens: int) -> Generation:
        """Have a prompt answered with whatever its caches hold."""
        request = self._request(prompt, salt, tokens)
        return self._generation(self._answer(self._bypass(request).reusing, request))

    def bypassing(self, prompt: Prompt, tokens: int) -> Generation:
        """Have a prompt answered without them.

        Raises:
            CannotStageError: something was read all the same, or nobody knows.

        """
        request = self._request(prompt, None, tokens)
        found = self._generation(self._answer(self._bypass(request).bypassing, request))
        if found.cached is None:
            raise CannotStageError(f"{self.name} does not say how many tokens came from the store")
        if found.cached:
            raise CannotStageError(f"{self.name} reads {found.cached} cached tokens although it is asked not to")
        return found

    def from_store(self, prompt: Prompt, salt: str | None, found: Generation) -> Generation:
        """Return an answer with no more tokens cached than can have come from the store.

        What the server itself has computed in this rehearsal, under the same salt, lies in its own memory too, what it
        generated included.
        """
        ids = (*self.prefix, *prompt.token_ids)
        own = max((_shared(ids, before) for at, before in self._computed if at == salt), default=0)
        self._computed.append((salt, (*ids, *found.token_ids)))
        if found.cached is None or found.cached > own:
            return found
        return Generation(found.token_ids, found.top, 0)

    def _bypass(self, request: Request) -> Bypass:
        if self.server.engine == "sglang" and "model" in request.body:
            raise CannotStageError(f"{self.name} is an SGLang, whose adapters are not asked for here")
        try:
            return Bypass(self.server, choose_method("auto", self.server, (request,)))
        except UsageError as error:
            raise CannotStageError(f"{self.name}: {error.message}") from None

    def _request(self, prompt: Prompt, salt: str | None, tokens: int) -> Request:
        body = {
            "prompt": [*self.prefix, *prompt.token_ids],
            "max_tokens": tokens,
            "ignore_eos": True,  # vLLM's and SGLang's: an answer that ends early is less to compare
            **({"cache_salt": salt} if salt else {}),
            **({"model": prompt.adapter} if prompt.adapter else {}),
        }
        return Request(1, prompt.id, "/v1/completions", body)

    def _answer(self, ask: Callable[[Request], Completion], request: Request) -> Completion:
        try:
            found = ask(request)
        except InputError as error:
            raise CannotStageError(f"{self.name}: {error}") from None
        if self.server.several_configurations:
            raise CannotStageError(f"{self.name}: {SEVERAL}")
        if not found.top:
            raise CannotStageError(f"{self.name} tells no log-probabilities, and tokens alone prove nothing")
        return found

    def _generation(self, found: Completion) -> Generation:
        return Generation(found.tokens, found.top, found.usage.cached)


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
