"""``kvgate rehearse --backend vllm``: what a real vLLM does with old entries, and what the evidence says of it.

The rows are what was first seen by hand (stale KV in front of three stores, and what keeps it out of reach), and public
reports in which a real engine read it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.probes.embedded.child import Child
from kvgate.probes.engines import backend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from tests.cli.conftest import COMMAND, Ran, in_process
from tests.probes.rehearsal.pairs import BASE, HALF, MOVED, ROLLED, TENANTS, WEIGHTS, adapter
from tests.rules.clean import data

from .servers import until
from .test_stores import IMAGE, transfer, write_model

Changes = dict[str, Any]
Told = tuple[str, int, int]
"""Of a part of a rehearsal: its state, cached tokens, and how many answers were wrong."""

COMMON: Changes = {**BASE, "engine.version": "0.32.0", "engine.block_size": 32, "cache.chunk_size": 32}
EXAMPLE = {**COMMON, "cache.connector": "vllm-example", "cache.version": None, "cache.namespace": None}
REDIS = {**COMMON, "cache.location": "redis://cache-1:6379/0"}
NOWHERE = {**COMMON, "cache.connector": None, "cache.version": None, "cache.namespace": None}
SMALL_BASE, LARGE_BASE = (
    {"model.config.rope_parameters": {"rope_type": "default", "rope_theta": base}} for base in (1e4, 5e5)
)
ONE_PATH, ANOTHER = ({"model.id": f"/models/{name}", "model.served_name": "live"} for name in "ab")

FILED, KEPT = 128 + 160, 128 + 191
"""Cached tokens of prompts of 152 and 192: in whole blocks of 32 short of the last token, or all but that one."""

PARTS = ("control", "isolation", "equivalence", "between_tenants")
NOT_RUN = ("not-run", 0, 0)


@dataclass(frozen=True)
class Seen:
    """What a rehearsal left behind: what it said, and its evidence by kind."""

    ran: Ran
    evidence: dict[str, dict[str, Any]]

    @property
    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = self.evidence["isolation"]["figures"]
        return found

    @property
    def parts(self) -> tuple[Told, ...]:
        told = [one for name in PARTS if (one := self.figures[name]) is not None]
        return tuple((one["state"], one["cached_tokens"], one["wrong"]) for one in told)

    @property
    def mistakes(self) -> tuple[str, ...]:
        return tuple(one["id"] for one in self.figures["mistakes"])

    def state(self, kind: str = "isolation") -> str:
        found: str = self.evidence[kind]["state"]
        return found


Rehearse = Callable[..., Seen]


class Lent:
    """A process that stays when the rehearsal that it was given to ends."""

    def __init__(self, process: Program | Child, emptied: Callable[[], None]) -> None:
        self._process, self.close = process, emptied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


@pytest.fixture
def engine(installation: Installation) -> tuple[str, ...]:
    """The options that say where it is installed."""
    folders = [word for folder in installation.folders for word in ("--engine-path", str(folder))]
    return "--backend", "vllm", *folders, "--redis-server", str(installation.redis)


@pytest.fixture
def rehearsed(
    engine: tuple[str, ...], program: Program, child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Rehearse:
    """Run the command on a pair of manifests, in processes that all rehearsals share."""
    monkeypatch.setattr(backend, "Program", lambda _: Lent(program, program.end))
    monkeypatch.setattr(backend, "Child", lambda: Lent(child, child.clear))
    monkeypatch.chdir(tmp_path)

    def run(old: str, new: str, *options: str) -> Seen:
        ran = in_process("rehearse", old, new, *engine, *options, "--evaluate", "1", "-o", "seen.json")
        found = [json.loads(file.read_text()) for file in tmp_path.glob("seen*.json")]
        return Seen(ran, {one["kind"]: one for one in found})

    return run


def written(folder: Path, old: Changes, new: Changes) -> tuple[str, str]:
    for name, changes in (("old", old), ("new", new)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(data(changes)))
    return "old.yaml", "new.yaml"


@dataclass(frozen=True)
class Row:
    """A pair of deployments, and what its rehearsal shows.

    Attributes:
        old: changes to the clean deployment.
        new: changes to ``old``.
        code: how the command ends.
        state: of the evidence.
        parts: of the evidence, in order; the last only where tenants are kept apart.
        mistakes: that are named.
        torn: what evidence says of entries that a writer left half-written; ``None``: it is not asked.

    """

    old: Changes
    new: Changes
    code: int
    state: str
    parts: tuple[Told, ...]
    mistakes: tuple[str, ...] = ()
    torn: str | None = None


def reused(old: Changes, cached: int, torn: str | None) -> Row:
    """The same once more: its entries are read, and right; planted ones are read, and wrong."""
    parts = ("held", cached, 2), ("held", cached, 0), ("held", cached, 0)
    return Row(old, {}, 10 if torn == "refuted" else 0, "proved", parts, torn=torn)


def kept_out(old: Changes, new: Changes, cached: int) -> Row:
    """Stale entries are read with the boundary taken away alone; its own are read, and right."""
    return Row(old, new, 0, "proved", (("held", cached, 2), ("held", 0, 0), ("held", cached, 0)))


def read(old: Changes, new: Changes, cached: int) -> Row:
    """Stale entries are read, and wrong, with the boundary in force too."""
    parts = ("held", cached, 2), ("failed", cached, 2), ("held", cached, 0)
    return Row(old, new, 10, "refuted", parts, ("namespace-not-rolled",))


ROWS = {
    # LMCache/LMCache#4991 (I39): LMCache notices an entry that was left half-written; the example connector reads it,
    # and its engine ends.
    "same weights, example, I39": reused(EXAMPLE, FILED, "refuted"),
    "same weights, files, I39": reused(COMMON, KEPT, "proved"),
    "same weights, redis": reused(REDIS, KEPT, None),
    "other weights, example": read(EXAMPLE, WEIGHTS, FILED),
    "other weights, files": read(COMMON, WEIGHTS, KEPT),
    "other weights, redis": read(REDIS, WEIGHTS, KEPT),
    "other weights, example, moved": kept_out(EXAMPLE, {**WEIGHTS, **MOVED}, FILED),
    "other weights, redis, salted": kept_out(REDIS, {**WEIGHTS, **ROLLED}, KEPT),
    "other weights, no connector": Row(NOWHERE, WEIGHTS, 11, "not-run", (NOT_RUN, NOT_RUN, NOT_RUN)),
    "another RoPE base, files": read({**COMMON, **SMALL_BASE}, LARGE_BASE, KEPT),
    "float16 before bfloat16, files": read(COMMON, HALF, KEPT),
    # sgl-project/sglang#24758: one served name, weights at another path, which the names of some connectors hold.
    "I33, example": read({**EXAMPLE, **ONE_PATH}, {**WEIGHTS, **ANOTHER}, FILED),
    "I33, files": kept_out({**COMMON, **ONE_PATH}, {**WEIGHTS, **ANOTHER}, KEPT),
    # sgl-project/sglang#37160: requests carry a salt, and the store's names do not.
    "I38, example": Row(
        {**EXAMPLE, **TENANTS},
        {},
        10,
        "refuted",
        (("held", FILED + 128, 0), ("open", FILED, 0), ("held", FILED, 0), ("failed", 2 * 128, 0)),
        ("salt-dropped",),
    ),
    "I38, redis": Row(
        {**REDIS, **TENANTS},
        {},
        0,
        "proved",
        (("held", KEPT, 2), ("held", KEPT, 0), ("held", KEPT, 0), ("held", 0, 0)),
    ),
    # vllm-project/vllm#42125: an adapter is replaced under one name. It reads its own model's entries as well.
    "I34, files": Row(
        {**COMMON, **adapter("b")},
        adapter("c"),
        10,
        "refuted",
        (("held", KEPT + 128, 1), ("failed", KEPT + 128, 1), ("failed", KEPT + 128, 1)),
        ("adapter-swapped", "adapter-left-out"),
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_what_a_real_engine_does_with_old_entries(row: Row, rehearsed: Rehearse, tmp_path: Path) -> None:
    options = () if row.torn is None else ("--tear",)
    seen = rehearsed(*written(tmp_path, row.old, {**row.old, **row.new}), *options)
    found = seen.ran.code, seen.state(), seen.parts, seen.mistakes
    assert found == (row.code, row.state, row.parts, row.mistakes), seen.ran.out + seen.ran.err
    assert row.torn is None or seen.state("lifecycle-audit") == row.torn


def captured(folder: Path, name: str, model: Path, store: Path, flags: str) -> tuple[str, str]:
    """Capture a deployment from the line that starts it; return its folder, and the file with the line."""
    line = f"docker run {IMAGE} --model {model} --dtype bfloat16 --max-model-len 256 --block-size 32 --enforce-eager"
    kept = json.dumps(transfer("ExampleConnector", {"shared_storage_path": str(store)}))
    script = folder / f"{name}.sh"
    script.write_text(f"{line} --attention-backend CPU_ATTN --kv-transfer-config '{kept}' {flags}\n")
    sets = ("--set=cache.tenancy=null", "--set=inputs=null", "--no-config", "-q")
    ran = in_process("capture", str(model), "--from", str(script), *sets, "-o", str(folder / name))
    assert ran.code == 0, ran.err
    return name, str(script)


def test_an_override_in_the_launch_line_makes_old_entries_stale(rehearsed: Rehearse, tmp_path: Path) -> None:
    """vllm-project/vllm#56311 (I23): the weights and their config.json stay, and RoPE is scaled by a flag."""
    model = tmp_path / "model"
    write_model(model, 0)
    sides = []
    for name, factor in (("old", 1.0), ("new", 2.0)):
        rope = {"rope_parameters": {"rope_type": "linear", "factor": factor, "rope_theta": 1e6}}
        sides.append(captured(tmp_path, name, model, tmp_path / "kv", f"--hf-overrides '{json.dumps(rope)}'"))
    (old, first), (new, second) = sides
    seen = rehearsed(old, new, "--old-launch", first, "--new-launch", second)
    assert (seen.figures["model"], seen.figures["procedure"]) == ("real", "launch files")
    assert (seen.ran.code, seen.state(), seen.mistakes) == (10, "refuted", ("namespace-not-rolled",)), seen.ran.err
    assert seen.parts == (("held", FILED, 2), ("failed", FILED, 2), ("held", FILED, 0))
    assert list(tmp_path.glob("kv*")) == []  # where it stores in earnest


