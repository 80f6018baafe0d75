"""The back end for servers that run already: old and new deployment in front of one scratch namespace.

The operator started them, as they are started in earnest; nothing is started, reset or deleted. What a server reads of
its store cannot be undone, so each prompt is asked first the way it is in earnest, and only then without the cache. And
stores are written in the background: that a server reads nothing says something only where the entry was read before
that, by the control.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from kvgate.probes.completions.replicas import SEVERAL, Seen
from kvgate.probes.completions.server import answering_server, open_client
from kvgate.probes.endpoints.asking import Asked
from kvgate.probes.endpoints.measuring import measured_on
from kvgate.probes.evaluation.comparison import compare_answers
from kvgate.probes.evaluation.tolerances import Tolerance, tolerance_for
from kvgate.probes.rehearsal.backend import (
    CannotStageError,
    Generation,
    Ground,
    NoControlError,
    Prompt,
    Start,
)
from kvgate.probes.rehearsal.filing import carried_salt, salted_namespace
from kvgate.rules.change import same
from kvgate.rules.compare.sides import Sides
from kvgate.rules.diff import compare
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import cover

_PREFIX = 32  # tokens in front of every prompt of one rehearsal: another one's entries are no answer to it
SETTLES = 3.0
"""Seconds after which entries that are written in the background are there, unless a store is under load."""

_NO_EFFECT = ("cache.", "labels")  # dimensions that change no KV


@dataclass(frozen=True)
class Urls:
    """Where the deployments answer.

    Attributes:
        old: the deployment that fills the store.
        new: the one that comes up in front of it.
        control: the new one once more, started with the old one's namespace; ``None``: there is none.

    """

    old: str
    new: str
    control: str | None = None


class EndpointBackend:
    """Stages one pair of deployments on servers that run already.

    Args:
        old: the deployment whose entries must not be read.
        new: the one that is rolled out.
        urls: where they answer.
        key: of their API.
        seconds: how long one answer may take.
        settles: seconds that the old deployment is given to store what it was asked.

    """

    name = "endpoint"

    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        urls: Urls,
        *,
        key: str | None = None,
        seconds: float = 120.0,
        settles: float = SETTLES,
    ) -> None:
        self._old, self._new, self._urls = old, new, urls
        self._key, self._seconds, self._settles = key, seconds, settles
        self._prefix = tuple(secrets.token_bytes(_PREFIX))
        self._asked: dict[str, Asked] = {}
        self.first: dict[tuple[str, str | None], Generation] = {}
        self.unguarded: dict[tuple[str, str | None], Generation] = {}
        self.no_control: str | None = None
        self.read_nothing = True
        self.own_salt = f"kvgate-rehearsal-{secrets.token_hex(8)}"
        self._floor: Tolerance | None = None
        self.precision = f"{new.value('precision.compute') or 'unknown'}/any/server"

    def ground(self) -> Ground:
        """Ask the servers what they are, and say what differs between them.

        Raises:
            CannotStageError: one does not answer, is another engine than its manifest says or several processes, or two
                of them are one.

        """
        tools = {}
        for side, manifest in (("old", self._old), ("new", self._new)):
            server = self.asked(side).server
            for what, path in (("engine", "engine.name"), ("version", "engine.version")):
                told, said = getattr(server, what), manifest.value(path)
                if told is not None and said is not None and told != said:
                    name = self.asked(side).name
                    raise CannotStageError(f"{name}: {path} is {said} in the manifest, and here it is {told}")
            tools[f"{side} server"] = f"{server.engine} {server.version}"
        who = self._one_each()
        row = tolerance_for(self.precision)
        salt = self.own_salt if self.keyed_by_salt() else None
        # What a store packs with losses is further off than what lies in the server's own memory.
        if row is not None and self._new.value("cache.serde") in (None, "naive"):
            self._floor = measured_on(self.asked("new"), salt, self._new.value("precision.compute"), row.logprob)
        sides = Sides(self._old, self._new, cover(self._old), cover(self._new))
        differing = {
            change.dimension
            for change in compare(sides)
            if not change.unverified and not change.dimension.startswith(_NO_EFFECT)
        }
        return Ground(
            model="real",
            precision=self.precision,
            staged=dict.fromkeys(sorted(differing), "as the servers run it"),
            missing={
                "procedure": "that the servers were started by the launch files is the operator's word",
                "store": "that nothing but these servers uses the namespace is the operator's word",
                **who.missing,
            },
            procedure="running servers",
            tools=tools,
            measured=self._floor,
        )

    def start(self, start: Start) -> _Worker:
        """Return what asks the server of a deployment.

        Raises:
            NoControlError: the boundary of this one cannot be taken away without a third server.

        """
        if start.torn:
            raise NoControlError("no entry is torn in a store that other servers use")
        if start.foreign:
            raise NoControlError("no other weights can be planted in a server that runs already")
        if start.deployment is self._old:
            return _Worker(self, start, self.asked("old"))
        if start.store == "new" and not (self.keyed_by_salt() or self.read_nothing):
            raise NoControlError("the new server has no store of its own: what it reads there is what it read before")
        if start.boundary == "removed" and self.no_control is not None:
            raise NoControlError(self.no_control)
        if start.boundary == "removed":
            if self._urls.control is not None:
                return _Worker(self, start, self.asked("control"))
            if not self._by_salt_alone():
                raise NoControlError(
                    "the boundary lies in how the new server was started: a control takes a third server, the new "
                    "deployment started with the old one's namespace"
                )
        if start.boundary == "no-reuse":
            time.sleep(self._settles)
        return _Worker(self, start, self.asked("new"))

    def control(self) -> _Worker | None:
        """Return what asks as the new deployment without its boundary; ``None``: there is no such server."""
        try:
            return self.start(Start(self._new, "old", "removed", instead_of=self._old))
        except NoControlError:
            return None

    def close(self) -> None:
        """Hang up; nothing was started."""
        for asked in self._asked.values():
            asked.server.client.hang_up()

    def asked(self, side: str) -> Asked:
        """Return the server of one side, once it has said what it is."""
        if side not in self._asked:
            url = {"old": self._urls.old, "new": self._urls.new, "control": self._urls.control}[side]
            try:
                server = answering_server(open_client(str(url), self._key, self._seconds))
            except InputError as error:
                raise CannotStageError(str(error)) from None
            self._asked[side] = Asked(f"the {side} server ({server.client.url})", server, self._prefix)
        return self._asked[side]

    def _one_each(self) -> Seen:
        """Look who answers at each address: one process, and no two addresses the same one."""
        found: dict[str, Seen] = {}
        for side in ("old", "new", *(["control"] if self._urls.control is not None else [])):
            asked = self.asked(side)
            try:
                seen = asked.server.look()
            except InputError as error:
                raise CannotStageError(str(error)) from None
            if seen.several:
                raise CannotStageError(f"{asked.name}: {SEVERAL}")
            for before, other in found.items():
                same_process = seen.one and other.one and seen.processes == other.processes
                if same_process or asked.server.client.url == self.asked(before).server.client.url:
                    raise CannotStageError(f"{asked.name} is the {before} server too")
            found[side] = seen
        unknown = next((seen for seen in found.values() if not seen.one), None)
        return unknown if unknown is not None else found["new"]

    def agree(self, one: Generation, other: Generation) -> bool:
        """Whether two answers to one prompt may be one deployment's, by the tolerance that the rehearsal goes by."""
        tolerance = self._floor or tolerance_for(self.precision)
        if tolerance is None:
            return False
        return compare_answers((one.token_ids, one.top), (other.token_ids, other.top), tolerance.logprob).same

    def keyed_by_salt(self) -> bool:
        """Whether a ``cache_salt`` that nobody else uses is as good as an empty store."""
        return cover(self._new).request("cache_salt").key == "separates"

    def _by_salt_alone(self) -> bool:
        """Whether what keeps old entries out of reach, if anything does, stands in the requests."""
        paths = ["cache.location", "cache.connector", "cache.chunk_size", "model.id"]
        if not all(salted_namespace(side) for side in (self._old, self._new)):
            paths.append("cache.namespace")
        return all(same(self._old.get(path), self._new.get(path)) is True for path in paths)


