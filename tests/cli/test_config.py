"""Where configuration is looked for, and what it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.cli.config import find_config
from kvgate.rules.errors import InputError
from tests.cli.conftest import MakeManifest, Run

ACCEPT = "check: {accept: [new-namespace]}\n"
TOML = '[project]\nname = "x"\n\n[tool.kvgate.check]\naccept = ["new-namespace"]\n'


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder two levels below the root of a repository."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    below = tmp_path / "repo" / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return below


def accepts() -> list[str]:
    return find_config(None, none=False).check.accept


@pytest.mark.usefixtures("inside")
def test_nothing_is_configured_where_there_is_no_file() -> None:
    assert accepts() == []


@pytest.mark.parametrize("folder", [".", "..", "../.."])
def test_the_nearest_file_up_to_the_root_of_the_repository_counts(inside: Path, folder: str) -> None:
    (inside / folder / "kvgate.yaml").write_text(ACCEPT)
    assert accepts() == ["new-namespace"]


def test_nothing_is_read_above_the_root_of_the_repository(inside: Path) -> None:
    (inside / "../../../kvgate.yaml").write_text(ACCEPT)
    assert accepts() == []


def test_the_nearer_file_wins_and_the_yaml_file_before_the_table(inside: Path) -> None:
    (inside / "../kvgate.yaml").write_text("check: {accept: [clear]}\n")
    assert accepts() == ["clear"]
    (inside / "pyproject.toml").write_text(TOML)
    assert accepts() == ["new-namespace"]
    (inside / "kvgate.yaml").write_text("check: {accept: [verified-compatible-reuse]}\n")
    assert accepts() == ["verified-compatible-reuse"]


def test_a_pyproject_without_the_table_is_passed_by(inside: Path) -> None:
    (inside / "pyproject.toml").write_text("[tool.kvgates]\nx = 1\n")
    (inside / "../kvgate.yaml").write_text(ACCEPT)
    assert accepts() == ["new-namespace"]


def test_paths_are_those_of_the_file(inside: Path) -> None:
    (inside / "../kvgate.yaml").write_text("check: {waivers: w.yaml}\n")
    found = find_config(None, none=False)
    assert Path(found.path("w.yaml")).resolve() == (inside / "../w.yaml").resolve()


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("kvgate.yaml", "check:\n  rules: default\n  waver: w\n", "kvgate.yaml:3: check.waver: unknown key"),
        ("kvgate.yaml", "checks: {}\n", "kvgate.yaml:1: checks: unknown key"),
        ("kvgate.yaml", "check: {accept: new-namespace}\n", "kvgate.yaml:1: check.accept: "),
        ("kvgate.yaml", "capture:\n  set: [a]\n", "kvgate.yaml:2: capture.set: "),
        ("kvgate.yaml", "a: 1\na: 2\n", "stands twice"),
        ("pyproject.toml", "[tool.kvgate]\n\n[tool.kvgate.check]\nwaver = 1\n", "pyproject.toml:4: check.waver"),
        ("pyproject.toml", "[tool.kvgate\n", "not valid TOML"),
    ],
)
def test_mistakes_name_file_and_line(inside: Path, name: str, content: str, where: str) -> None:
    (inside / name).write_text(content)
    with pytest.raises(InputError) as caught:
        accepts()
    assert where in str(caught.value)


def test_the_command_line_wins(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    names = manifest("old.yaml"), manifest("new.yaml", {"precision.kv_cache": "fp8_e4m3"})
    assert run("check", *names).code == 10
    (tmp_path / "kvgate.yaml").write_text(ACCEPT)
    assert run("check", *names).code == 0
    assert run("check", *names, "--accept", "clear").code == 10
    assert run("check", *names, "--no-config").code == 10
    (tmp_path / "other.yaml").write_text("check: {strategy: recreate, rules: token-keyed}\n")
    ran = run("check", *names, "--config", "other.yaml")
    assert ran.code == 10
    assert "rules token-keyed; recreate" in ran.out
    assert (
        "rules default; rolling"
        in run("check", *names, "--config", "other.yaml", "--rules", "default", "--strategy", "rolling").out
    )


def test_evidence_of_the_command_line_is_beside_what_is_configured(
    run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    names = manifest("old.yaml"), manifest("new.yaml")
    (tmp_path / "known").mkdir()
    for name, kind, state in (("known/bad", "bypass-diff", "refuted"), ("more", "inventory", "not-run")):
        evidence = {"schema": "kvgate/evidence/v1", "kind": kind, "state": state, "new": {"sections": {}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(evidence))
    (tmp_path / "kvgate.yaml").write_text("check: {evidence: [known]}\n")
    alone = run("check", *names)
    assert alone.code == 10
    assert run("check", *names, "--evidence", "more.json").code == 10
    assert run("check", *names, "--evidence", "more.json", "--no-config").code == 0
    assert run("check", *names, "--evidence", "known/bad.json").out == alone.out  # named twice, it is read once
    (tmp_path / "kvgate.yaml").write_text("check: {evidence: [more.json]}\n")
    assert run("check", *names).code == 0


def test_conversations_of_the_command_line_are_beside_what_is_configured(
    run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    names = manifest("old.yaml"), manifest("new.yaml")
    (tmp_path / "kvgate.yaml").write_text("check: {corpus: [ours.jsonl]}\n")
    (tmp_path / "more.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    assert run("check", *names, "--corpus", "more.jsonl").err.startswith("error: ours.jsonl")
    (tmp_path / "ours.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    ran = run("check", *names, "--corpus", "more.jsonl", "--corpus", "./ours.jsonl", "-o", "json")
    assert [one["path"] for one in json.loads(ran.out)["predicate"]["sources"]["corpora"]] == [
        "ours.jsonl",
        "more.jsonl",
    ]
