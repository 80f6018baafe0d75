"""No output lands on an input, whatever names and links lead there; every input is still as it was."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.cli.conftest import MakeManifest, Run

CAPTURED = {"tokenizer.path": "model", "tokenizer.files": {"tokenizer.json": "blake3:" + "1" * 64}}


@pytest.fixture
def inputs(manifest: MakeManifest, tmp_path: Path) -> dict[str, list[str]]:
    """Write one input of each kind, and return what names it on the command line."""
    for folder in ("old", "model", "evidence"):
        (tmp_path / folder).mkdir()
    side = tmp_path / "old" / "tokens.jsonl"
    side.write_text("{}\n")
    sha256 = f"sha256:{hashlib.sha256(side.read_bytes()).hexdigest()}"
    snapshot = {"file": side.name, "sha256": sha256, "corpus": "diagnostic@0"}
    manifest("old/manifest.yaml", {**CAPTURED, "tokenizer.snapshot": snapshot})
    manifest("new.yaml")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    for name in ("evidence/e.json", "waivers.yaml", "rules.yaml", "corpus.jsonl", "config.yaml"):
        (tmp_path / name).write_text("{}\n")
    return {
        "old/manifest.yaml": [],
        "old/tokens.jsonl": [],
        "model/tokenizer.json": [],
        "new.yaml": [],
        "evidence/e.json": ["--evidence", "evidence"],
        "waivers.yaml": ["--waivers", "waivers.yaml"],
        "rules.yaml": ["--rules", "rules.yaml"],
        "corpus.jsonl": ["--corpus", "corpus.jsonl"],
        "config.yaml": ["--config", "config.yaml"],
    }


FILES = ["old/manifest.yaml", "old/tokens.jsonl", "model/tokenizer.json", "new.yaml", "evidence/e.json",
         "waivers.yaml", "rules.yaml", "corpus.jsonl", "config.yaml"]  # fmt: skip


@pytest.mark.parametrize("way", ["name", "detour", "symbolic link", "hard link"])
@pytest.mark.parametrize("file", FILES)
def test_a_check_does_not_overwrite_what_it_reads(
    run: Run, inputs: dict[str, list[str]], tmp_path: Path, file: str, way: str
) -> None:
    before = (tmp_path / file).read_bytes()
    output = {"name": file, "detour": f"old/../{file}"}.get(way, "link")
    if way == "symbolic link":
        (tmp_path / "link").symlink_to(tmp_path / file)
    elif way == "hard link":
        os.link(tmp_path / file, tmp_path / "link")
    ran = run("check", "old", "new.yaml", *inputs[file], "-o", f"json={output}")
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {output}: would overwrite {file}, which is an input" in ran.err
    assert (tmp_path / file).read_bytes() == before


def test_a_check_writes_beside_its_inputs_and_over_its_own_reports(
    run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    manifest("old/manifest.yaml")
    manifest("new.yaml")
    for _ in range(2):
        assert run("check", "old", "new.yaml", "-o", "json=old/record.json", "-o", "text=default").code == 0
    assert (tmp_path / "old" / "record.json").exists()


@pytest.mark.parametrize("option", ["--from", "--chat-template", "--config"])
def test_a_capture_does_not_overwrite_what_it_reads(run: Run, tmp_path: Path, option: str) -> None:
    (tmp_path / "serve.yaml").write_text("{}\n")
    (tmp_path / "model").mkdir()
    ran = run("capture", "model", option, "serve.yaml", "-o", "serve.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "would overwrite serve.yaml, which is an input" in ran.err
    assert (tmp_path / "serve.yaml").read_text() == "{}\n"


@pytest.mark.parametrize("option", ["--corpus", "--chat-template"])
def test_a_snapshot_does_not_overwrite_what_it_reads(run: Run, tmp_path: Path, option: str) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    (tmp_path / "model").mkdir()
    ran = run("corpus", "snapshot", "model", option, "in.jsonl", "-o", "in.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert (tmp_path / "in.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize("name", ["manifest.yaml", "weights.jsonl", "tokens.jsonl", "served-3.jsonl"])
def test_a_capture_into_a_folder_spares_the_launch_file_in_it(run: Run, tmp_path: Path, name: str) -> None:
    """A Kubernetes manifest is often called manifest.yaml, and lies where one works."""
    (tmp_path / name).write_text("kind: Deployment # kvgate/manifest/v1\n")
    ran = run("capture", "model", "--from", name, "-o", ".")
    assert (ran.code, ran.out) == (2, "")
    assert f"would overwrite {name}, which is an input" in ran.err
