"""A repository on a hub, through the client's own settings: a branch becomes a commit, and a cache will do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.conftest import Check, Kvgate
from tests.acceptance.releases import DECLARED, Checkpoints, serve
from tests.deployments.hub_server import Hub, Repository, serving

FIRST, SECOND = "a" * 40, "b" * 40
TOKEN = "hf_" + "n0tAnywhere" * 3
TOLD = [f"--set={path}={'null' if value is None else value}" for path, value in DECLARED.items()]


@pytest.fixture
def hub(checkpoints: Checkpoints, base: Path) -> Iterator[Hub]:
    changed = checkpoints.with_a_changed_byte("model.layers.0.self_attn.k_proj.weight")
    revisions = {
        commit: {path.name: path.read_bytes() for path in folder.iterdir()}
        for commit, folder in ((FIRST, base), (SECOND, changed))
    }
    with serving(Hub({"org/m": Repository(revisions, {"main": FIRST}, token=TOKEN)})) as running:
        yield running


def test_a_branch_is_pinned_and_moves(kvgate: Kvgate, check: Check, hub: Hub, tmp_path: Path) -> None:
    """The same words twice; in between the branch moves. Then without a network, from the cache."""
    (tmp_path / "serve.sh").write_text(serve(model="org/m"))
    online = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}

    def capture(name: str, **env: str) -> dict[str, Any]:
        arguments = ("org/m@main", "--from", "serve.sh", "--renderer", "here", *TOLD, "-o", name, "-q")
        ran = kvgate("capture", *arguments, env={**online, **env})
        assert (ran.code, ran.err) == (0, "")
        text = (tmp_path / name / "manifest.yaml").read_text()
        assert TOKEN not in text
        return dict(yaml.safe_load(text))

    old = capture("old")
    assert TOKEN in hub.tokens
    assert (old["weights"]["hub"]["repo"], old["weights"]["hub"]["commit"]) == ("org/m", FIRST)
    assert "files" not in old["weights"]["hub"], "nobody held what was hashed against them"
    assert old["tokenizer"]["path"] == f"org/m@{FIRST}"

    asked = len(hub.requests)
    offline = capture("offline", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert offline == old
    assert len(hub.requests) == asked
    assert (*check("old", "offline"),) == ("verified-compatible-reuse", 0, [])

    hub.repositories["org/m"].refs = {"main": SECOND}
    assert capture("new")["weights"]["hub"]["commit"] == SECOND
    assert (*check("old", "new"),) == ("new-namespace", 10, ["weights-changed"])


def test_offline_and_not_in_the_cache(kvgate: Kvgate, tmp_path: Path) -> None:
    ran = kvgate("capture", "org/m@main", "-o", "out", env={"HF_HOME": str(tmp_path / "home")})
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.splitlines()[0] == "error: org/m@main: is not in the cache, and the hub cannot be reached"
    assert len(ran.err.splitlines()) == 2
    assert not (tmp_path / "out").exists()
