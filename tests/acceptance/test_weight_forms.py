"""Weights that nobody fetched, and weights that are no safetensors: from the command to the verdict."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.acceptance.conftest import Check, Kvgate
from tests.acceptance.releases import DECLARED, Checkpoints, serve
from tests.deployments.hub_server import Hub, Repository, serving

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
TOLD = [f"--set={path}={'null' if value is None else value}" for path, value in DECLARED.items()]
OLD, PROSE, CHANGED = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """The folder in which :func:`_capture` captures, with the engine's launch line for ``org/m``."""
    (tmp_path / "serve.sh").write_text(serve(model="org/m"))
    return tmp_path


def _capture(kvgate: Kvgate, model: str | Path, name: str, *more: str, **env: str) -> None:
    ran = kvgate("capture", model, "--from", "serve.sh", "--renderer", "here", *TOLD, *more, "-o", name, "-q", env=env)
    assert (ran.code, ran.err) == (0, "")


def test_a_hub_says_enough_of_weights_that_did_not_change(
    kvgate: Kvgate, check: Check, checkpoints: Checkpoints, base: Path, captured: Path
) -> None:
    changed = checkpoints.with_a_changed_byte("model.layers.0.self_attn.k_proj.weight")
    files = {path.name: path.read_bytes() for path in base.iterdir()}
    revisions = {
        OLD: files,
        PROSE: {**files, "README.md": b"words"},
        CHANGED: {path.name: path.read_bytes() for path in changed.iterdir()},
    }
    with serving(Hub({"org/m": Repository(revisions, {"main": OLD})})) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(captured / "home"), "HF_HUB_OFFLINE": "0"}

        def capture(commit: str, name: str, *more: str) -> None:
            (captured / "serve.sh").write_text(serve("--revision", commit, model="org/m"))
            _capture(kvgate, f"org/m@{commit}", name, *more, **env)

        for commit, name in ((OLD, "old"), (PROSE, "prose"), (CHANGED, "changed")):
            capture(commit, name, "--no-weights")
        assert not [path for verb, path in hub.requests if verb == "GET" and path.endswith(".safetensors")]
        capture(OLD, "read")
    answer = check("old", "prose")
    assert (answer.verdict, answer.code) == (REUSE, 0)
    for old, new in (("old", "changed"), ("read", "prose")):  # what was read is not what a hub publishes under its name
        answer = check(old, new)
        assert (answer.verdict, answer.code) == (NEW, 11)
        assert answer.finding("weights-changed")["unverified"]


def _gguf(path: Path, base: float) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_rope_freq_base(base)
    writer.add_tensor("blk.0.attn_k.weight", np.ones((2, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_model_whose_rotary_base_changed(kvgate: Kvgate, check: Check, captured: Path) -> None:
    """Equal tensors, other keys and values: the metadata is configuration."""
    (captured / "serve.sh").write_text(serve(model="/models/m.gguf"))
    for name, base in (("old", 10000.0), ("new", 500000.0)):
        (captured / name).mkdir()
        _capture(kvgate, _gguf(captured / name / "m.gguf", base), f"{name}.yaml")
    answer = check("old.yaml", "new.yaml")
    assert (answer.verdict, answer.code) == (NEW, 10)
    changed = {change["path"] for change in answer.predicate["changes"]}
    assert "weights.checkpoint.digest" not in changed
    assert any(path.startswith("model.config") for path in changed)
