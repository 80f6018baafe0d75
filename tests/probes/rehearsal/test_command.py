"""``kvgate rehearse``: what it prints, writes and ends with."""

from __future__ import annotations

import inspect
import json
import shlex
from pathlib import Path

import pytest
import yaml

from kvgate.cli import rehearsing
from kvgate.cli.commands import rehearse as module
from kvgate.cli.rehearsal_files import command_of
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.rules.errors import InputError, UsageError
from tests.cli.conftest import in_process
from tests.probes.rehearsal.pairs import BASE, ROLLED, WEIGHTS
from tests.rules.clean import data


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Child) -> tuple[str, str]:
    def shared(old: object, new: object, folders: object, _options: object) -> object:
        return lambda: EmbeddedBackend(old, new, folders=folders, child=child)  # type: ignore[arg-type]

    monkeypatch.setattr(rehearsing, "_embedded", shared)
    monkeypatch.setenv("COLUMNS", "9999")
    paths = []
    for name, changes in (("old", {}), ("new", WEIGHTS)):
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(data({**BASE, **changes})))
    return str(paths[0]), str(paths[1])


def test_the_loop_after_a_refuted_rehearsal(pair: tuple[str, str], tmp_path: Path) -> None:
    """Red, and the mistake is named; the namespace is edited; rehearsed again, and the check accepts."""
    old, new = pair
    first, second, edited = (str(tmp_path / name) for name in ("first.json", "second.json", "edited.yaml"))
    seen = in_process("rehearse", old, new, "--evaluate", "2", "-o", first)
    assert (seen.code, seen.out.splitlines()[-1]) == (10, "refuted")
    assert "control: held" in seen.out
    assert "namespace-not-rolled: cache.namespace is the same on both sides" in seen.out
    assert f"--evaluate 2 -o AGAIN.json --supersedes {first}" in seen.out
    assert json.loads((tmp_path / "first.kv-equivalence.json").read_text())["state"] == "inconclusive"
    refused = in_process("check", old, new, "--evidence", first)
    assert (refused.code, "kvgate rehearse" in refused.out) == (10, True)
    named = in_process("namespace", new, "--quiet").out.strip()
    Path(edited).write_text(yaml.safe_dump(data({**BASE, **WEIGHTS, "cache.namespace": named})))
    alone = in_process("check", old, edited, "--evidence", first)
    assert (alone.code, "Show that what was rehearsed before" in alone.out) == (10, True)
    again = ("rehearse", old, edited, "--evaluate", "2", "--supersedes", first, "-o")
    assert "would overwrite" in in_process(*again, first).err
    lost = in_process("rehearse", old, edited, "-o", first)
    assert (lost.code, f"--supersedes {first}" in lost.err) == (2, True)
    ran = in_process(*again, second)
    assert (ran.code, f"answers {first}" in ran.out) == (0, True)
    accepted = in_process("check", old, edited, "--evidence", first, "--evidence", second)
    assert accepted.code == 0
    assert "a proof answers it" in accepted.out
    assert "answers what was refuted" in accepted.out
    assert "about other deployments (cache), and decided" in in_process("check", old, new, "--evidence", second).out


def test_a_proof_of_less_answers_nothing_and_what_is_no_refutation_is_refused(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    old, new = pair
    rolled, first, second = (str(tmp_path / name) for name in ("rolled.yaml", "first.json", "second.json"))
    Path(rolled).write_text(yaml.safe_dump(data({**BASE, **WEIGHTS, **ROLLED})))
    assert in_process("rehearse", old, new, "--evaluate", "2", "-o", first, "-q").code == 10
    ran = in_process("rehearse", old, rolled, "--evaluate", "1", "--supersedes", first, "-o", second)
    said = " ".join(ran.out.split())
    assert (ran.code, "does not answer" in said, "prompts were asked" in said) == (0, True, True)
    assert json.loads(Path(second).read_text())["supersedes"] == []
    proof = in_process("rehearse", old, rolled, "--supersedes", second)
    assert (proof.code, "nothing that this can answer" in proof.err) == (3, True)
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(data({**BASE, "engine.version": "0.32.0"})))
    stranger = in_process("rehearse", old, str(other), "--supersedes", first)
    assert (stranger.code, "about other deployments" in stranger.err) == (3, True)


_PARAMETERS = inspect.signature(module.rehearse).parameters


@pytest.mark.parametrize("name", sorted(_PARAMETERS.keys() - {"old", "new"}))
def test_the_command_in_evidence_makes_it_again(name: str) -> None:
    """Every option that changes what is seen is in it, also one that comes later."""
    given = {one: parameter.default for one, parameter in _PARAMETERS.items()} | {"old": "a b", "new": "c"}
    values = ["x y", "z"] if "list" in str(_PARAMETERS[name].annotation) else ["x y"]
    given[name] = values if len(values) > 1 else values[0]
    told = [word for one in values for word in (f"--{name.replace('_', '-')}", one)]
    unseen = name in ("output", "quiet", "no_color", "debug")
    assert shlex.split(command_of(module.rehearse, given)) == [
        *("kvgate", "rehearse", "a b", "c"),
        *([] if unseen else told),
    ]


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
    with pytest.raises(UsageError, match=r"'json' is no FILE\.json"):
        module.rehearse(*pair, output=Path("json"))
