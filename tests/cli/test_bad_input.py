"""Bad input: one clear line, exit 3, quickly, with nothing printed that looks like a verdict."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from tests.cli.conftest import MakeManifest, Run

HEAD = b"schema: kvgate/manifest/v1\n"
MODEL = b"model: {id: a}\n"
SECONDS = 10
_BOMB = b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9) if n else b"x, x") for n in range(12))

BAD = {
    "empty": (b"", "is empty"),
    "truncated": (HEAD + b"model: {id: a", "not valid YAML"),
    "truncated JSON": (b'{"schema": "kvgate/manifest/v1", "model": ', "not valid JSON"),
    "duplicate key": (HEAD + MODEL + b"model: {id: b}\n", "the key model stands twice (first in line 2)"),
    "unknown key": (HEAD + b"model: {id: a, idd: b}\n", "model.idd: unknown key"),
    "unknown section": (HEAD + MODEL + b"modle: {}\n", "modle: unknown key"),
    "number for a string": (HEAD + b"model: {id: a, revision: 010}\n", 'quote it if a string is meant: "010"'),
    "plain number for a string": (HEAD + b"model: {id: a, revision: 12}\n", 'quote it: "12"'),
    "NaN": (HEAD + MODEL + b"engine: {args: {x: .nan}}\n", "is not a number kvgate can compare"),
    "NaN in JSON": (b'{"schema": "kvgate/manifest/v1", "model": {"id": "a", "config": {"x": NaN}}}', "NaN"),
    "second document": (HEAD + MODEL + b"---\n" + HEAD, "second document"),
    "alias bomb": (HEAD + _BOMB, "anchors and aliases are not allowed"),
    "tag": (HEAD + b"model: !!python/object/apply:os.system [id]\n", "tag"),
    "binary": (b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)), "is this the right file?"),
    "NUL": (HEAD + b"model: {id: 'a\x00b'}\n", "NUL"),
    "another file": (b"services: {web: {image: nginx}}\n", "not a kvgate manifest"),
    "a list": (b"- 1\n- 2\n", "not a mapping"),
    "deep": (HEAD + b"model: " + b"[" * 5000, "nest"),
    "password in a URL": (HEAD + MODEL + b"cache: {location: 'redis://me:hunter2@host/0'}\n", "holds credentials"),
    "auto": (HEAD + MODEL + b"precision: {compute: auto}\n", "'auto' says nothing"),
    "large": (HEAD + MODEL + b"# " + b"x" * (20 << 20), "more than the"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_manifest_is_one_clear_line(run: Run, manifest: MakeManifest, tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    (tmp_path / "bad.yaml").write_bytes(content)
    started = time.monotonic()
    ran = run("check", manifest("old.yaml"), "bad.yaml")
    assert time.monotonic() - started < SECONDS
    assert (ran.code, ran.out) == (3, "")
    lines = ran.err.splitlines()
    assert lines[0].startswith("error: bad.yaml")
    assert message in ran.err
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert "hunter2" not in ran.err


def test_a_line_number_leads_to_the_fault(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(HEAD + MODEL + b"engine:\n  name: vllm\n  verson: '1'\n")
    assert run("check", manifest("old.yaml"), "bad.yaml").err.startswith(
        "error: bad.yaml:5: engine.verson: unknown key"
    )


def test_a_file_that_cannot_be_read(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    manifest("old.yaml")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name, message in (
        ("missing.yaml", "there is no such file"),
        ("folder", "is a folder"),
        ("loop", "cannot be read"),
        ("old.yaml/x", "cannot be read"),
        ("a" * 5000, "too long"),
    ):
        ran = run("check", "old.yaml", name)
        assert (ran.code, ran.out) == (3, ""), name
        assert message in ran.err
        assert len(ran.err.splitlines()) <= 2


@pytest.mark.parametrize("field", ["weights.checkpoint.map", "tokenizer.snapshot"])
def test_a_sidecar_that_is_missing_or_exchanged(run: Run, manifest: MakeManifest, tmp_path: Path, field: str) -> None:
    sidecar = {"file": "side.jsonl", "sha256": "sha256:" + "0" * 64}
    if field == "tokenizer.snapshot":
        sidecar["corpus"] = "diagnostic@0"
    manifest("old.yaml")
    manifest("new.yaml", {field: sidecar})
    ran = run("check", "old.yaml", "new.yaml")
    assert (ran.code, ran.out) == (3, "")
    assert "side.jsonl is missing" in ran.err
    (tmp_path / "side.jsonl").write_text("{}\n")
    ran = run("check", "old.yaml", "new.yaml")
    assert (ran.code, ran.out) == (3, "")
    assert "has another digest than the manifest says" in ran.err


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--evidence", b'{"schema": "kvgate/evidence/v1"}'),
        ("--evidence", b"\xff\xfe"),
        ("--waivers", b"schema: kvgate/waivers/v1\nwaivers: [{rule: x}]\n"),
        ("--waivers", b"schema: kvgate/waivers/v2\nwaivers: []\n"),
        ("--rules", b"id: x\ntitle: x\nsource: x\nchecked: x\nrules: []\n"),
        ("--corpus", b'{"messages": 1}\n'),
        ("--config", b"checks: {}\n"),
    ],
)
def test_bad_files_beside_the_manifests(
    run: Run, manifest: MakeManifest, tmp_path: Path, option: str, content: bytes
) -> None:
    (tmp_path / "bad").write_bytes(content)
    ran = run("check", manifest("old.yaml"), manifest("new.yaml"), option, "bad")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) <= 2


def test_a_record_that_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"_type": "https://in-toto.io/Statement/v1"}')
    for command in ("show", "verify"):
        ran = run("record", command, "r.json")
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith("error: r.json")


def test_hostile_words_in_an_error_are_harmless(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(HEAD + MODEL + b'"\\e[31m\\u202e ::error::x": 1\n')
    ran = run("check", manifest("old.yaml"), "bad.yaml")
    assert ran.code == 3
    assert ran.err.isascii()
    assert "\x1b" not in ran.err
    assert " ::error" not in ran.err


def test_memory_stays_bounded_on_the_largest_input_that_is_read(
    process: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    manifest("old.yaml")
    (tmp_path / "big.yaml").write_bytes(HEAD + MODEL + b"engine: {args: {" + b"a: {}, " * 2_000_000 + b"}}\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ran = process("check", "old.yaml", "big.yaml")
    assert (ran.code, ran.out) == (3, "")
    assert max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) < 1 << 20  # kB


def test_an_internal_error_is_one_line_and_a_traceback_on_demand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("kvgate.inputs.load_manifest", fail)
    ran = run("namespace", "x.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[0] == "error: internal: ZeroDivisionError: a bug"
    assert "--debug" in ran.err
    with pytest.raises(ZeroDivisionError):
        run("namespace", "x.yaml", "--debug")


def test_what_the_system_refuses_anywhere_is_an_input_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise PermissionError(13, "Permission denied", "secret.yaml")

    monkeypatch.setattr("kvgate.inputs.load_manifest", fail)
    ran = run("namespace", "x.yaml")
    assert (ran.code, ran.out, ran.err) == (3, "", "error: secret.yaml: Permission denied\n")
