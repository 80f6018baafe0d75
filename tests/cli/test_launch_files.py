"""Launch files that engines of a rehearsal are started from say what their manifests say, or are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.launch_files import read_launch_file
from kvgate.rules.errors import InputError
from tests.cli.conftest import in_process
from tests.probes.rehearsal.pairs import adapter, deployment
from tests.rules.clean import data

_LINE = "vllm serve acme/support-8b --dtype bfloat16 --block-size 32"
_SERVED: dict[str, Any] = {
    "engine.block_size": 32,
    "engine.args": {},
    "cache.connector": None,
    "cache.version": None,
    "engine.attention_backend": None,
}
_ROPE = '\'{"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}}\''


def _read(tmp_path: Path, line: str, *changes: dict[str, Any]) -> tuple[str, ...]:
    file = tmp_path / "serve.sh"
    file.write_text(f"{line}\n")
    return read_launch_file(file, deployment(_SERVED, *changes)).arguments


def test_its_flags_are_what_an_engine_is_started_with(tmp_path: Path) -> None:
    assert _read(tmp_path, _LINE) == ("acme/support-8b", "--dtype", "bfloat16", "--block-size", "32")


@pytest.mark.parametrize(
    ("more", "change", "what"),
    [
        ("", {"precision.compute": "float16"}, "precision.compute"),
        ("", {"engine.block_size": 16}, "engine.block_size"),
        ("", {"engine.speculative": {"model": "draft", "num_speculative_tokens": 3}}, "engine.speculative"),
        ('--speculative-config \'{"model": "draft", "num_speculative_tokens": 3}\'', {}, "engine.speculative"),
        ("--disable-cascade-attn", {}, "engine.args.disable-cascade-attn"),
        ("", {"engine.args": {"disable-cascade-attn": True}}, "engine.args.disable-cascade-attn"),
        ("--enable-lora --lora-modules billing=/adapters/billing", {}, "adapters"),
        ("", adapter("a"), "adapters"),
        (f"--hf-overrides {_ROPE}", {}, "model.config"),
        ('--dtype "$DTYPE"', {}, "DTYPE"),
        ("--config more.yaml", {}, "--config"),
        ("--config=more.yaml", {}, "--config"),
    ],
)
def test_a_line_that_says_otherwise_is_refused(tmp_path: Path, more: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        _read(tmp_path, f"{_LINE} {more}", change)


@pytest.mark.parametrize(
    ("more", "change"),
    [
        ("--disable-cascade-attn", {"engine.args": {"disable-cascade-attn": True}}),
        ("--enable-lora --lora-modules billing=/adapters/billing", adapter("a")),
        (
            f"--hf-overrides {_ROPE}",
            {"model.config.rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}},
        ),
    ],
)
def test_a_line_that_says_the_same_is_taken(tmp_path: Path, more: str, change: dict[str, Any]) -> None:
    assert _read(tmp_path, f"{_LINE} {more}", change)


def test_what_is_no_launch_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_launch_file(tmp_path / "missing", deployment(_SERVED))
    with pytest.raises(InputError, match="larger"):
        _read(tmp_path, "#" * (1 << 20))
    with pytest.raises(InputError, match="sglang"):
        _read(tmp_path, "python -m sglang.launch_server --model acme/support-8b")


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--engine-python", "/no/such/python", "cannot be run"),
        ("--engine-path", "/no/such/folder", "has no vLLM"),
        ("--old-engine-path", "/no/such/folder", "has no vLLM"),
    ],
)
def test_an_interpreter_without_vllm_is_said_before_anything_is_read(
    tmp_path: Path, option: str, value: str, why: str
) -> None:
    (tmp_path / "vllm.py").touch()
    good = () if option in ("--engine-path", "--engine-python") else ("--engine-path", str(tmp_path))
    (tmp_path / "side.yaml").write_text("schema: kvgate/manifest/v1\nmodel: {id: m}\n")
    side = str(tmp_path / "side.yaml")
    ran = in_process("rehearse", side, side, "--backend", "vllm", *good, option, value, "-o", str(tmp_path / "e.json"))
    assert (ran.code, why in ran.err, option in ran.err) == (2, True, True), ran.err
    assert not (tmp_path / "e.json").exists()


def test_a_package_that_is_missing_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "redis" else found(name, *_))
    (tmp_path / "vllm.py").touch()
    (tmp_path / "side.yaml").write_text(yaml.safe_dump(data({"cache.location": "redis://cache-1:6379/0"})))
    side = str(tmp_path / "side.yaml")
    ran = in_process("rehearse", side, side, "--backend", "vllm", "--engine-path", str(tmp_path), "-q")
    assert (ran.code, "kvgate[redis]" in ran.err) == (2, True), ran.err
