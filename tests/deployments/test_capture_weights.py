"""What a capture says of weights that are no safetensors, that are not fetched, or that were hashed before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvgate.deployments.capture import Captured, capture
from kvgate.deployments.hub import history, obtain
from kvgate.deployments.published import published
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import manifest_from
from kvgate.rules.values import Known
from kvgate.weights import kept_hashes
from kvgate.weights.kept_hashes import KeptHashes

from .conftest import MakeCheckpoint
from .hub_server import Hub, Repository, serving
from .test_capture import LINE, OFFLOAD, launched, read, reason

GGUF_LINE = LINE.replace("/models/m", "/models/m.gguf") + OFFLOAD
FP8 = f"{LINE}{OFFLOAD} --kv-cache-dtype fp8"
pytestmark = pytest.mark.usefixtures("quick")


def _capture(model: str, tmp_path: Path, line: str = LINE + OFFLOAD, **how: Any) -> Captured:
    return capture(model, launch=launched(line), snapshot_to=tmp_path / "snapshot", **how)


def test_files_that_did_not_change_are_not_read_again_and_that_is_said(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_hashes, "_SETTLED_NS", -(10**12))
    folder, cache = str(make_checkpoint()), tmp_path / "hashes"
    first = _capture(folder, tmp_path, kept=KeptHashes(cache))
    second = _capture(folder, tmp_path, kept=KeptHashes(cache))
    assert first.manifest["weights"] == second.manifest["weights"]
    assert not [note for note in first.notes if "not read again" in note]
    assert [note for note in second.notes if note.startswith("weight files not read again: 1;")]


def test_pickle_as_it_is_says_nothing_of_its_tensors(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="only pickle weights here"):
        _capture(str(folder), tmp_path)
    captured = _capture(str(folder), tmp_path, FP8, opaque_pickle=True)
    manifest = read(captured, tmp_path / "out")
    assert manifest.value("weights.checkpoint.kv_rule") == "opaque"
    assert not manifest.knows("precision.kv_scales")
    assert "nobody looked at the checkpoint's tensors" in reason(captured, "precision.kv_scales")


def test_scales_of_the_kv_cache_have_their_digest(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.attn.k_scale"
    one, other = (
        _capture(str(make_checkpoint(f"c{number}", {name: bytes([number] * 4)})), tmp_path, FP8).manifest
        for number in (1, 2)
    )
    assert one["precision"]["kv_scales"].startswith("blake3:")
    assert one["precision"]["kv_scales"] != other["precision"]["kv_scales"]
    assert _capture(str(make_checkpoint()), tmp_path, FP8).manifest["precision"]["kv_scales"] is None


def _gguf(path: Path, base: float = 10000.0) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_rope_freq_base(base)
    writer.add_token_list([f"token {number}" for number in range(100)])
    writer.add_tensor("blk.0.attn_k.weight", np.ones((2, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_model(tmp_path: Path) -> None:
    path = _gguf(tmp_path / "m.gguf")
    captured = _capture(str(path), tmp_path, LINE.replace("/models/m", str(path)) + OFFLOAD)
    manifest = read(captured, tmp_path / "out")
    assert manifest.value("model.id") == str(path)
    assert manifest.value("weights.checkpoint.tensors") == 1
    assert manifest.value("weights.checkpoint.kv_rule") == "1/all-tensors"
    assert manifest.value("model.config")["gguf"]["llama.rope.freq_base"] == 10000
    assert manifest.value("model.config")["gguf"]["tokenizer.ggml.tokens"]["count"] == 100
    for unknown in ("model.quantization", "precision.compute", "engine.max_model_len", "tokenizer.effective"):
        assert not manifest.knows(unknown), unknown
    assert "the GGUF file" in reason(captured, "chat_template")
    assert captured.tokens is None


def test_what_a_gguf_file_says_is_part_of_the_config(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    """A config.json beside it does not hide what the file says of rotary embeddings."""
    configs = []
    for base in (10000.0, 500000.0):
        folder = make_checkpoint(f"c{base}")
        (folder / "model.safetensors").unlink()
        _gguf(folder / "m.gguf", base)
        captured = _capture(str(folder), tmp_path, GGUF_LINE)
        configs.append(captured.manifest["model"]["config"])
        assert captured.manifest["weights"]["checkpoint"]["kv_rule"] == "1/all-tensors"
    assert configs[0] != configs[1]
    assert {**configs[0], "gguf": None} == {**configs[1], "gguf": None}


def test_with_gguf_the_engine_takes_the_config_from_the_tokenizer(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    path = _gguf(tmp_path / "m.gguf")
    line = f"{GGUF_LINE} --tokenizer /t"
    there = _capture(str(path), tmp_path, line.replace("docker run", f"docker run -v {make_checkpoint()}:/t"))
    assert there.manifest["model"]["config"]["num_hidden_layers"] == 1
    assert there.manifest["model"]["config"]["gguf"]["llama.rope.freq_base"] == 10000
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 3}')
    beside = _capture(str(path), tmp_path, GGUF_LINE)
    assert beside.manifest["model"]["config"]["num_hidden_layers"] == 3
    unknown = _capture(str(path), tmp_path, f"{GGUF_LINE} --hf-config-path /elsewhere")
    assert "config" not in unknown.manifest["model"]
    unmounted = _capture(str(path), tmp_path, line)
    assert "config" not in unmounted.manifest["model"]
    assert "give --tokenizer FOLDER" in reason(unmounted, "model.config")


@pytest.mark.parametrize(
    ("named", "read", "message"),
    [
        ("/models/m", "gguf", "a GGUF file was read, and the engine loads /models/m"),
        ("/models/other.gguf", "gguf", "m.gguf was read, and the engine loads other.gguf"),
        ("/models/m.gguf", "folder", "the engine loads GGUF (/models/m.gguf)"),
        ("org/m:UD-q4_k_xl", "folder", "the engine loads GGUF (org/m:UD-q4_k_xl)"),
        ("org/m:Q4_K_M", "folder", "the engine loads GGUF (org/m:Q4_K_M)"),
        ("/models/m --quantization gguf", "folder", "the engine loads GGUF (/models/m)"),
    ],
)
def test_weights_that_the_engine_does_not_load_stay_unknown(
    named: str, read: str, message: str, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    model = _gguf(tmp_path / "m.gguf") if read == "gguf" else make_checkpoint()
    captured = _capture(str(model), tmp_path, LINE.replace("/models/m", named) + OFFLOAD)
    assert "checkpoint" not in captured.manifest["weights"]
    assert message in reason(captured, "weights.checkpoint")


@pytest.fixture
def hub(make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in make_checkpoint("on the hub").iterdir()}
    revisions = {"a" * 40: files, "b" * 40: {**files, "README.md": b"words"}}
    with serving(Hub({"org/m": Repository(revisions, {"main": "a" * 40}, parents={"a" * 40: "b" * 40})})) as running:
        there = partial(obtain, endpoint=running.url, cache=tmp_path / "cache")
        monkeypatch.setattr("kvgate.deployments.capture.obtain", there)
        monkeypatch.setattr("kvgate.deployments.locating.obtain", there)
        monkeypatch.setattr("kvgate.deployments.locating.history", partial(history, endpoint=running.url))
        monkeypatch.setattr("kvgate.deployments.capture.published", partial(published, endpoint=running.url))
        yield running


def test_without_the_weights_the_published_digests_stand_for_them(hub: Hub, tmp_path: Path) -> None:
    captured = _capture("org/m@" + "b" * 40, tmp_path, FP8.replace("/models/m", "org/m"), fetch_weights=False)
    assert not [path for verb, path in hub.requests if verb == "GET" and path.endswith(".safetensors")]
    manifest = read(captured, tmp_path / "out")
    assert manifest.unset("weights.checkpoint")
    assert not (tmp_path / "out" / "weights.jsonl").exists()
    assert manifest.value("weights.hub.commit") == "b" * 40
    files = manifest.value("weights.hub.files")
    assert "README.md" in files
    data = hub.repositories["org/m"].revisions["b" * 40]["model.safetensors"]
    assert files["model.safetensors"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert not manifest.knows("precision.kv_scales")
    assert manifest.value("model.config")["dtype"] == "bfloat16"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("line", "basis"),
    [
        (f"vllm serve org/m --revision {'a' * 40}", "computed"),
        ("vllm serve org/m", "declared"),
        ("vllm serve org/m --revision main", "declared"),
        ("vllm serve /models/m", "declared"),
    ],
)
def test_what_is_published_speaks_of_a_pinned_launch_line_alone(line: str, basis: str) -> None:
    """A name moves between the capture and the start of a worker, and a folder holds what somebody put there."""
    found = capture(f"org/m@{'a' * 40}", launch=launched(line), fetch_weights=False)
    told = manifest_from(found.manifest).get("weights.hub.commit")
    assert isinstance(told, Known)
    assert told.basis == basis
    assert any("pin it" in note for note in found.notes) == (basis == "declared")
