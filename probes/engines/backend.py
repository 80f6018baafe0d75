"""The back end with a real vLLM: engines are started, with real connectors in front of scratch stores.

An engine is started once for each deployment. Between the parts of a rehearsal its own cache is emptied and the store
under its connector is exchanged, which is what a restart with other settings comes to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.embedded.stand_in import Side
from kvgate.probes.engines.adapters import lay_out_adapters
from kvgate.probes.engines.connectors import Connector, kind_of, redis_of
from kvgate.probes.engines.example_connector import ExampleConnector
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.layout import PLAIN
from kvgate.probes.engines.lmcache_server import LMCacheServer, start_redis
from kvgate.probes.engines.places import FolderPlaces, RedisPlaces
from kvgate.probes.engines.program import Adapter, Program
from kvgate.probes.engines.serving import CONNECTORS, Ran, ran_with, unlike_serving
from kvgate.probes.engines.sides import (
    Launch,
    all_ranks,
    checkpoint_name,
    environment_of,
    link_checkpoint,
    pair_of,
    planned,
    ranks_of,
    write_stand_in,
)
from kvgate.probes.engines.worker import Engine, EngineWorker
from kvgate.probes.rehearsal.backend import CannotStageError, Ground, Start
from kvgate.rules.change import alike
from kvgate.rules.manifest import Manifest

_PLAN = "no launch file was started: what the manifests say was staged, the plan and not the procedure"
_BY_VERSION = {
    "engine.build": (("engine.image", "engine.packages"), "no images: the installations themselves"),
    "engine.attention_backend": (("engine.attention_backend",), "what each version takes"),
}
_LAST = ("--skip-tokenizer-init", "--max-num-seqs", "1")


class VllmBackend:
    """Stages one pair of deployments.

    Args:
        old: the deployment whose entries must not be read.
        new: the one that is rolled out.
        installation: what is started.
        old_installation: what is started for the old deployment; ``None``: the same.
        folders: checkpoints with the real weights; tiny models stand in where there are none.
        launches: how both are started in earnest; ``None``: as their manifests say.
        program: a process with vLLM in it that stays for further rehearsals; the caller ends it.
        old_program: the same of ``old_installation``.
        child: the same that writes stand-ins.

    """

    name = "vllm"

    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        installation: Installation,
        *,
        old_installation: Installation | None = None,
        folders: Folders | None = None,
        launches: tuple[Launch, Launch] | None = None,
        program: Program | None = None,
        old_program: Program | None = None,
        child: Child | None = None,
    ) -> None:
        self._old, self._new = old, new
        for side in (old, new):  # what cannot be, is said before anything is started
            if kind_of(side) == "redis":
                redis_of(installation.redis)
        self._installations = {False: installation, True: old_installation or installation}
        self._several = old_installation is not None
        self._folders, self._launched = folders, launches is not None
        self._pair = pair_of(old, new, folders)
        self._missing: dict[str, str] = {} if self._launched else {"procedure": _PLAN}
        self._launches = launches or tuple(
            planned(side, stands, self._missing, real=folders is not None)
            for side, stands in ((old, self._pair.old), (new, self._pair.new))
        )
        self._own: list[Program | Child] = []
        self._programs: dict[bool, Program] = {
            is_old: one for is_old, one in ((False, program), (True, old_program)) if one is not None
        }
        self._writer: Child | None = child
        self._places: dict[bool, FolderPlaces | RedisPlaces] = {}
        self._connectors: dict[bool, Connector] = {}
        self._adapters: dict[bool, Mapping[str, Adapter]] = {}
        self._engines: set[str] = set()

    def ground(self) -> Ground:
        """Say what is staged, and on what."""
        real = self._folders is not None
        told = {is_old: self._program(old=is_old).ask({"op": "versions"}) for is_old in (False, True)}
        ran = {
            is_old: ran_with(versions, launched=self._launched, ranks=self._ranks(is_old=is_old))
            for is_old, versions in told.items()
        }
        sides = ((self._old, self._new, ran[True]), (self._new, self._old, ran[False]))
        unlike = {path: why for side, other, its in sides for path, why in unlike_serving(side, other, its)}
        return Ground(
            model="real" if real else "stand-in",
            precision=f"{self._pair.new.dtype}/vllm/{ran[False].device}",
            staged={**self._pair.staged, **self._staged(ran)},
            missing={**self._pair.missing, **self._missing, **unlike},
            engines=real and not unlike and self._missing.keys() <= {"procedure"},
            procedure="launch files" if self._launched else "plan",
            tools=self._tools(told),
            seeds={} if real else {"old": self._pair.old.seed, "new": self._pair.new.seed},
        )

    def start(self, start: Start) -> EngineWorker:
        """Return a running engine, which is started where there is none yet."""
        is_old = start.deployment is self._old
        called = checkpoint_name(start.deployment)
        name = "foreign" if start.foreign else "old" if is_old else "new"
        if start.boundary == "removed" and start.instead_of is not None and checkpoint_name(start.instead_of) != called:
            called = checkpoint_name(start.instead_of)  # some connectors' names hold it
            name = "unguarded"
        if name not in self._engines:
            self._start(name, called, is_old=is_old)
        side = self._pair.old if is_old else self._pair.new
        engine = Engine(
            self._program(old=is_old),
            name,
            self._connector(old=is_old),
            restart=lambda: self._start(name, called, is_old=is_old),
            real=self._folders is not None,
            computes=side.dtype,
            saves=side.saved,
            adapters=self._adapters[is_old],
        )
        filled = start.instead_of is self._old or start.deployment is self._old
        return EngineWorker(engine, start, self._connector(old=filled) if filled is is_old or self._alike() else None)

    def close(self) -> None:
        """End everything that was started; scratch stores go with it."""
        for program in self._programs.values():
            if program not in self._own:
                with contextlib.suppress(CannotStageError):
                    program.end()
        for process in self._own:
            process.close()

    def _program(self, *, old: bool) -> Program:
        """Return the process with vLLM in it that a side's engine is a part of."""
        side = old and self._several
        if side not in self._programs:
            # Threads wait for each other longer than a stand-in computes.
            threads = 1 if self._folders is None else None
            self._programs[side] = Program(replace(self._installations[side], threads=threads))
            self._own.append(self._programs[side])
        return self._programs[side]

    def _ranks(self, *, is_old: bool) -> int:
        """Return how many ranks share the tensors of a side's engine."""
        side, stands = (self._old, self._pair.old) if is_old else (self._new, self._pair.new)
        return all_ranks(side) if self._launched else ranks_of(side, stands)

    def _staged(self, ran: Mapping[bool, Ran]) -> dict[str, str]:
        """Return what is another one on both sides, and is what both manifests name."""
        found = {}
        for path, versions in (
            ("engine.version", {is_old: one.vllm for is_old, one in ran.items()}),
            ("cache.version", {is_old: one.lmcache for is_old, one in ran.items()}),
        ):
            named = {True: self._old.value(path), False: self._new.value(path)}
            if versions[True] != versions[False] and named == versions:
                found[path] = f"{versions[True]} and {versions[False]}"
        if "engine.version" in found:
            found |= {name: why for name, (paths, why) in _BY_VERSION.items() if self._unset(*paths)}
        ranks = [self._ranks(is_old=is_old) for is_old in (True, False)]
        if ranks[0] != ranks[1]:
            found["parallelism.tensor"] = f"{ranks[0]} and {ranks[1]} ranks"
        if self._launched and self._flags_differ():
            found["engine.args"] = "the flags of both launch files"
        return found

    def _unset(self, *paths: str) -> bool:
        """Whether nothing is set on either side, so that it is what the version makes it."""
        return all(side.unset(path) for side in (self._old, self._new) for path in paths)

    def _flags_differ(self) -> bool:
        """Whether flags differ that engines are started with, and none of their connectors'."""
        sides = [dict(side.value("engine.args") or {}) for side in (self._old, self._new)]
        apart = [[one.pop(name, None) for name in CONNECTORS] for one in sides]
        return alike(*apart) and not alike(*sides)

    def _tools(self, told: Mapping[bool, Mapping[str, str]]) -> dict[str, str]:
        """Return the versions of all that ran; both sides' where they were given one each."""
        names = {False: "{}", True: "{} (old)"} if self._several else {False: "{}"}
        return {
            label.format(name): version
            for is_old, label in names.items()
            for name, version in told[is_old].items()
            if name != "device"
        }

    def _child(self) -> Child:
        if self._writer is None:
            self._writer = Child()
            self._own.append(self._writer)
        return self._writer

    def _alike(self) -> bool:
        """Whether both sides store with the same kind of connector, so that one place serves both."""
        return all(self._old.value(path) == self._new.value(path) for path in ("cache.connector", "cache.chunk_size"))

    def _connector(self, *, old: bool) -> Connector:
        """Return what a side stores with; both share it where it is one and the same."""
        key = old and (self._several or not self._alike())
        if key in self._connectors:
            return self._connectors[key]
        side = self._old if old and not self._alike() else self._new
        kind, program, place = kind_of(side), self._program(old=old), old and not self._alike()
        if place not in self._places:
            if kind == "redis":
                self._places[place] = start_redis(program, redis_of(self._installations[old].redis))
            else:
                self._places[place] = FolderPlaces(program.folder("stores"))
        places = self._places[place]
        if kind == "example" and isinstance(places, FolderPlaces):
            self._connectors[key] = ExampleConnector(places)
        else:
            self._connectors[key] = LMCacheServer(program, int(side.value("cache.chunk_size")), places)
        return self._connectors[key]

    def _start(self, name: str, called: str, *, is_old: bool) -> None:
        stands = self._pair.old if is_old else self._pair.new
        program, connector = self._program(old=is_old), self._connector(old=is_old)
        folder = program.folder(name)
        if self._folders is None or name == "foreign":
            write_stand_in(self._child(), stands, folder / called, foreign=name == "foreign")
        else:
            link_checkpoint(self._folders.old if is_old else self._folders.new, stands, folder / called)
        if is_old not in self._adapters:
            self._adapters[is_old] = lay_out_adapters(stands, program.folder("adapters"))
        launch = self._launches[0 if is_old else 1]
        arguments = [*launch.arguments, "--model", called, *_LAST]
        try:
            program.start(name, folder, arguments, environment_of(launch), connector.transfer)
            self._refuse_otherwise(program.caches(name), stands, self._ranks(is_old=is_old))
        except CannotStageError as error:
            raise CannotStageError(f"{'OLD' if is_old else 'NEW'}'s engine does not start: {error}") from None
        self._engines.add(name)

    @staticmethod
    def _refuse_otherwise(told: Mapping[str, Any], side: Side, ranks: int) -> None:
        """Refuse an engine that is otherwise than its manifest says."""
        kept = {dtype for layers in told["ranks"] for _, _, dtype in layers}
        if len(told["ranks"]) != ranks:
            raise CannotStageError(f"{len(told['ranks'])} ranks share its tensors, and by its manifest {ranks} do")
        if told["dtype"] != side.dtype:
            raise CannotStageError(f"it computes in {told['dtype']}, and its manifest says {side.dtype}")
        if (side.saved in PLAIN or kept & PLAIN) and kept != {side.saved}:
            raise CannotStageError(f"it keeps KV in {', '.join(sorted(kept))}, and its manifest says {side.saved}")
