"""What is no regular file, or too large a one, is refused at once: nothing waits for a writer, nothing is endless."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgate.inputs import hash_file, load_evidence, load_manifest, load_pack, load_waivers, read_bytes, sidecar_path
from kvgate.rules.errors import InputError
from tests.rules.clean import clean

SECONDS = 5
LOADS: dict[str, Callable[[Path], object]] = {
    "a manifest": load_manifest,
    "evidence": lambda path: load_evidence([path]),
    "a folder of evidence": lambda path: load_evidence([path.parent]),
    "rules": load_pack,
    "waivers": load_waivers,
    "what is hashed": hash_file,
    "a map": lambda path: _sidecar(path, "weights.checkpoint.map"),
    "a snapshot": lambda path: _sidecar(path, "tokenizer.snapshot"),
}


def _sidecar(path: Path, field: str) -> object:
    named = {"file": path.name, "sha256": "sha256:" + "0" * 64}
    if field == "tokenizer.snapshot":
        named["corpus"] = "diagnostic@0"
    return sidecar_path(clean({field: named}, str(path.with_name("manifest.yaml"))), field)


def _refusal(load: Callable[[Path], object], path: Path) -> InputError:
    """Return what loading says; a load that hangs fails the test instead of hanging it."""
    said: list[InputError] = []

    def call() -> None:
        with pytest.raises(InputError) as caught:
            load(path)
        said.append(caught.value)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert said, "still reading"
    return said[0]


@pytest.mark.parametrize("what", LOADS)
def test_a_pipe_is_refused(tmp_path: Path, what: str) -> None:
    os.mkfifo(tmp_path / "in.json")
    assert "is a pipe or a device, not a file" in _refusal(LOADS[what], tmp_path / "in.json").message


@pytest.mark.parametrize("what", LOADS)
def test_a_device_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "in.json").symlink_to("/dev/zero")
    assert "is a pipe or a device, not a file" in _refusal(LOADS[what], tmp_path / "in.json").message


def test_a_shell_s_substituted_pipe_is_refused_with_what_to_do() -> None:
    reading, writing = os.pipe()
    try:
        refused = _refusal(load_manifest, Path(f"/dev/fd/{reading}"))
    finally:
        os.close(reading)
        os.close(writing)
    assert refused.hint is not None
    assert "'-' reads one manifest from standard input" in refused.hint


@pytest.mark.parametrize("field", ["weights.checkpoint.map", "tokenizer.snapshot"])
def test_a_sidecar_that_is_too_large_is_refused_unread(tmp_path: Path, field: str) -> None:
    with (tmp_path / "large.jsonl").open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would take minutes
    refused = _refusal(lambda path: _sidecar(path, field), tmp_path / "large.jsonl")
    assert "more than the 68,719,476,736 bytes allowed" in refused.message


def test_a_limit_holds_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 10)
    assert read_bytes(tmp_path / "in", 10) == b"x" * 10
    assert hash_file(tmp_path / "in", 10) == f"sha256:{hashlib.sha256(b'x' * 10).hexdigest()}"
    for read in (read_bytes, hash_file):
        with pytest.raises(InputError, match="more than the 9 bytes allowed"):
            read(tmp_path / "in", 9)


def test_a_file_that_does_not_tell_its_size_is_counted() -> None:
    """Files that the kernel makes up say that they are empty."""
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    with pytest.raises(InputError, match="more than the 10 bytes allowed"):
        read_bytes(path, 10)


@pytest.mark.parametrize("field", ["reason", "command", "figures", "scope", "tools"])
def test_evidence_with_a_credential_is_refused(tmp_path: Path, field: str) -> None:
    held: object = "redis://:p/w@h:1"
    document = {
        "schema": "kvgate/evidence/v1",
        "kind": "inventory",
        "state": "not-run",
        "new": {"sections": {}},
        field: held if field in ("reason", "command", "scope") else {"store": held},
    }
    (tmp_path / "in.json").write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        load_evidence([tmp_path])
    assert caught.value.message.startswith(field)
    assert "p/w" not in str(caught.value)


def test_a_waiver_with_a_credential_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        "schema: kvgate/waivers/v1\nwaivers:\n"
        "- {rule: a, dimension: b, old: 1, new: 2, reason: 'see --api-key abc', owner: o, expires: '2030-01-01'}\n"
    )
    with pytest.raises(InputError, match=r"waivers\.0\.reason holds credentials"):
        load_waivers(tmp_path / "w.yaml")
