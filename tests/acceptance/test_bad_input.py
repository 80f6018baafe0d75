"""Bad input through the command: exit 3, one clear line and perhaps a hint, soon, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Capture, Kvgate, Ran

HEAD = "schema: kvgate/manifest/v1\n"
MEMORY = 1 << 30
SECONDS = 25  # the longest is a template that may take 5 s, on a machine that does other things too
_BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x, x'}]\n" for n in range(12))
MANIFESTS: dict[str, tuple[str | bytes, str]] = {
    "truncated YAML": (HEAD + "model: {id: a", "not valid YAML"),
    "duplicate keys": (HEAD + "model: {id: a}\nmodel: {id: b}\n", "the key model stands twice"),
    "unknown key": (HEAD + "model: {id: a, idd: b}\n", "model.idd: unknown key"),
    "a number for a revision": (HEAD + "model: {id: a, revision: 010}\n", '"010"'),
    "NaN": (HEAD + "model: {id: a, config: {x: .nan}}\n", "not a number kvgate can compare"),
    "alias bomb": (HEAD + _BOMB, "anchors and aliases are not allowed"),
    "binary": (b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)), "is this the right file?"),
}


def _refused(ran: Ran, began: float, says: str) -> None:
    assert time.monotonic() - began < SECONDS
    assert (ran.code, ran.out) == (3, "")
    first, *rest = ran.err.splitlines()
    assert first.startswith("error: ")
    assert says in first + " ".join(rest)
    assert len(rest) <= 1
    assert all(line.startswith("hint: ") for line in rest)


@pytest.fixture
def refused(kvgate: Kvgate, tmp_path: Path) -> Callable[..., None]:
    """Run a command that has to refuse its input and to leave the folder as it was."""

    def call(says: str, *arguments: str | Path) -> None:
        before = sorted(tmp_path.rglob("*"))
        began = time.monotonic()
        # A capture's children have their own limit (kvgate.corpora.child.limits).
        _refused(kvgate(*arguments, memory=MEMORY if arguments[0] == "check" else None), began, says)
        assert sorted(tmp_path.rglob("*")) == before

    return call


Refused = Callable[..., None]
WRITES = ("-o", "json=record.json", "-o", "markdown=report.md", "-o", "text")


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest(refused: Refused, capture: Capture, base: Path, tmp_path: Path, name: str) -> None:
    content, says = MANIFESTS[name]
    (tmp_path / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(says, "check", capture(base), "bad.yaml", *WRITES)


def test_two_hundred_megabytes(refused: Refused, capture: Capture, base: Path, tmp_path: Path) -> None:
    with (tmp_path / "bad.yaml").open("wb") as file:
        file.write(HEAD.encode() + b"model: {id: a}\n#")
        file.truncate(200 << 20)
    refused("more than the", "check", capture(base), "bad.yaml", *WRITES)


def test_a_folder_and_nothing_at_all(refused: Refused, capture: Capture, base: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused("is a folder", "check", capture(base), "folder", *WRITES)
    refused("there is no such file", "check", capture(base), "missing.yaml", *WRITES)


@pytest.mark.parametrize("name", ["weights.jsonl", "tokens.jsonl"])
def test_a_sidecar_that_is_missing_or_exchanged(
    refused: Refused, capture: Capture, base: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(capture(base), tmp_path / "new")
    sidecar = tmp_path / "new" / name
    sidecar.write_bytes(sidecar.read_bytes().replace(b"0", b"1", 1))
    refused("has another digest", "check", capture(base), "new", *WRITES)
    sidecar.unlink()
    refused("is missing", "check", capture(base), "new", *WRITES)


# ---- checkpoints ----


def _safetensors(header: str | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def _entry(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F16", "shape": [(end - begin) // 2], "data_offsets": [begin, end]}


_ONE = json.dumps(_entry(0, 4))
TENSORS = {
    "a header of 2^63 bytes": (_safetensors("{}", length=1 << 63), "header"),
    "overlapping offsets": (_safetensors(json.dumps({"a": _entry(0, 8), "b": _entry(4, 12)}), bytes(12)), "overlap"),
    "a tensor twice": (_safetensors(f'{{"a": {_ONE}, "a": {_ONE}}}', bytes(4)), "twice"),
    "truncated": (_safetensors(json.dumps({"a": _entry(0, 1 << 20)}), bytes(4)), "bytes"),
}


@pytest.fixture
def broken(base: Path, tmp_path: Path) -> Path:
    """A checkpoint to break."""
    return Path(shutil.copytree(base, tmp_path / "model"))


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_file(refused: Refused, broken: Path, name: str) -> None:
    content, says = TENSORS[name]
    (broken / "model.safetensors").write_bytes(content)
    refused(says, "capture", "model", "-o", "out", "-q")


def test_a_checkpoint_of_pickles(refused: Refused, broken: Path, tmp_path: Path) -> None:
    (broken / "model.safetensors").unlink()
    (broken / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch owned'\ntR.")
    refused("pickle", "capture", "model", "-o", "out", "-q")
    assert not (tmp_path / "owned").exists()


def test_a_tokenizer_that_needs_code_of_its_own(refused: Refused, broken: Path, tmp_path: Path) -> None:
    (broken / "tokenizer.json").unlink()
    (broken / "tokenization_own.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    config = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (broken / "tokenizer_config.json").write_text(json.dumps(config))
    refused("code", "capture", "model", "-o", "out", "-q")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not finish within"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "asks for Python internals"),
        ("{{ 'x' * 2000000000 }}", "more memory"),
    ],
)
def test_a_template(refused: Refused, broken: Path, template: str, says: str) -> None:
    (broken / "chat_template.jinja").write_text(template)
    refused(says, "capture", "model", "-o", "out", "-q")


def test_no_permission(refused: Refused, capture: Capture, base: Path, tmp_path: Path) -> None:
    """Root reads every file; what the kernel itself refuses to be read stands for it there."""
    path = tmp_path / "secret.yaml"
    path.write_text(HEAD + "model: {id: a}\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()
        (tmp_path / "link.yaml").symlink_to("/proc/self/mem")
        path = tmp_path / "link.yaml"
    refused("cannot be read", "check", capture(base), path.name, *WRITES)
