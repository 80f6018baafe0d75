"""The one interface to whatever runs a deployment: transformers in a child process, a real engine, a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from kvgate.probes.evaluation.own_words import Encode
from kvgate.probes.evaluation.tolerances import Tolerance, tolerance_for
from kvgate.rules.manifest import Manifest

Boundary = Literal["in-force", "removed", "no-reuse"]
"""What keeps a worker from old entries: what its manifest says; nothing; or that it reads and writes no store."""

Stand = Literal["real", "stand-in"]
"""Which model answers: the deployment's own weights, or a tiny one with the same changes planted in it."""


Procedure = Literal["plan", "launch files", "running servers"]
"""How the deployments came up: as their manifests say; from their launch files; somebody had started them already."""


class CannotStageError(Exception):
    """A back end cannot start this deployment; the message says why. What was staged before is no proof."""


class NoControlError(CannotStageError):
    """A back end cannot take the boundary away, or plant what is wrong; the message says why. The rest it can stage."""


@dataclass(frozen=True)
class Prompt:
    """One request.

    Attributes:
        id: the same for the same request, whatever tokens a deployment makes of it.
        token_ids: the whole prompt's.
        salt: its ``cache_salt``; ``None`` where it carries none.
        adapter: the name of the LoRA adapter that answers.
        answer: the token ids that a right answer begins with, where the prompt decides it.
        filed: the old deployment's prompt for the same request; a worker whose boundary is removed reads its entries.

    """

    id: str
    token_ids: tuple[int, ...]
    salt: str | None = None
    adapter: str | None = None
    answer: tuple[int, ...] | None = None
    filed: Prompt | None = None


@dataclass(frozen=True)
class Generation:
    """What a worker answered, greedily.

    Attributes:
        token_ids: in order.
        top: of each step the log-probabilities of the likeliest tokens, by id.
        cached: tokens of the prompt whose KV came from the store; ``None`` where the worker does not tell.
        read: names of the entries it read; ``None`` where it does not tell.
        written: names of the entries it wrote; ``None`` where it does not tell.

    """

    token_ids: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]
    cached: int | None
    read: tuple[str, ...] | None = None
    written: tuple[str, ...] | None = None


@dataclass(frozen=True)
class LayerError:
    """How far stored KV of one layer is from what the worker computes.

    Attributes:
        layer: its number.
        error: the largest difference of a key or value, relative to the layer's largest magnitude; infinite where
            they do not compare.
        noise: the same between two computations of this worker alone, the prompt cut in another place; infinite where
            it could not be measured.

    """

    layer: int
    error: float
    noise: float


@dataclass(frozen=True)
class Start:
    """How a worker is started.

    Attributes:
        deployment: what it is.
        store: the name of a scratch store; the same name, the same entries. A new name is an empty store.
        boundary: what keeps it from what lies there.
        fills: whether what it writes stays for workers that are started later. Otherwise nobody sees it: the back end
            writes nothing, or works on a copy.
        instead_of: whose place, namespace and salts it uses where the boundary is removed.
        foreign: other weights are planted in it, so that what it stores is known to be wrong for everybody.
        torn: what lies there is as a writer left it that ended half-way: of every entry the first half of its bytes,
            under its whole name.

    """

    deployment: Manifest
    store: str
    boundary: Boundary = "in-force"
    fills: bool = False
    instead_of: Manifest | None = None
    foreign: bool = False
    torn: bool = False


class Worker(Protocol):
    """One running deployment."""

    def generate(self, prompt: Prompt, tokens: int) -> Generation:
        """Answer a prompt greedily with so many tokens.

        Raises:
            CannotStageError: it cannot.

        """

    def compare_blocks(self, prompt: Prompt) -> Sequence[LayerError] | None:
        """Hold what lies in the store for a prompt against what this worker computes.

        Returns:
            ``None`` where the back end cannot read both, or nothing of the prompt lies there.

        """

    def close(self) -> None:
        """End it. Must not raise, and may be called twice."""


@dataclass(frozen=True)
class Ground:
    """What a back end stages of a pair of deployments, and on what.

    Attributes:
        model: which model answers.
        precision: number format and attention, and on what: where tolerances are looked up (``bfloat16/eager/cpu``).
        staged: dimensions whose difference is really there when it runs, and what stands for it, one clause each.
        missing: what is not, and why.
        engines: the manifest's engine itself ran, on both sides: numbers speak for it.
        procedure: how the deployments came up.
        tools: versions.
        seeds: what random parts were drawn from.
        measured: the floor of what can be told, where it was measured in this run.

    """

    model: Stand
    precision: str
    staged: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)
    engines: bool = False
    procedure: Procedure = "plan"
    tools: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    measured: Tolerance | None = None

    @property
    def tolerance(self) -> Tolerance | None:
        """The floor of what can be told; ``None`` where nobody measured it."""
        return self.measured or tolerance_for(self.precision)


class Backend(Protocol):
    """Starts deployments as workers on scratch stores that nobody else sees."""

    name: str

    def ground(self) -> Ground:
        """Say what it stages of the pair it was made for.

        Raises:
            CannotStageError: nothing of it.

        """

    def start(self, start: Start) -> Worker:
        """Start a worker.

        Raises:
            NoControlError: it is one that a control takes, and there is none.
            CannotStageError: this one cannot be.

        """

    def close(self) -> None:
        """End every worker and remove every store. Must not raise, and may be called twice."""


@runtime_checkable
class Speaks(Protocol):
    """A back end that has the tokenizers of the models that answer."""

    def words(self) -> tuple[Encode, Encode] | None:
        """Return both sides' tokenizers; ``None`` where stand-ins answer.

        Raises:
            CannotStageError: there is none, or it cannot be built here.

        """
