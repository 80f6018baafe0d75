"""Which folders answer for a manifest: those that hold what it says, adapters too, and go on holding it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvgate.cli.commands.stored import Stored
from kvgate.cli.rehearsal_models import find_checkpoints
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import silent
from kvgate.weights.adapters import fingerprint_adapter
from tests.probes.rehearsal.pairs import deployment

_PAIR = {f"base_model.model.model.layers.0.self_attn.k_proj.lora_{one}.weight": (4, 4) for one in "AB"}


def _made(folder: Path, seed: int) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(seed)
    save_file({"model.embed_tokens.weight": draw.normal(size=(8, 4)).astype(np.float32)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")  # without a config: reading one takes a process
    tensors = {name: draw.normal(size=shape).astype(np.float32) for name, shape in _PAIR.items()}
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    return folder


def _manifest(folder: Path, adapter: str | None = None) -> Manifest:
    one: dict[str, Any] = {"name": "billing", "path": str(folder / "adapter"), "rank": 4, "alpha": 8}
    one["digest"] = adapter or fingerprint_adapter(folder / "adapter").digest
    weights = {"weights.checkpoint.digest": Stored(None, opaque=False, progress=silent).checkpoint(folder).digest}
    return deployment({"model.id": str(folder), "adapters": [one]}, weights)


def test_a_folder_that_holds_what_its_manifest_says_answers(tmp_path: Path) -> None:
    one, two = (_made(tmp_path / name, seed) for seed, name in enumerate("ab"))
    found, why = find_checkpoints(_manifest(one), _manifest(two), (None, None), must=False, progress=silent)
    assert why is None
    assert found is not None
    assert (found.folders.old, found.folders.new, found.written_to()) == (one, two, None)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "tokenizer.json", "adapter/adapter_model.safetensors", "new.json"]
)
def test_one_that_is_written_to_meanwhile_is_noticed(file: str, tmp_path: Path) -> None:
    one = _made(tmp_path / "a", 1)
    found, _ = find_checkpoints(_manifest(one), _manifest(one), (None, None), must=False, progress=silent)
    assert found is not None
    (one / file).write_bytes(b"another")
    assert found.written_to() == str(one / file)


def test_an_adapter_of_other_bytes_does_not_answer(tmp_path: Path) -> None:
    one, two = (_made(tmp_path / name, seed) for seed, name in enumerate("ab"))
    replaced = _manifest(one, fingerprint_adapter(two / "adapter").digest)
    for pair in ((_manifest(one), replaced), (replaced, _manifest(one))):
        found, why = find_checkpoints(*pair, (None, None), must=False, progress=silent)
        assert found is None
        assert "adapter does not hold the bytes of" in str(why)
        with pytest.raises(InputError, match="does not hold the bytes"):
            find_checkpoints(*pair, (None, None), must=True, progress=silent)


def test_an_adapter_that_lies_elsewhere_is_known_by_its_bytes(tmp_path: Path) -> None:
    one, two = (_made(tmp_path / name, seed) for seed, name in enumerate("ab"))
    manifests = _manifest(one), _manifest(two)
    moved = [folder.rename(tmp_path / name) for folder, name in ((one / "adapter", "v1"), (two / "adapter", "v2"))]
    given = [f"billing={folder}" for folder in moved]
    assert find_checkpoints(*manifests, (None, None), must=False, progress=silent)[0] is None
    found, _ = find_checkpoints(*manifests, (None, None), given[::-1], must=False, progress=silent)
    assert found is not None
    assert found.folders.adapters == {fingerprint_adapter(folder).digest: folder for folder in moved}
    assert found.written_to() is None
    (moved[0] / "adapter_config.json").write_text("{}")
    assert found.written_to() == str(moved[0] / "adapter_config.json")
    (moved[0] / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    with pytest.raises(InputError, match="--adapter billing=FOLDER"):
        find_checkpoints(*manifests, (None, None), given[:1], must=False, progress=silent)
    for wrong in (given[1:], [f"other={moved[0]}"]):
        with pytest.raises(InputError, match="does not hold the bytes that either manifest has for"):
            find_checkpoints(manifests[0], manifests[0], (None, None), wrong, must=False, progress=silent)
    with pytest.raises(UsageError, match="not NAME=FOLDER"):
        find_checkpoints(*manifests, (None, None), [str(moved[0])], must=False, progress=silent)
