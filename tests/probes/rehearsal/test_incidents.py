"""Public incidents, rehearsed by the command on pairs of their own; what the check then makes of the evidence.

I39 takes a connector's own code (tests/engines); here it is seen that nothing is claimed without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli import rehearsing
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.rules.namespace import derive
from tests.cli.conftest import in_process
from tests.probes.rehearsal.pairs import BASE, OFFLOAD, TENANTS, WEIGHTS, adapter
from tests.rules.clean import clean, data

Changes = dict[str, Any]
_SGLANG = {
    "cache.connector": "sglang-hicache-file",
    "cache.version": None,
    "cache.chunk_size": None,
    "engine.name": "sglang",
    "engine.version": "0.5.23",
    "engine.block_size": 64,
}


def _linear(factor: float) -> Changes:
    return {"model.config.rope_parameters": {"rope_type": "linear", "factor": factor, "rope_theta": 1000000.0}}


_INCIDENTS: dict[str, tuple[Changes, Changes, str, tuple[int, str]]] = {
    # vllm-project/vllm#56311: the override stands in the launch line, the checkpoint and the key are the same
    "I23": ({**OFFLOAD, **_linear(1.0)}, _linear(2.0), "namespace-not-rolled", (10, "new-namespace")),
    # sgl-project/sglang#24758: another path behind one served name, one storage folder
    "I33": (_SGLANG, {"model.id": "acme/other-8b", **WEIGHTS}, "namespace-not-rolled", (10, "new-namespace")),
    # vllm-project/vllm#42125: an adapter replaced under its name
    "I34": ({**OFFLOAD, **adapter("a")}, adapter("b"), "adapter-swapped", (10, "new-namespace")),
    # LMCache/LMCache#2961: adapters over a key that holds none: its own entries go wrong
    "I34 over LMCache": ({}, adapter("a"), "adapter-left-out", (30, "new-namespace")),
    # sgl-project/sglang#37160: the salt is honoured in memory, and not in the store's key (SGLang's holds it now)
    "I38": ({"cache.connector": "vllm-example", **TENANTS}, {}, "salt-dropped", (30, "clear")),
}


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch, child: Child) -> None:
    def shared(old: object, new: object, folders: object, *_options: object, **_more: object) -> object:
        return lambda: EmbeddedBackend(old, new, folders=folders, child=child)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsing, "_embedded", shared)


def _write(file: Path, *changes: Changes) -> str:
    merged = {name: value for change in (BASE, *changes) for name, value in change.items()}
    file.write_text(yaml.safe_dump(data(merged)))
    return str(file)


@pytest.mark.parametrize("incident", _INCIDENTS)
def test_an_incident_is_caught_and_named_and_the_check_says_what_helps(incident: str, tmp_path: Path) -> None:
    before, after, mistake, answer = _INCIDENTS[incident]
    old, new = _write(tmp_path / "old.yaml", before), _write(tmp_path / "new.yaml", before, after)
    evidence = str(tmp_path / "seen.json")
    seen = in_process("rehearse", old, new, "--evaluate", "1", "-o", evidence)
    assert (seen.code, f"{mistake}: " in seen.out) == (10, True), seen.out
    checked = in_process("check", old, new, "--evidence", evidence, "--quiet", "--declare", "clear")
    assert (checked.code, checked.out.strip()) == answer


def test_i23_with_the_namespace_rolled_is_no_incident(tmp_path: Path) -> None:
    before, after, _, _ = _INCIDENTS["I23"]
    merged = {**BASE, **before, **after}
    rolled = {**after, "cache.namespace": derive(clean(merged)).id}
    old, new = _write(tmp_path / "old.yaml", before), _write(tmp_path / "new.yaml", before, rolled)
    evidence = str(tmp_path / "seen.json")
    assert in_process("rehearse", old, new, "--evaluate", "1", "-o", evidence, "-q").out == "proved\n"
    assert in_process("check", old, new, "--evidence", evidence, "--quiet").code == 0


def test_i39_is_not_proved_without_the_code_that_would_notice_it(tmp_path: Path) -> None:
    """LMCache/LMCache#4991: a store that failed half-way is visible; whether it is read is up to the connector."""
    same = _write(tmp_path / "same.yaml")
    ran = in_process("rehearse", same, same, "--tear", "--evaluate", "1", "-o", str(tmp_path / "seen.json"))
    assert (ran.code, ran.out.splitlines()[-1]) == (11, "inconclusive"), ran.out
    kinds = {name: json.loads((tmp_path / name).read_text()) for name in ("seen.json", "seen.lifecycle-audit.json")}
    assert [(one["kind"], one["state"]) for one in kinds.values()] == [
        ("isolation", "proved"),
        ("lifecycle-audit", "inconclusive"),
    ]
