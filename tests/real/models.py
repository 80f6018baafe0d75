"""Model folders made of real tokenizer files, with a small checkpoint beside them, and what was captured of them."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgate.corpora.snapshots.snapshot import SnapshotFile, open_snapshot
from kvgate.deployments.capture import capture
from kvgate.deployments.launch import parse_vllm
from kvgate.deployments.write import MANIFEST, write
from tests.acceptance.releases import DECLARED, make, serve
from tests.real.fetch import STAMP, default_target

Edit = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Model:
    """A tokenizer as a model has it: the ``model_type`` that chooses its class, and its chat template.

    Attributes:
        kind: ``model_type`` in config.json. ``llama`` for two tokenizers of no open model.
        template: a template of the fetched ones where the package has none; ``None``: its own, or none at all.

    """

    kind: str
    template: str | None = None


MODELS: Mapping[str, Model] = {
    "qwen3": Model("qwen3"),
    "llama3": Model("llama"),
    "llama3_1": Model("llama"),
    "deepseek_v2": Model("deepseek_v2"),
    "deepseek_v3": Model("deepseek_v3"),
    "deepseek_v3b": Model("deepseek_v3"),
    "deepseek_v4": Model("deepseek_v3", "templates_trl/deepseekv3.jinja"),
    "gemma3": Model("gemma3_text"),
    "gptoss": Model("gpt_oss", "templates_trl/gptoss.jinja"),
    "mistral": Model("mistral", "templates_axolotl/mistral_v1.jinja"),
    "gpt4o": Model("llama", "templates_axolotl/chatml.jinja"),
    "claude": Model("llama", "templates_axolotl/alpaca.jinja"),
}


def fetched(name: str) -> Path:
    """The folder that tests/real/fetch.py laid out."""
    folder = default_target() / name
    assert (folder / STAMP).exists(), f"{name} is not there: run python tests/real/fetch.py"
    return folder


def templates() -> dict[str, str]:
    """Every real chat template at hand, by folder and name."""
    found = {
        f"{folder.removeprefix('templates_')}/{file.stem}": file.read_text(encoding="utf-8")
        for folder in ("templates_axolotl", "templates_trl")
        for file in sorted(fetched(folder).glob("*.jinja"))
    }
    for name in MODELS:
        own = json.loads((fetched(name) / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
        if own is not None:
            found[f"own/{name}"] = own
    return found


class Releases:
    """Writes model folders and captures them: each once, however many processes ask."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(
        self,
        name: str,
        variant: str = "published",
        *,
        tokenizer: Edit | None = None,
        settings: Edit | None = None,
    ) -> Path:
        """Return the model folder; the edits change tokenizer.json and tokenizer_config.json in place.

        The edits must be the same for every call with the same name and variant.
        """
        folder = self._root / f"{name}-{variant}"
        with self._alone(folder) as exists:
            if not exists:
                self._write(name, folder, tokenizer, settings)
        return folder

    def captured(self, folder: Path) -> Path:
        """Return the manifest of a model folder."""
        target = self._root / f"{folder.name}.captured"
        with self._alone(target) as exists:
            if not exists:
                taken = folder.with_suffix(".tokens")
                line = parse_vllm(serve(), source="serve.sh")
                found = capture(str(folder), launch=[line], renderer="here", sets=DECLARED, snapshot_to=taken)
                write(found, target)
                taken.unlink()
        return target / MANIFEST

    def tokens(self, folder: Path) -> SnapshotFile:
        """Return the snapshot beside the manifest of a model folder."""
        return open_snapshot(self.captured(folder).with_name("tokens.jsonl"), None)

    def _write(self, name: str, folder: Path, tokenizer: Edit | None, settings: Edit | None) -> None:
        model = MODELS[name]
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        for file, edit in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
            published = fetched(name) / file
            if edit is None:
                (making / file).symlink_to(published)
            else:
                content = json.loads(published.read_text(encoding="utf-8"))
                edit(content)
                (making / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        if model.template is not None:
            text = (default_target() / model.template).read_text(encoding="utf-8")
            (making / "chat_template.jinja").write_text(text, encoding="utf-8")
        config = make.model_config() | {"model_type": model.kind}
        (making / "config.json").write_text(json.dumps(config), encoding="utf-8")
        make.write_weights(making, make.base_weights(np.random.default_rng(2026)), 1)
        making.rename(folder)

    @contextmanager
    def _alone(self, path: Path) -> Iterator[bool]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path.exists()
