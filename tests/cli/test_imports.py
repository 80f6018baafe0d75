"""What the quick commands leave alone: measured in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import MakeManifest, environment

# Typer carries its own click.
HEAVY = {
    *("transformers", "tokenizers", "torch", "numpy", "safetensors"),
    *("deepdiff", "huggingface_hub", "jinja2", "click"),
}

PROGRAM = """
import sys
sys.argv = ["kvgate", *sys.argv[1:]]
from kvgate.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
print("\\n".join(sorted(sys.modules)), file=sys.stderr)
raise SystemExit(code)
"""


def modules(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"], ["corpus", "--help"]])
def test_help_loads_nothing_that_decides(tmp_path: Path, arguments: list[str]) -> None:
    code, loaded = modules(tmp_path, *arguments)
    assert code == 0
    assert "kvgate.cli.main" in loaded
    assert {name for name in loaded if name.startswith("kvgate.rules.")} == {"kvgate.rules.errors"}
    assert not loaded & {*HEAVY, "yaml", "rich"}


def test_a_check_of_equal_manifests_loads_nothing_heavy(tmp_path: Path, manifest: MakeManifest) -> None:
    code, loaded = modules(tmp_path, "check", manifest("old.yaml"), manifest("new.yaml"))
    assert code == 0
    assert "kvgate.rules.decide" in loaded
    assert not loaded & HEAVY


def test_what_is_watched_for_would_be_seen(tmp_path: Path, manifest: MakeManifest) -> None:
    code, loaded = modules(
        tmp_path, "check", manifest("old.yaml"), manifest("new.yaml", {"precision.compute": "float16"})
    )
    assert code == 10
    assert "deepdiff" in loaded
