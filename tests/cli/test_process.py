"""The command as a process: exit codes and both streams, signals, pipes, terminals and encodings."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, SECONDS, MakeManifest, Run, environment

KV_DTYPE = {"precision.kv_cache": "fp8_e4m3"}


@pytest.fixture
def pair(manifest: MakeManifest) -> tuple[str, str]:
    """A pair with one change that needs a namespace."""
    return manifest("old.yaml"), manifest("new.yaml", KV_DTYPE)


def test_exit_codes_and_streams(process: Run, pair: tuple[str, str], manifest: MakeManifest, tmp_path: Path) -> None:
    old, new = pair
    (tmp_path / "minimal.yaml").write_text("schema: kvgate/manifest/v1\nmodel: {id: a}\n")
    manifest("fault.yaml", {"cache.connector": "lmcache", "request_features": ["lora"]})
    expected: dict[tuple[str, ...], tuple[int, str]] = {
        (old, old): (0, "verified-compatible-reuse"),
        (old, new): (10, "new-namespace"),
        ("minimal.yaml", "minimal.yaml"): (11, "new-namespace"),
        ("--first", "fault.yaml"): (30, "new-namespace"),
    }
    for arguments, (code, verdict) in expected.items():
        ran = process("check", *arguments)
        assert (ran.code, ran.out.splitlines()[-1], ran.err) == (code, verdict, "")
    for wrong, code in (((old, "missing.yaml"), 3), ((old,), 2), ((old, new, "--nope"), 2)):
        ran = process("check", *wrong)
        assert (ran.code, ran.out) == (code, "")
        assert ran.err


def test_the_installed_script_is_the_same_command(tmp_path: Path, pair: tuple[str, str]) -> None:
    script = Path(COMMAND[0]).parent / "kvgate"
    done = subprocess.run([script, "check", *pair, "-q"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (10, b"new-namespace\n", b"")


def _on_a_terminal(folder: Path, arguments: list[str], env: dict[str, str]) -> str:
    """Run with standard output on a terminal, and return what it shows.

    Standard error is none: whether a bar is seen there depends on how busy the machine is (``test_progress.py``).
    """
    controller, terminal = pty.openpty()
    started = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(env),
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            block = os.read(controller, 65536)
        except OSError:  # the last writer is gone
            break
        if not block:
            break
        shown += block
    os.close(controller)
    started.wait(timeout=SECONDS)
    return shown.decode()


def test_colours_only_where_somebody_wants_them(tmp_path: Path, pair: tuple[str, str]) -> None:
    terminal = {"TERM": "xterm-256color", "COLUMNS": "100"}
    assert "\x1b[" in _on_a_terminal(tmp_path, ["check", *pair], terminal)
    assert "\x1b[" not in _on_a_terminal(tmp_path, ["check", *pair, "--no-color"], terminal)
    assert "\x1b[" not in _on_a_terminal(tmp_path, ["check", *pair], {**terminal, "NO_COLOR": "1"})
    assert "\x1b[" not in _on_a_terminal(tmp_path, ["check", *pair], {"TERM": "dumb"})


def test_a_record_on_a_terminal_is_harmless(tmp_path: Path, manifest: MakeManifest) -> None:
    names = [manifest("old.yaml"), manifest("new.yaml", {"model.quantization": "a\x9b31m\u202e"})]
    shown = _on_a_terminal(tmp_path, ["check", *names, "-o", "json"], {"TERM": "xterm"})
    assert '"verdict":"new-namespace"' in shown
    assert "\\u202e" in shown
    assert not {"\x9b", "\u202e", "\x1b"} & set(shown)


def test_a_full_disk_behind_standard_output_is_no_verdict(pair: tuple[str, str], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "check", *pair],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == b"error: standard output: cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("closed", "code", "err"),
    [(">&-", 3, b"error: standard output: cannot be written: it is closed\n"), ("2>&-", 10, b"")],
)
def test_a_stream_that_is_closed_is_no_internal_error(
    pair: tuple[str, str], tmp_path: Path, closed: str, code: int, err: bytes
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "check", *pair]
    done = subprocess.run(shell, capture_output=True, cwd=tmp_path, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (code, err)


def test_a_reader_that_went_away_changes_nothing(pair: tuple[str, str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "check", *pair], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (10, b"")


def interruptible() -> None:
    """Take interrupts: what a shell starts in the background inherits that they are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_leaves_nothing_half_written(pair: tuple[str, str], tmp_path: Path) -> None:
    started = subprocess.Popen(
        [*COMMAND, "check", "old.yaml", "-", "-o", "json=r.json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
        preexec_fn=interruptible,
    )
    assert started.stdin is not None
    # More than a pipe holds: once it is written, the command is reading.
    started.stdin.write(b"# comment\n" * 50_000)
    started.stdin.flush()
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=SECONDS)
    assert (started.returncode, out) == (130, b"")
    assert err == b"interrupted: nothing was left half-written\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(pair)


def test_columns_are_honoured_and_a_log_is_not_folded_at_80(process: Run, pair: tuple[str, str]) -> None:
    assert max(map(len, process("check", *pair, env={"COLUMNS": "60"}).out.splitlines())) <= 60
    assert max(map(len, process("check", *pair).out.splitlines())) > 80


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_stream_that_lacks_a_character_still_gets_the_verdict(
    process: Run, manifest: MakeManifest, encoding: str
) -> None:
    names = manifest("old.yaml"), manifest("new.yaml", {"model.quantization": "größe-漢字"})
    ran = process("check", *names, env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"})
    assert ran.code == 10
    assert ran.out.splitlines()[-1] == "new-namespace"
