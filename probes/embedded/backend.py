"""The embedded back end: no server, transformers in one child process, KV under the connector's own names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kvgate.probes.embedded.child import Child, Device
from kvgate.probes.embedded.real import real_pair
from kvgate.probes.embedded.stand_in import VOCABULARY, Side, stand_in
from kvgate.probes.evaluation.own_words import Encode
from kvgate.probes.evaluation.references import TOKENS
from kvgate.probes.evaluation.tolerances import Tolerance, measured_here, tolerance_for
from kvgate.probes.rehearsal.backend import (
    CannotStageError,
    Generation,
    Ground,
    LayerError,
    NoControlError,
    Prompt,
    Start,
)
from kvgate.probes.rehearsal.filing import file_prompt
from kvgate.rules.change import same
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known

_ATTENTION = "eager"
"""Attention without a fused kernel: it computes a prompt alike however it is cut."""

_NEVER_STAGED = ("engine.args", "engine.packages", "engine.kv_layout", "parallelism", "cache.version", "cache.serde")
"""What a model that runs here has nothing of: a difference in one of these is not there when it runs."""

_MEASURED = (64, 200, 600)
"""Tokens of the prompts by which a model is measured against itself."""

_PATIENCE = {"stand-in": 120.0, "real": 3600.0}
"""Seconds for one answer: a real model computes some hundred tokens on one core."""

_MEMORY = 8 << 30
_FOREIGN = 0x5EED
_NO_PROCEDURE = "no launch file was started: what the manifests say was staged, the plan and not the procedure"


@dataclass(frozen=True)
class Folders:
    """The checkpoints of both sides, each shown to hold what its manifest says.

    Attributes:
        old: one side's.
        new: the other's.
        adapters: those that lie elsewhere than their manifests say, by their digests.

    """

    old: Path
    new: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)


class EmbeddedBackend:
    """Stages one pair of deployments.

    Args:
        old: the deployment whose entries must not be read.
        new: the one that is rolled out.
        folders: checkpoints with the real weights; tiny models stand in where there are none.
        child: a process that stays for further rehearsals, which the caller ends; else one of its own.
        device: where models are run.

    """

    name = "embedded"

    def __init__(
        self,
        old: Manifest,
        new: Manifest,
        *,
        folders: Folders | None = None,
        child: Child | None = None,
        device: Device = "cpu",
    ) -> None:
        self._old, self._new, self._folders = old, new, folders
        self.stands_in = folders is None
        self._pair = stand_in(old, new) if folders is None else real_pair(old, new, folders.adapters)
        memory = _MEMORY + (0 if folders is None else 2 * _bytes(folders))
        seconds = _PATIENCE["stand-in" if folders is None else "real"]
        self._child = child or Child(memory=memory, seconds=seconds, device=device)
        self._ends_it = child is None
        self._device = device
        self._versions: Mapping[str, str] = {}

    def ground(self) -> Ground:
        """Say what is staged, and on what."""
        self._versions = self._versions or self._child.ask({"op": "versions"})
        if self._device == "cuda" and "cuda" not in self._versions:
            raise CannotStageError("torch sees no GPU here")
        side = self._pair.new
        precision = f"{side.dtype}/{_ATTENTION}/{self._device}"
        return Ground(
            model="stand-in" if self._folders is None else "real",
            precision=precision,
            staged=self._pair.staged,
            missing={**self._pair.missing, "procedure": _NO_PROCEDURE},
            engines=self._folders is not None and self._serves(),
            tools=self._versions,
            seeds={"old": self._pair.old.seed, "new": side.seed} if self._folders is None else {},
            measured=self._measure() if tolerance_for(precision) is None else None,
        )

    def _measure(self) -> Tolerance:
        """Measure how far the new deployment's model is from itself.

        Raises:
            CannotStageError: too far for anything to be told.

        """
        side = self._pair.new
        asked = [Prompt("noise", ())] + ([Prompt("noise", (), answer=())] if self.stands_in else [])
        found = []
        for prompt in asked:
            known = self.vocabulary(side, prompt)
            drawn = [[(7 * at * at + 31 * at + length) % known for at in range(length)] for length in _MEASURED]
            model = self.model(Start(self._new, ""), prompt)
            found.append(self._child.ask({"op": "noise", "model": model, "saved": side.saved, "prompts": drawn}))
        logprob, kv = (max(one[what] for one in found) for what in ("logprob", "kv"))
        floor = measured_here(side.dtype, _ATTENTION, self._where(), logprob, kv)
        if floor is None:
            raise CannotStageError(
                f"on {self._where()} the model is {logprob:.2g} nats from itself, and {kv:.2g} in what is stored, "
                "where only shapes differ: nothing can be told from it"
            )
        return floor

    def _where(self) -> str:
        return self._versions.get("cuda", "a CPU") if self._device == "cuda" else "a CPU"

    def start(self, start: Start) -> _Worker:
        """Start a worker: the child process holds its model once it is asked something.

        Raises:
            NoControlError: it is one that would read torn entries.

        """
        if start.torn:
            raise NoControlError("a torn entry is noticed by the connector's own code or not, and that does not run")
        return _Worker(self._child, self, start)

    def words(self) -> tuple[Encode, Encode] | None:
        """Return both sides' tokenizers; see :class:`kvgate.probes.rehearsal.backend.Speaks`."""
        if self._folders is None:
            return None
        old, new = (partial(self._encode, folder) for folder in (self._folders.old, self._folders.new))
        for encode in (old, new):
            encode(["a"])
        return old, new

    def _encode(self, folder: Path, texts: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        found = self._child.ask({"op": "encode", "folder": str(folder), "texts": list(texts)})
        return tuple(found["front"]), [tuple(one) for one in found["texts"]]

    def close(self) -> None:
        """End the child process and remove the scratch folder."""
        if self._ends_it:
            self._child.close()
        else:
            self._child.clear()

    def side(self, deployment: Manifest) -> Side:
        """Return what stands for a deployment."""
        return self._pair.old if deployment is self._old else self._pair.new

    def vocabulary(self, side: Side, prompt: Prompt) -> int:
        """Return how many ids the model knows that answers a prompt."""
        copies = self.stands_in and prompt.answer is not None
        return TOKENS if copies else int(side.config.get("vocab_size", VOCABULARY))

    def model(self, start: Start, prompt: Prompt) -> dict[str, Any]:
        """Return the specification of the model that answers a prompt."""
        side = self.side(start.deployment)
        seed, tail = (_FOREIGN, _FOREIGN) if start.foreign else (side.seed, side.tail_seed)
        common = {"dtype": side.dtype, "attention": _ATTENTION, "seed": seed, "tail_seed": tail, "device": self._device}
        if self._folders is None:
            if prompt.answer is not None:
                return {**common, "kind": "copying"}
            kind: dict[str, Any] = {"kind": "stand-in"}
        elif start.foreign:
            kind = {"kind": "stand-in"}  # of the real one's shape: nobody's weights
        else:
            folder = self._folders.old if start.deployment is self._old else self._folders.new
            kind = {"kind": "real", "folder": str(folder)}
        return {**common, **kind, "config": dict(side.config), "adapter": side.adapters.get(prompt.adapter or "")}

    def _serves(self) -> bool:
        """Whether what runs here is what serves: transformers of this very version, its attention, device and packages.

        Both sides run in this one environment. So nothing is shown of a difference between two, nor of settings that
        no model here is given.
        """
        runs = {
            "engine.name": "transformers",
            "engine.version": self._versions.get("transformers"),
            "engine.attention_backend": _ATTENTION,
            "engine.speculative": None,
            "model.quantization": None,
            "model.code": None,
        }
        both = (self._old, self._new)
        return (
            all(
                isinstance(told := side.get(path), Known) and told.value == value
                for side in both
                for path, value in runs.items()
            )
            and all(side.value("engine.accelerator") in self._accelerator() for side in both)
            and all(same(self._old.get(path), self._new.get(path)) is True for path in _NEVER_STAGED)
        )

    def _accelerator(self) -> Collection[str]:
        """What a manifest may call the device that is run on."""
        name = self._where()
        return {"cpu"} if self._device == "cpu" else {name, *re.split(r"[\s-]+", name)}


def _bytes(folders: Folders) -> int:
    return sum(file.stat().st_size for folder in (folders.old, folders.new) for file in folder.glob("*.safetensors"))


class _Worker:
    """One deployment in the child process."""

    def __init__(self, child: Child, backend: EmbeddedBackend, start: Start) -> None:
        self._child, self._backend, self._start = child, backend, start

    def generate(self, prompt: Prompt, tokens: int) -> Generation:
        """Answer a prompt; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        request = self._request(prompt)
        reads = self._start.boundary != "no-reuse"
        found = self._child.ask(
            {
                **request,
                "op": "generate",
                "tokens": tokens,
                "read": request["read"] if reads else [],
                "write": request["read"] if self._start.fills else [],
            }
        )
        return Generation(
            tuple(found["token_ids"]),
            tuple({int(token): value for token, value in step.items()} for step in found["top"]),
            found["cached"],
            tuple(found["read"]),
            tuple(found["written"]),
        )

    def compare_blocks(self, prompt: Prompt) -> Sequence[LayerError] | None:
        """Hold stored KV against what is computed; see :class:`kvgate.probes.rehearsal.backend.Worker`."""
        layers = self._child.ask({**self._request(prompt), "op": "compare"})["layers"]
        if layers is None:
            return None
        return [LayerError(number, error, noise) for number, (error, noise) in enumerate(layers)]

    def close(self) -> None:
        """Nothing of its own is left: the models are kept for the next worker."""

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        start = self._start
        if start.boundary == "removed" and start.instead_of is not None:
            filing = file_prompt(start.instead_of, prompt.filed or prompt)
        else:
            filing = file_prompt(start.deployment, prompt)
        if filing.stretches is None:
            raise CannotStageError(f"under which names entries lie is not known: {'; '.join(filing.unknown)}")
        side = self._backend.side(start.deployment)
        # The bytes that stand for tokens, and a snapshot's ids, may be more than a model has.
        known = self._backend.vocabulary(side, prompt)
        return {
            "model": self._backend.model(start, prompt),
            "saved": side.saved,
            "token_ids": [one % known for one in prompt.token_ids],
            "store": start.store,
            "place": filing.place,
            "read": [[stretch.end, list(stretch.names)] for stretch in filing.stretches],
        }
