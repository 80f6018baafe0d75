"""``kvgate rehearse``: what it prints, writes and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kvgate.checking import check
from kvgate.cli import rehearsing
from kvgate.cli.commands import rehearse as module
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.rules.errors import InputError, UsageError
from tests.probes.rehearsal.pairs import BASE, ROLLED, WEIGHTS
from tests.rules.clean import data


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Child) -> tuple[str, str]:
    def shared(old: object, new: object, folders: object, _options: object) -> object:
        return lambda: EmbeddedBackend(old, new, folders=folders, child=child)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsing, "_embedded", shared)
    monkeypatch.setenv("COLUMNS", "200")
    paths = []
    for name, changes in (("old", {}), ("new", WEIGHTS)):
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(data({**BASE, **changes})))
    return str(paths[0]), str(paths[1])


def test_a_refuted_rehearsal_is_named_and_check_takes_it(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "seen.json"
    assert module.rehearse(*pair, output=written, evaluate=2) == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "refuted"
    assert "control: held  with the boundary taken away the stale entry is hit, and the output is wrong" in lines
    assert "  namespace-not-rolled: cache.namespace is the same on both sides" in lines
    assert json.loads((tmp_path / "seen.kv-equivalence.json").read_text())["state"] == "inconclusive"
    found = check(*pair, evidence=[written])
    assert "refuted-rehearsal" in [finding.rule for finding in found.decision.findings]


def test_a_proof_ends_with_zero_and_says_what_it_stands_on(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled = tmp_path / "rolled.yaml"
    rolled.write_text(yaml.safe_dump(data({**BASE, **WEIGHTS, **ROLLED})))
    assert module.rehearse(pair[0], str(rolled), evaluate=2) == 0
    out = capsys.readouterr().out
    assert out.endswith("proved\n")
    assert "tiny stand-ins with random weights" in out
    assert "the plan: no launch file was started" in out


def test_what_could_not_run_is_no_pass(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = tmp_path / "unknown.yaml"
    unknown.write_text(yaml.safe_dump(data({**BASE, "cache.version": "9.9"})))
    assert module.rehearse(pair[0], str(unknown), quiet=True) == 11
    assert capsys.readouterr().out == "not-run\n"


def test_the_real_model_is_only_what_the_manifest_says(pair: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint folder"):
        module.rehearse(*pair, model="real")
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(InputError):
        module.rehearse(*pair, old_model=tmp_path)
    with pytest.raises(UsageError, match="not one of"):
        module.rehearse(*pair, model="imaginary")
    with pytest.raises(UsageError, match="overwrite"):
        module.rehearse(*pair, output=Path(pair[0]))
