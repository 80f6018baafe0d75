"""Checkpoints and launch lines as serving teams have them: the demonstration's, with what a test changes in them."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from tests.house.repository import ROOT

if TYPE_CHECKING:
    from demo import make as make
else:  # a script of the repository, in no package
    _spec = importlib.util.spec_from_file_location("kvgate_demo_make", ROOT / "demo" / "make.py")
    make = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(make)

TEMPLATE: str = make.TEMPLATE
MODEL = "/models/support-assistant"
FS: Mapping[str, Any] = make.TRANSFER
LMCACHE: Mapping[str, Any] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
LMCACHE_MP: Mapping[str, Any] = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}

DECLARED: Mapping[str, Any] = {"engine.accelerator": "H200", "cache.tenancy": None, "inputs": None}
"""What no launch line says."""

LMCACHE_DECLARED: Mapping[str, Any] = {
    "cache.version": "0.5.6",
    "cache.location": "redis://cache-1:6379/0",
    "cache.chunk_size": 256,
    "cache.serde": "naive",
}
"""What LMCache's own configuration says, and no launch line of the engine."""


def own_store(*key_fields: str) -> dict[str, Any]:
    """What is declared of an application's own store."""
    return {
        "cache.connector": "own-store",
        "cache.version": None,
        "cache.location": "postgres://kv-1/blocks",
        "cache.namespace": None,
        "cache.chunk_size": None,
        "cache.serde": None,
        "cache.key_fields": list(key_fields),
        "cache.epoch": None,
    }


def serve(*flags: str, store: Mapping[str, Any] | None = FS, model: str = MODEL, image: str = make.IMAGE) -> str:
    """The command that starts an engine."""
    words = ["docker", "run", "--gpus", "all", "-e", "PYTHONHASHSEED=0", image, "--model", model, *flags]
    if store is not None:
        words += ["--kv-transfer-config", json.dumps(store)]
    return f"#!/bin/sh\n{shlex.join(words)}\n"


def in_folder(root_dir: str) -> dict[str, Any]:
    """The transfer configuration of the file system tier, with another folder."""
    changed: dict[str, Any] = json.loads(json.dumps(FS))
    changed["kv_connector_extra_config"]["secondary_tiers"][0]["root_dir"] = root_dir
    return changed


class Checkpoints:
    """Writes checkpoints into a folder: the demonstration's model with changes. The same name, the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tensors = make.base_weights(np.random.default_rng(2026))
        self._vocabulary = make.train()

    def tensors(self) -> dict[str, Any]:
        """A copy of the model's tensors, by name."""
        return {name: array.copy() for name, array in self._tensors.items()}

    def __call__(
        self,
        name: str,
        *,
        tensors: Mapping[str, Any] | None = None,
        files: int = 1,
        config: Mapping[str, Any] | None = None,
        tokenizer_config: Mapping[str, Any] | None = None,
        tokenizer: Callable[[dict[str, Any]], object] = lambda _: None,
        template: str | None = TEMPLATE,
    ) -> Path:
        """Write one; in ``config`` and ``tokenizer_config`` ``...`` drops a field, ``tokenizer`` edits its JSON.

        Without ``template`` there is no chat_template.jinja.
        """
        folder = self._folder / name
        if folder.exists():
            return folder
        folder.mkdir()
        make.write_weights(folder, dict(tensors or self._tensors), files)
        for file, base, changes in (
            ("config.json", make.model_config(), config),
            ("tokenizer_config.json", make.tokenizer_config(), tokenizer_config),
        ):
            content = {key: value for key, value in {**base, **(changes or {})}.items() if value is not ...}
            (folder / file).write_text(json.dumps(content, indent=2))
        vocabulary = json.loads(self._vocabulary.to_str())
        # Every release of tokenizers reads merges as text; only newer ones read pairs.
        vocabulary["model"]["merges"] = [" ".join(pair) for pair in vocabulary["model"]["merges"]]
        tokenizer(vocabulary)
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        return folder

    def with_a_changed_byte(self, tensor: str) -> Path:
        """Write the model with one byte of one tensor changed where it lies in its file."""
        folder = self._folder / f"changed-{tensor}"
        if not folder.exists():
            file = self(folder.name) / "model.safetensors"
            data = bytearray(file.read_bytes())
            length = int.from_bytes(data[:8], "little")
            begin, end = json.loads(data[8 : 8 + length])[tensor]["data_offsets"]
            data[8 + length + (begin + end) // 2] ^= 1
            file.write_bytes(data)
        return folder


def write_adapter(folder: Path, seed: int) -> Path:
    """Write a LoRA adapter for the model."""
    folder.mkdir()
    tensors = make.adapter_weights(np.random.default_rng(seed))
    save_file({name: array.astype(np.float16) for name, array in tensors.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(make.adapter_config()))
    return folder
