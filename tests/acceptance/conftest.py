"""The command on real files: as a process, but for checks, of which there are many and ``tests/cli/test_process.py``
shows that one in this process is as good. Captures are shared, since most tests are about what follows them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.releases import DECLARED, Checkpoints, serve
from tests.cli.conftest import in_process

KVGATE = str(Path(sys.executable).with_name("kvgate"))
SECONDS = 60
# How far the work is, is said after two seconds, which a busy machine may take for anything.
PROGRESS = re.compile(
    r"(?!error|warning|note|hint)[a-z, ]+: [0-9][0-9.,]*( [A-Za-z]+)?( of [0-9][0-9.,]*( [A-Za-z]+)?)?"
)
FORGET = object()
"""As a value of an edit: the field is left out of the manifest, and so unknown."""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Answer:
    """What a check said, the same in its exit code, its report and its record."""

    verdict: str
    code: int
    predicate: dict[str, Any]
    report: str

    @property
    def rules(self) -> list[str]:
        """The rules of all findings."""
        return sorted(finding["rule"] for finding in self.predicate["findings"])

    @property
    def open(self) -> list[str]:
        """The rules of the findings of which an obligation is met by nothing."""
        return sorted(
            finding["rule"] for finding in self.predicate["findings"] if set(finding["obligations"]) - {*finding["met"]}
        )

    def finding(self, rule: str) -> dict[str, Any]:
        """The one finding of a rule."""
        (found,) = [finding for finding in self.predicate["findings"] if finding["rule"] == rule]
        return dict(found)

    def __iter__(self) -> Iterator[Any]:
        """Verdict, exit code, rules: what a test states of every check."""
        return iter((self.verdict, self.code, self.rules))


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without the caller's terminal and without a hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM") and not name.startswith("HF_")
    }
    return {**kept, "HF_HUB_OFFLINE": "1", **(extra or {})}


def run_kvgate(
    folder: Path,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    memory: int | None = None,
) -> Ran:
    """Run the command in a folder; ``memory`` bounds its address space, in bytes."""
    done = subprocess.run(
        [KVGATE, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=environment(env),
        timeout=SECONDS,
        preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), without_progress(done.stderr.decode()))


def without_progress(err: str) -> str:
    """Return what was written to standard error, but for the lines that say how far the work is."""
    return "".join(line for line in err.splitlines(keepends=True) if not PROGRESS.fullmatch(line.rstrip("\n")))


Kvgate = Callable[..., Ran]
Check = Callable[..., Answer]
Capture = Callable[..., Path]
Edit = Callable[..., Path]


@pytest.fixture
def kvgate(tmp_path: Path) -> Kvgate:
    """Run the command in the test's folder."""
    return lambda *arguments, **how: run_kvgate(tmp_path, *arguments, **how)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run ``kvgate check`` and read its answer from the record."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Answer:
        ran = in_process("check", *map(str, arguments), "-o", "text", "-o", "json=record.json")
        assert without_progress(ran.err) == ""
        record = json.loads((tmp_path / "record.json").read_bytes())
        predicate = record["predicate"]
        assert (ran.code, ran.out.splitlines()[-1]) == (predicate["exitCode"], predicate["verdict"])
        return Answer(predicate["verdict"], ran.code, predicate, ran.out)

    return call


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def base(checkpoints: Checkpoints) -> Path:
    """The checkpoint that all others differ from."""
    return checkpoints("base")


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    """Capture in this process; equal arguments give the same folder.

    Templates and tokenizers are examined by child processes: once for each different input.
    """
    from kvgate.corpora.examine import examine as real_examine
    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.deployments import capture as module
    from kvgate.deployments.launch import LaunchFile, parse_vllm, read_launch
    from kvgate.deployments.locating import Beside
    from kvgate.deployments.write import write

    folder = tmp_path_factory.mktemp("captures")
    done: dict[str, Any] = {}

    def once(key: list[Any], make: Callable[[], Any]) -> Any:
        name = json.dumps(key, sort_keys=True, default=str)
        if name not in done:
            done[name] = make()
        return done[name]

    def examine(model: Path, *, template: str | None, snapshot_to: Path, **arguments: Any) -> Any:
        files: list[Any] = [path.read_text() for path in sorted(model.glob("tok*.json"))]
        files += [path.read_text() for path in sorted(model.glob("*.jinja"))]
        config = json.loads((model / "config.json").read_text())  # it chooses the class, by words and not by numbers
        files.append({key: one for key, one in config.items() if isinstance(one, (str, list)) or key == "auto_map"})

        def make() -> tuple[Any, bytes | None]:
            facts, snapshot = real_examine(model, template=template, snapshot_to=snapshot_to, **arguments)
            return facts, None if snapshot is None else snapshot.path.read_bytes()

        facts, content = once(["tokens", files, template, arguments["corpus"] is None, arguments["options"]], make)
        if content is None:
            return facts, None
        snapshot_to.write_bytes(content)
        return facts, open_snapshot(snapshot_to, None)

    def call(
        model: Path,
        launch: str | Mapping[str, str] = serve(),
        *,
        adapters: Mapping[str, Path] | None = None,
        sets: Mapping[str, Any] | None = None,
        renderer: Any = "here",
        endpoint: str | None = None,
    ) -> Path:
        declared = {**DECLARED, **(sets or {})}

        def make() -> Path:
            target = folder / str(len(done))
            if isinstance(launch, str):
                lines = [parse_vllm(launch, source="serve.sh")]
            else:
                lines = read_launch([LaunchFile(name, text.encode()) for name, text in launch.items()])
            snapshot = folder / f"{target.name}.jsonl"
            captured = module.capture(
                str(model),
                launch=lines,
                beside=Beside(adapters or {}),
                renderer=renderer,
                sets=declared,
                snapshot_to=snapshot,
                endpoint=endpoint,
            )
            return write(captured, target).parent

        return Path(once(["capture", model, launch, adapters, declared, renderer, endpoint], make))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "examine", examine)
        yield call


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """Copy a captured folder and edit its manifest as people do: by path; ``FORGET`` takes a field out."""

    def call(captured: Path, name: str, changes: Mapping[str, Any]) -> Path:
        shutil.copytree(captured, tmp_path / name)
        file = tmp_path / name / "manifest.yaml"
        data = yaml.safe_load(file.read_text())
        for path, value in changes.items():
            *sections, last = path.split(".")
            target = data
            for section in sections:
                target = target[section]
            if value is FORGET:
                del target[last]
            else:
                target[last] = value
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        return tmp_path / name

    return call