class _Worker:
    """One deployment, asked under one boundary."""

    def __init__(self, backend: EndpointBackend, start: Start, asked: Asked) -> None:
        self._backend, self._start, self.asked = backend, start, asked
        self._control = backend.control() if start.boundary == "no-reuse" else None
        self._compared = False

    def generate(self, prompt: Prompt, tokens: int) -> Generation:
        """Answer a prompt; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        start, backend = self._start, self._backend
        if start.boundary == "no-reuse":
            return self._fresh(prompt, tokens)
        taken: dict[tuple[str, str | None], Generation] = {}
        if start.boundary == "removed":
            taken = backend.unguarded
        elif start.store == "old" and not start.fills:
            taken = backend.first
        before = taken.pop((prompt.id, prompt.adapter), None)
        return self.read(prompt, tokens) if before is None else before

    def _fresh(self, prompt: Prompt, tokens: int) -> Generation:
        """Ask without the boundary, then as in earnest, keep both for later, and return the answer without the cache.

        Raises:
            CannotStageError: by its own account nothing was read, and yet the answers differ.

        """
        backend, control, name = self._backend, self._control, (prompt.id, prompt.adapter)
        # Where one request is both, it is in earnest: asked twice, the second would find what the first left.
        if control is not None and (control.asked is not self.asked or control.salt(prompt) != self.salt(prompt)):
            backend.unguarded[name] = control.read(prompt, tokens)
        raw = self.read(prompt, tokens)
        first = backend.first[name] = self.asked.from_store(prompt, self.salt(prompt), raw)
        backend.read_nothing &= not first.cached
        fresh = self.asked.bypassing(prompt, tokens)
        # Where anything was read, what follows is judged by that; here nothing would be.
        if raw.cached == 0 and backend.read_nothing and not backend.agree(raw, fresh):
            raise CannotStageError(
                f"{self.asked.name} says that nothing came from its cache, and without the cache it answers otherwise"
            )
        if control is not None and control.asked is not self.asked and not self._compared:
            self._compared = True
            if not backend.agree(control.asked.bypassing(prompt, tokens), fresh):
                backend.no_control = (
                    f"{control.asked.name} is not the new deployment: without the cache its answers are others"
                )
        return fresh

    def compare_blocks(self, prompt: Prompt) -> None:
        """Return nothing: a server hands out no KV."""

    def close(self) -> None:
        """Nothing was started."""

    def read(self, prompt: Prompt, tokens: int) -> Generation:
        """Have it answered with whatever is read."""
        return self.asked.reading(prompt, self.salt(prompt), tokens)

    def salt(self, prompt: Prompt) -> str | None:
        """Return the ``cache_salt`` that it is asked with."""
        start = self._start
        if start.boundary == "removed" and start.instead_of is not None and prompt.filed is not None:
            return carried_salt(start.instead_of, prompt.filed.salt)
        salt = carried_salt(start.deployment, prompt.salt)
        if start.store == "new" and self._backend.keyed_by_salt():
            return f"{self._backend.own_salt}-{salt}" if salt else self._backend.own_salt
        return salt
