"""Commands that ask running servers, interrupted in the midst of it: no half proof is left, and no earlier one."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_interruptions import ENDING
from tests.cli.conftest import COMMAND, SECONDS, MakeManifest, Run, environment
from tests.corpora.engine_server import Answer, Engine, serving

from .test_bypass import COMPLETION, read
from .toy import Toy

AFTER = 6  # questions that are answered before the interrupt


@contextmanager
def stopping() -> Iterator[tuple[str, threading.Event]]:
    """Serve, and say when the server has come to a question that it will not answer any more."""
    count, reached, over = itertools.count(), threading.Event(), threading.Event()
    toy = Toy()
    known = {"/version": {"version": "0.33.0"}, "/v1/models": {"data": [{"id": "support", "parent": None}]}}

    def answer(method: str, path: str, body: Any) -> Answer:
        if path in known:
            return 200, known[path]
        if next(count) >= AFTER:
            reached.set()
            over.wait(SECONDS)
        return toy.answer(method, path, body)

    with serving(Engine(answer)) as engine:
        yield engine.url, reached
        over.set()


Arguments = Callable[[str], tuple[str, ...]]
EVIDENCE = ("--manifest", "new.yaml", "-o", "found.json")
COMMANDS: dict[str, Arguments] = {
    "bypass": lambda url: ("bypass", "--endpoint", url, "--requests", "requests.jsonl", *EVIDENCE),
    "canary probe": lambda url: ("canary", "probe", "--endpoint", url, *EVIDENCE),
    "record verify": lambda url: ("record", "verify", "record.json", "--endpoint", url),
    "rehearse": lambda url: (
        *("rehearse", "new.yaml", "new.yaml", "--backend", "endpoint", "--settle", "0", "-o", "found.json"),
        *("--old-endpoint", url, "--new-endpoint", url.replace("127.0.0.1", "localhost")),
    ),
}


@pytest.mark.parametrize(("command", "number"), [*zip(COMMANDS, itertools.cycle(ENDING), strict=False)])
def test_an_interrupt_leaves_no_proof(
    command: str, number: signal.Signals, run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    manifest("new.yaml")
    read(tmp_path, *[{**COMPLETION, "custom_id": str(each)} for each in range(9)])
    assert run("check", "new.yaml", "new.yaml", "-o", "json=record.json", "--no-config", "-q").code == 0
    (tmp_path / "found.json").write_text('{"state": "proved"}')
    with stopping() as (url, reached):
        started = subprocess.Popen(
            [*COMMAND, *COMMANDS[command](url)],
            cwd=tmp_path,
            env=environment({"TMPDIR": str(tmp_path)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )
        assert reached.wait(SECONDS) or started.poll() is None, started.communicate()[1]
        started.send_signal(number)
        out, err = started.communicate(timeout=SECONDS)
    assert (started.returncode, out) == (128 + number, b""), err
    assert err.endswith(ENDING[number] + b": nothing was left half-written\n"), err
    if command != "record verify":
        assert json.loads((tmp_path / "found.json").read_text())["state"] == "not-run"
    left = {"new.yaml", "record.json", "requests.jsonl", "found.json", "found.kv-equivalence.json"}
    assert {path.name for path in tmp_path.iterdir()} <= left


def test_answers_that_never_end_leave_no_proof(manifest: MakeManifest, tmp_path: Path) -> None:
    manifest("new.yaml")
    marker = {"tenant": "acme", "reference": f"kvc1-{'a' * 26}"}
    (tmp_path / "canaries.jsonl").write_text(json.dumps(marker) + "\n")
    (tmp_path / "found.json").write_text('{"state": "proved"}')
    started = subprocess.Popen(
        [*COMMAND, "canary", "check", "canaries.jsonl", "-", *EVIDENCE, "-q"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert started.stdin is not None
    line = json.dumps({"tenant": "acme", "response": marker["reference"]}).encode() + b"\n"
    started.stdin.write(line * (1 << 14))  # more than a pipe holds, so that it is being read
    started.stdin.flush()
    started.send_signal(signal.SIGINT)
    assert started.wait(SECONDS) == 130, started.stderr
    started.stdin.close()
    assert json.loads((tmp_path / "found.json").read_text())["state"] == "not-run"
