"""Whatever ends a rehearsal: no process, no folder and no half a proof is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.probes.rehearsal.rehearse import rehearse
from tests.probes.rehearsal.conftest import SMALL, Rehearse
from tests.probes.rehearsal.pairs import BASE, WEIGHTS, deployment, own_key
from tests.rules.clean import data

_SECONDS = 120  # until something has happened; a guard, not an expectation


def _until(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + _SECONDS
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


def _interruptible() -> None:
    """Take interrupts: what a shell starts in the background inherits that they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_proof(number: int, code: int, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(data(BASE)))
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(data({**BASE, **WEIGHTS})))
    (tmp_path / "e.json").write_text('{"state": "proved"}')
    running = subprocess.Popen(
        [sys.executable, "-m", "kvgate.cli.main", "rehearse", "old.yaml", "new.yaml", "-o", "e.json"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
        preexec_fn=_interruptible,
    )
    # Its own folder: the standard library tries a place with a file of its own first.
    assert _until(lambda: bool(list(scratch.glob("kvgate-rehearsal-*"))))
    running.send_signal(number)
    assert running.wait(_SECONDS) == code
    assert list(scratch.iterdir()) == []
    for name, kind in (("e.json", "isolation"), ("e.kv-equivalence.json", "kv-equivalence")):
        left = json.loads((tmp_path / name).read_text())
        assert (left["kind"], left["state"]) == (kind, "not-run")


_HOLDS_ONE = """
import sys
from kvgate.probes.embedded.child import Child
child = Child()
print(child._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_takes_process_and_folder_with_it(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert len(list(tmp_path.iterdir())) == 1
    parent.kill()
    parent.wait()
    assert _until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())
    assert _until(lambda: not list(tmp_path.iterdir()))


def test_a_model_process_that_dies_is_no_proof() -> None:
    running = Child()
    assert running._process is not None
    folder = running.scratch
    os.kill(running._process.pid, signal.SIGKILL)
    one = deployment()
    seen = rehearse(one, one, lambda: EmbeddedBackend(one, one, child=running), size=SMALL)
    assert (seen.state, seen.control.state) == ("not-run", "not-run")
    assert "SIGKILL" in seen.reason
    assert not folder.exists()


def test_one_that_does_not_answer_is_ended() -> None:
    running = Child(seconds=0.2)
    with pytest.raises(CannotStageError, match="no answer within"):
        running.ask({"op": "versions"})
    with pytest.raises(CannotStageError, match="closed"):
        running.ask({"op": "versions"})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "no-such-model"}, "no model of the type 'no-such-model'"),
        ({"model_type": "gpt2", "n_positions": 10**11}, "not every size in the config of a 'gpt2' is known"),
        ({"model_type": "llama", "hidden_size": "wide"}, "no config of a 'llama'"),
        ({"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}, "more than keys and values"),
        ({"model_type": "qwen2_vl_text", "hidden_size": 64}, "no language model of the type 'qwen2_vl_text' stands by"),
    ],
)
def test_a_model_that_cannot_be_built_is_no_proof(config: dict[str, object], words: str, rehearsed: Rehearse) -> None:
    one = deployment(own_key("model.id", "token_ids"), {"model.config": config, "model.config_class": None})
    seen = rehearsed(one, one)
    assert seen.state == "not-run"
    assert re.search(words, seen.reason)
