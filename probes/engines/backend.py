"""The back end with a real vLLM: engines are started, with real connectors in front of scratch stores.

An engine is started once for each deployment. Between the parts of a rehearsal its own cache is emptied and the store
under its connector is exchanged, which is what a restart with other settings comes to.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.embedded.stand_in import VOCABULARY
from kvgate.probes.engines.connectors import Connector, connector_for
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.engines.sides import Launch, checkpoint_name, flags_of, pair_of, write_stand_in
from kvgate.probes.rehearsal.backend import CannotStageError, Generation, Ground, LayerError, Prompt, Start
from kvgate.probes.rehearsal.filing import carried_salt
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request

_PLAN = "no launch file was started: what the manifests say was staged, the plan and not the procedure"
_LAST = ("--skip-tokenizer-init", "--max-num-seqs", "1")


class VllmBackend:
    """Stages one pair of deployments.

    Args:
        old: the deployment whose entries must not be read.
        new: the one that is rolled out.
        installation: what is started.
        folders: checkpoints with the real weights; tiny models stand in where there are none.
        launches: how both are started in earnest; ``None``: as their manifests say.
        program: a process with vLLM in it that stays for further rehearsals; the caller ends it.
        child: the same that writes stand-ins.

    """

    name = "vllm"

    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        installation: Installation,
        *,
        folders: Folders | None = None,
        launches: tuple[Launch, Launch] | None = None,
        program: Program | None = None,
        child: Child | None = None,
    ) -> None:
        self._old, self._new, self._installation = old, new, installation
        self._folders, self._launches = folders, launches
        self._pair = pair_of(old, new, folders)
        self._missing: dict[str, str] = {}
        self._flags = [
            flags_of(side, stands, self._missing) for side, stands in ((old, self._pair.old), (new, self._pair.new))
        ]
        self._own: list[Program | Child] = []
        self._started: Program | None = program
        self._writer: Child | None = child
        self._connectors: dict[bool, Connector] = {}
        self._engines: set[str] = set()

    def ground(self) -> Ground:
        """Say what is staged, and on what."""
        versions = self.program.ask({"op": "versions"})
        side = self._pair.new
        procedure = self._launches is not None
        real = self._folders is not None
        installed = str(versions["vllm"]).partition("+")[0]
        served = {side.value("engine.version") for side in (self._old, self._new)}
        if served != {installed}:
            self._missing["engine.version"] = f"vLLM {installed} ran for both sides"
        return Ground(
            model="real" if real else "stand-in",
            precision=f"{side.dtype}/vllm/cpu",
            staged=self._pair.staged,
            missing={**self._pair.missing, **self._missing, **({} if procedure else {"procedure": _PLAN})},
            engines=real and all(self._serves(one, installed) for one in (self._old, self._new)),
            procedure="launch files" if procedure else "plan",
            tools=versions,
            seeds={} if real else {"old": self._pair.old.seed, "new": side.seed},
        )

    def start(self, start: Start) -> _Worker:
        """Return a running engine, which is started where there is none yet."""
        is_old = start.deployment is self._old
        name = "foreign" if start.foreign else "old" if is_old else "new"
        connector = self._connector(old=is_old)
        if name not in self._engines:
            self._start(name, connector, is_old=is_old)

        def restart() -> None:
            self._start(name, connector, is_old=is_old)

        return _Worker(self.program, connector, start, name, restart, real=self._folders is not None)

    def close(self) -> None:
        """End everything that was started; scratch stores go with it."""
        if self._started is not None and self._started not in self._own:
            with contextlib.suppress(CannotStageError):
                self._started.end()
        for process in self._own:
            process.close()

    @property
    def program(self) -> Program:
        """The process with vLLM in it."""
        if self._started is None:
            self._started = Program(self._installation)
            self._own.append(self._started)
        return self._started

    def _child(self) -> Child:
        if self._writer is None:
            self._writer = Child()
            self._own.append(self._writer)
        return self._writer

    def _connector(self, *, old: bool) -> Connector:
        """Return what a side stores with; both share it where it is one and the same."""
        side = self._old if old else self._new
        alike = all(self._old.value(path) == self._new.value(path) for path in ("cache.connector", "cache.chunk_size"))
        key = old and not alike
        if key not in self._connectors:
            self._connectors[key] = connector_for(side, self.program, self._installation)
        return self._connectors[key]

    def _start(self, name: str, connector: Connector, *, is_old: bool) -> None:
        manifest, stands, number = (self._old, self._pair.old, 0) if is_old else (self._new, self._pair.new, 1)
        folder = self.program.folder(name)
        model = checkpoint_name(manifest)
        if self._folders is None or name == "foreign":
            write_stand_in(self._child(), stands, folder / model, foreign=name == "foreign")
        else:
            (folder / model).parent.mkdir(parents=True, exist_ok=True)
            (folder / model).symlink_to(self._folders.old if is_old else self._folders.new)
        flags: Sequence[str] = self._flags[number]
        environment: Mapping[str, str] = {}
        if self._launches is not None:
            flags, environment = self._launches[number].arguments, self._launches[number].environment
        transfer = json.dumps(connector.transfer)
        arguments = [*flags, "--model", model, "--kv-transfer-config", transfer, *_LAST]
        self.program.start(name, arguments, folder, environment)
        self._engines.add(name)

    @staticmethod
    def _serves(deployment: Manifest, installed: str) -> bool:
        """Whether what runs here is what serves: a vLLM of this very version."""
        return bool(deployment.value("engine.name") == "vllm" and deployment.value("engine.version") == installed)


class _Worker:
    """One engine under one boundary."""

    def __init__(
        self,
        program: Program,
        connector: Connector,
        start: Start,
        engine: str,
        restart: Callable[[], None],
        *,
        real: bool,
    ) -> None:
        self._program, self._connector, self._start = program, connector, start
        self._engine, self._restart, self._real = engine, restart, real
        if start.fills:
            self._put()

    def generate(self, prompt: Prompt, tokens: int) -> Generation:
        """Answer a prompt; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        ids, salt = self._ids(prompt), self._salt(prompt)
        if not self._start.fills:
            self._put()  # each time anew: what it wrote for the prompt before is no old entry
        skip = self._start.boundary == "no-reuse"
        if skip:  # LMCache looks up all the same, and keeps what it finds locked (0.5.6): under this it finds nothing
            salt = f"kvgate-{secrets.token_hex(8)}"
        request = Request(ids, salt=salt)
        try:
            found = self._program.generate(self._engine, ids, tokens, salt, skip=skip)
        except CannotStageError:
            held = 0 if self._start.fills else self._connector.held(self._start.deployment, request)
            if not held:
                raise
            self._restart()
            return Generation((), (), held)  # it failed on what it read
        self._connector.settled(self._start.deployment, request)
        return found

    def compare_blocks(self, prompt: Prompt) -> Sequence[LayerError] | None:
        """Hold stored KV against what is computed; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        del prompt
        return None

    def close(self) -> None:
        """Nothing: the engine is kept for the next worker."""

    def _put(self) -> None:
        """Put the store in place under the connector, as it was left."""
        start = self._start
        place = start.instead_of if start.boundary == "removed" and start.instead_of is not None else start.deployment
        self._connector.places.put(start.store, str(place.value("cache.location")), keeps=start.fills)
        self._connector.forget()

    def _ids(self, prompt: Prompt) -> tuple[int, ...]:
        return prompt.token_ids if self._real else tuple(one % VOCABULARY for one in prompt.token_ids)

    def _salt(self, prompt: Prompt) -> str | None:
        start = self._start
        if start.boundary == "removed" and start.instead_of is not None and prompt.filed is not None:
            return carried_salt(start.instead_of, prompt.filed.salt)
        return carried_salt(start.deployment, prompt.salt)