RUNNING = "the command", "vLLM", "an engine", "LMCache", "Redis", "what writes stand-ins"


def processes_that_store_in(scratch: Path) -> set[int]:
    """Return those that were told to keep temporary files there, and all that they have started."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={scratch}".encode() in (process / "environ").read_bytes():
                found.add(int(process.name))
    return found


def test_two_at_once_leave_each_other_alone_and_a_killed_one_leaves_nothing(
    engine: tuple[str, ...], rehearsed: Rehearse, tmp_path: Path
) -> None:
    """The other one is a process of its own, with servers and engines beneath it when it is killed."""
    scratch, elsewhere = tmp_path / "scratch", tmp_path / "elsewhere"
    scratch.mkdir()
    elsewhere.mkdir()
    row = ROWS["other weights, redis"]
    pair = written(elsewhere, row.old, {**row.old, **row.new})
    other = subprocess.Popen(
        [*COMMAND, "rehearse", *pair, *engine, "--evaluate", "256", "-o", "seen.json"],
        cwd=elsewhere,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(processes_that_store_in(scratch)) >= len(RUNNING), elsewhere / "seen.json")
        seen = rehearsed(*written(tmp_path, row.old, {**row.old, **row.new}))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert (seen.state(), seen.parts) == (row.state, row.parts)
    until(lambda: not processes_that_store_in(scratch), elsewhere / "seen.json")
    until(lambda: not list(scratch.iterdir()), elsewhere / "seen.json")
    left = json.loads((elsewhere / "seen.json").read_text())
    assert (left["kind"], left["state"]) == ("isolation", "not-run")
