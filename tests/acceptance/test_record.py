"""The decision record: it verifies, a changed byte in any of its inputs fails, and it is the same in every process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.acceptance.conftest import Capture, Kvgate, run_kvgate
from tests.acceptance.releases import Checkpoints

INVENTORY = """\
{"schema": "kvgate/evidence/v1", "kind": "inventory", "state": "inconclusive", "new": {"sections": {}},
 "reason": "the store could not be listed"}
"""


@pytest.fixture(scope="session")
def original(capture: Capture, checkpoints: Checkpoints, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two releases, evidence, and the record of the check of both; nobody changes it."""
    folder = tmp_path_factory.mktemp("decided")
    changed = checkpoints.with_a_changed_byte("model.layers.2.self_attn.k_proj.weight")
    shutil.copytree(capture(base), folder / "old")
    shutil.copytree(capture(changed), folder / "new")
    (folder / "inventory.json").write_text(INVENTORY)
    ran = run_kvgate(folder, "check", "old", "new", "--evidence", "inventory.json", "-o", "json=record.json", "-q")
    assert (ran.code, ran.out) == (10, "new-namespace\n")
    return folder


@pytest.fixture
def decided(original: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test to change."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_it_verifies(kvgate: Kvgate, decided: Path) -> None:
    ran = kvgate("record", "verify", "record.json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("verified")
    assert "weights-changed" in kvgate("record", "show", "record.json").out
    assert json.loads((decided / "record.json").read_text())["subject"][0]["name"] == "new/manifest.yaml"


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("old/manifest.yaml", "support-assistant", "support-assistent"),
        ("new/manifest.yaml", "H200", "H100"),
        ("old/weights.jsonl", "k_proj", "k_prob"),
        ("new/weights.jsonl", "k_proj", "k_prob"),
        ("inventory.json", "could not", "could now"),
        ("record.json", '"accepted":false', '"accepted":true '),
        ("record.json", '"verdict":"new-namespace"', '"verdict":"nev-namespace"'),
        ("record.json", '"exitCode":10', '"exitCode":11'),
        ("record.json", '"enforced"', '"enforcer"'),
        ("record.json", "{", " {"),
    ],
)
def test_a_changed_byte_is_found_and_named(kvgate: Kvgate, decided: Path, file: str, before: str, after: str) -> None:
    path = decided / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    ran = kvgate("record", "verify", "record.json")
    assert (ran.code, ran.out) == (3, "")
    assert all(part in ran.err for part in Path(file).parts)
    assert all(line.startswith(("error: ", "hint: ")) for line in ran.err.splitlines())


def test_a_changed_snapshot_is_found_and_named(kvgate: Kvgate, decided: Path) -> None:
    path = decided / "new" / "tokens.jsonl"
    path.write_text(path.read_text().replace("0", "1", 1))
    ran = kvgate("record", "verify", "record.json")
    assert (ran.code, ran.out) == (3, "")
    assert "tokens.jsonl" in ran.err


def test_the_same_bytes_in_every_process(decided: Path) -> None:
    expected = (decided / "record.json").read_bytes()
    for seed, columns in (("0", "80"), ("4242", "200")):
        run_kvgate(
            *(decided, "check", "old", "new", "--evidence", "inventory.json", "-o", f"json={seed}.json", "-q"),
            env={"PYTHONHASHSEED": seed, "COLUMNS": columns, "TZ": "Pacific/Kiritimati"},
        )
        assert (decided / f"{seed}.json").read_bytes() == expected


def test_a_copy_of_the_folder_written_in_another_order_gives_the_same_bytes(decided: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("inventory.json", "new/tokens.jsonl", "old/weights.jsonl", "new/manifest.yaml", "old/tokens.jsonl"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(decided / name, copy / name)
    for name in ("old/manifest.yaml", "new/weights.jsonl"):
        shutil.copy(decided / name, copy / name)
    arguments = ("check", "old/manifest.yaml", "new/manifest.yaml", "--evidence", "inventory.json")
    run_kvgate(copy, *arguments, "-o", "json=record.json", "-q")
    assert (copy / "record.json").read_bytes() == (decided / "record.json").read_bytes()
