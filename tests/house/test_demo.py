"""The demonstration's releases are real input: transformers loads them, and they come out the same every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .repository import ROOT


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _make(tmp_path_factory.mktemp("demo"))


def test_transformers_loads_every_release_whole(releases: Path) -> None:
    from transformers import AutoTokenizer, LlamaForCausalLM

    for folder in sorted(path for path in releases.iterdir() if path.is_dir()):
        model, info = LlamaForCausalLM.from_pretrained(folder / "model", output_loading_info=True)
        assert not any(info.values()), info
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        assert len(tokenizer) == model.config.vocab_size
        chat = [{"role": "user", "content": "What is a tide?"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert text == "<|begin|><|role|>user\nWhat is a tide?<|end|>\n<|role|>assistant\n"


def test_the_same_on_every_run_and_over_an_older_one(releases: Path, tmp_path: Path) -> None:
    again = _make(tmp_path)
    (again / "serving" / "serve.sh").write_text("edited")
    (again / "resharded" / "model" / "model.safetensors").write_text("left over")
    _make(tmp_path)
    assert _contents(again) == _contents(releases)


def _make(target: Path) -> Path:
    subprocess.run([sys.executable, str(ROOT / "demo" / "make.py"), str(target)], check=True, timeout=120)
    return target


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
