"""One engine under one boundary: what it answers, and how stored KV compares with what it computes."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvgate.probes.embedded.stand_in import VOCABULARY
from kvgate.probes.engines.connectors import Connector
from kvgate.probes.engines.entries import Stretch
from kvgate.probes.engines.layout import Layout, UnlikeError, layer_errors, layout_from
from kvgate.probes.engines.program import Adapter, Program
from kvgate.probes.rehearsal.backend import CannotStageError, Generation, LayerError, Prompt, Start
from kvgate.probes.rehearsal.filing import carried_salt, unit_of
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request

_EMPTY = "nothing"  # a store that nobody fills
_MOST = 512 << 20  # bytes of one prompt's KV that are read


@dataclass(frozen=True)
class Engine:
    """One that runs.

    Attributes:
        program: the process that it is a part of.
        name: by which that knows it.
        connector: that it stores with.
        restart: starts it again.
        real: whether it has the deployment's own weights.
        computes: the number format in which it should.
        saves: that in which it should keep KV.
        adapters: that it can answer with, by their names.

    """

    program: Program
    name: str
    connector: Connector
    restart: Callable[[], None]
    real: bool
    computes: str
    saves: str
    adapters: Mapping[str, Adapter]

    def layout(self) -> Layout | None:
        """Return how it keeps KV; ``None`` where that is not known here, or not what the manifest says."""
        told = self.program.caches(self.name)
        found = layout_from(told)
        return found if found is not None and (told["dtype"], found.dtype) == (self.computes, self.saves) else None

    def ask(self, request: Request, tokens: int, *, skip: bool = False, keep: bool = False) -> Generation:
        """Have it answer; see :meth:`kvgate.probes.engines.program.Program.generate`."""
        adapter = None if request.adapter is None else self.adapters[request.adapter]
        ids, salt = request.token_ids, request.salt
        return self.program.generate(self.name, ids, tokens, salt, skip=skip, adapter=adapter, keep=keep)


class EngineWorker:
    """One engine under one boundary.

    Args:
        engine: what answers.
        start: how it is started.
        filler: the connector that stored what lies there; ``None``: not the one that the engine has.

    """

    def __init__(self, engine: Engine, start: Start, filler: Connector | None) -> None:
        self._engine, self._start, self._filler = engine, start, filler
        self._layout: Layout | None = None
        self._fails = False  # on what it reads: once that was seen, it is not looked at again
        if start.fills:
            self._put(start.store, keeps=True)

    def generate(self, prompt: Prompt, tokens: int) -> Generation:
        """Answer a prompt; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        start, connector = self._start, self._engine.connector
        request = self._request(prompt)
        if not start.fills:
            self._put(start.store, keeps=False)  # each time anew: what it wrote for the prompt before is no old entry
        skip = start.boundary == "no-reuse"
        if skip:  # LMCache looks up all the same, and keeps what it finds locked (0.5.6): under this it finds nothing
            request = replace(request, salt=f"kvgate-{secrets.token_hex(8)}")
        try:
            found = self._engine.ask(request, tokens, skip=skip)
        except CannotStageError:
            held = 0 if start.fills or skip else connector.held(start.deployment, request)
            if not held:
                raise
            found = self._failed_on(request, tokens, held)
            if not found.token_ids:
                return found
        connector.settled(start.deployment, request)
        return found

    def compare_blocks(self, prompt: Prompt) -> Sequence[LayerError] | None:
        """Hold stored KV against what is computed; see :class:`kvgate.probes.rehearsal.backend.Worker`.

        Both are read out of stores, in the layout of the engine that computes: as that would understand what it reads.
        """
        if self._filler is None:
            return None
        layout = self._layout = self._layout or self._engine.layout()
        if layout is None:
            return None
        if len(prompt.token_ids) * layout.token_bytes * len(layout.layers) * layout.ranks > _MOST:
            return None
        owner = self._owner()
        self._put(self._start.store, keeps=False)
        filed = prompt.filed if owner is not self._start.deployment and prompt.filed is not None else prompt
        request = Request(self._ids(filed), salt=carried_salt(owner, filed.salt), adapter=filed.adapter)
        stored: list[Stretch] | None
        try:
            stored = self._filler.stored(owner, request, layout)
        except UnlikeError:
            stored = None
        if stored == []:
            return None
        computed = self._computed(prompt, layout)
        if not computed:
            return None
        return layer_errors(layout, stored, computed, self._computed_in_parts(prompt, layout))

    def _failed_on(self, request: Request, tokens: int, held: int) -> Generation:
        """Say whether an engine failed on what it read: it does so again, and not without.

        Returns:
            No answer, with the tokens that it read, if it did; else the answer.

        Raises:
            CannotStageError: it fails whatever lies there.

        """
        self._engine.restart()
        if not self._fails:
            self._put(self._start.store, keeps=False)
            with contextlib.suppress(CannotStageError):
                return self._engine.ask(request, tokens)
            self._engine.restart()
            self._put(_EMPTY, keeps=False)
            self._engine.ask(request, 1)
            self._fails = True
        return Generation((), (), held)

    def close(self) -> None:
        """Nothing: the engine is kept for the next worker."""

    def _computed(self, prompt: Prompt, layout: Layout) -> list[Stretch]:
        """Return what the engine stores for a prompt that it computes whole."""
        self._put(_EMPTY, keeps=False)
        request = self._own_request(prompt)
        if self._engine.ask(request, 1).cached:
            raise CannotStageError("an empty store was not empty")
        return self._read(request, layout)

    def _computed_in_parts(self, prompt: Prompt, layout: Layout) -> list[Stretch] | None:
        """Return the same for a prompt whose first half is there already; ``None`` where it was not made use of."""
        deployment = self._start.deployment
        unit = unit_of(deployment)
        self._put(_EMPTY, keeps=False)
        request = self._own_request(prompt)
        first = request.token_ids[: max(1, len(request.token_ids) // 2 // unit) * unit]
        self._engine.ask(replace(request, token_ids=first), 1, keep=True)
        if not self._engine.ask(request, 1).cached:
            return None
        return self._read(request, layout)

    def _read(self, request: Request, layout: Layout) -> list[Stretch]:
        connector, deployment = self._engine.connector, self._start.deployment
        connector.settled(deployment, request)
        try:
            return connector.stored(deployment, request, layout)
        except UnlikeError as error:
            raise CannotStageError(f"what the engine stores is not what its own cache is like: {error}") from None

    def _put(self, store: str, *, keeps: bool) -> None:
        """Put a store in place under the connector, as it was left."""
        connector = self._engine.connector
        connector.places.put(store, str(self._owner().value("cache.location")), keeps=keeps)
        if self._start.torn:
            connector.places.tear()
        connector.forget()

    def _owner(self) -> Manifest:
        """Return whose place, namespace and salts are used."""
        start = self._start
        return start.instead_of if start.boundary == "removed" and start.instead_of is not None else start.deployment

    def _request(self, prompt: Prompt) -> Request:
        owner = self._owner()
        if owner is not self._start.deployment and prompt.filed is not None:
            return Request(self._ids(prompt), salt=carried_salt(owner, prompt.filed.salt), adapter=prompt.adapter)
        return self._own_request(prompt)

    def _own_request(self, prompt: Prompt) -> Request:
        salt = carried_salt(self._start.deployment, prompt.salt)
        return Request(self._ids(prompt), salt=salt, adapter=prompt.adapter)

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        return prompt.token_ids if self._engine.real else tuple(one % VOCABULARY for one in prompt.token_ids)
