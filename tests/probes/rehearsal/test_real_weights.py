"""Real checkpoints, and weights that differ by a little: log-probabilities decide, down to their floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvgate.probes.embedded.backend import EmbeddedBackend, Folders
from kvgate.probes.evaluation.tolerances import tolerance_for
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.probes.rehearsal.evidence import kv_state
from kvgate.probes.rehearsal.rehearse import Size
from kvgate.rules.manifest import Manifest
from tests.probes.rehearsal.conftest import Rehearse
from tests.probes.rehearsal.pairs import ROLLED, WEIGHTS, adapter, deployment

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000},
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_SINGLE = {
    "model.config": _CONFIG,
    "model.config_class": None,
    "precision.compute": "float32",
    "precision.kv_cache": "float32",
}
_CORPUS = Size(corpus=1, decidable=0, tokens=24)


def _tensors(noise: float) -> dict[str, Any]:
    draw, noisy = np.random.default_rng(7), np.random.default_rng(8)
    sizes = {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
    shapes = {"model.embed_tokens.weight": (300, 64), "lm_head.weight": (300, 64), "model.norm.weight": (64,)}
    for layer in range(2):
        front = f"model.layers.{layer}"
        shapes |= {f"{front}.self_attn.{part}_proj.weight": size for part, size in sizes.items()}
        shapes |= {f"{front}.mlp.{part}_proj.weight": (128, 64) for part in ("gate", "up")}
        shapes[f"{front}.mlp.down_proj.weight"] = (64, 128)
        shapes |= {f"{front}.{part}_layernorm.weight": (64,) for part in ("input", "post_attention")}
    plain = {name: np.ones(s) if len(s) == 1 else draw.normal(0, 0.2, s) for name, s in shapes.items()}
    return {
        name: (value * (1 + noise * noisy.standard_normal(value.shape))).astype(np.float32)
        for name, value in plain.items()
    }


def _checkpoint(folder: Path, noise: float) -> Path:
    folder.mkdir()
    save_file(_tensors(noise), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    return folder


@pytest.fixture(scope="session")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _checkpoint(tmp_path_factory.mktemp("real") / "plain", 0.0)


def _noisy() -> Manifest:
    return deployment(_SINGLE, WEIGHTS)


@pytest.mark.parametrize("noise", [1e-4, 1e-3, 1e-2])
def test_a_little_noise_is_no_equality(noise: float, same: Path, tmp_path: Path, rehearsed: Rehearse) -> None:
    old, new = deployment(_SINGLE), _noisy()
    folders = Folders(same, _checkpoint(tmp_path / "noisy", noise))
    seen = rehearsed(old, new, folders=folders, size=_CORPUS)
    assert seen.state == "refuted", seen.reason  # its namespace was not rolled
    floor = tolerance_for("float32/eager/cpu")
    assert floor is not None
    assert seen.control.hits[0].agreement.difference > 10 * floor.logprob
    if noise == 1e-4:
        assert seen.control.hits[0].agreement.divergence is None  # all 24 tokens agree, and that is not enough
    assert kv_state(old, new, seen)[0] == "refuted"


def test_below_the_floor_nothing_is_told(same: Path, tmp_path: Path, rehearsed: Rehearse) -> None:
    old, new = deployment(_SINGLE), _noisy()
    folders = Folders(same, _checkpoint(tmp_path / "noisy", 1e-8))
    seen = rehearsed(old, new, folders=folders, size=_CORPUS)
    assert seen.state == "inconclusive"
    assert "the floor of this comparison" in seen.reason
    assert kv_state(old, new, seen)[0] == "inconclusive"


def test_real_weights_speak_for_the_engine_that_ran_and_no_other(same: Path, rehearsed: Rehearse) -> None:
    import transformers

    served = deployment(_SINGLE)
    seen = rehearsed(served, served, folders=Folders(same, same), size=_CORPUS)
    assert seen.state == "proved", seen.reason
    assert kv_state(served, served, seen) == (
        "inconclusive",
        "equal here, but what serves is another engine than what computed them",
    )
    here = deployment(
        _SINGLE,
        {
            "engine.name": "transformers",
            "engine.version": transformers.__version__,
            "cache.connector": "own-store",
            "cache.key_fields": ["model.id", "token_ids"],
        },
    )
    seen = rehearsed(here, here, folders=Folders(same, same), size=_CORPUS)
    assert kv_state(here, here, seen)[0] == "proved"


def test_an_adapter_is_read_from_its_own_checkpoint(same: Path, tmp_path: Path, rehearsed: Rehearse) -> None:
    sides = []
    for letter, seed in (("a", 1), ("b", 2)):
        folder = tmp_path / letter
        folder.mkdir()
        draw = np.random.default_rng(seed)
        front = "base_model.model.model.layers.0.self_attn.k_proj"
        parts = {f"{front}.lora_A.weight": (4, 64), f"{front}.lora_B.weight": (32, 4)}
        save_file({name: draw.normal(0, 0.3, s).astype(np.float32) for name, s in parts.items()}, folder / _ADAPTER)
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
        change = adapter(letter)
        change["adapters"][0]["path"] = str(folder)
        sides.append(change)
    offload = {"cache.connector": "vllm-offload-fs", "cache.version": None, "cache.chunk_size": None}
    old, new = deployment(_SINGLE, offload, sides[0]), deployment(_SINGLE, offload, sides[1])
    seen = rehearsed(old, new, folders=Folders(same, same), size=_CORPUS)
    stale = {hit.adapter for hit in seen.control.hits if hit.wrong}
    assert stale == {"billing"}
    assert seen.state == "proved", seen.reason  # their paths are in the key, and differ


_ADAPTER = "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.quantization": "awq"}, "quantized"),
        ({"model.code": "sha256:" + "1" * 64}, "code of its own"),
        ({"precision.kv_cache": "int4"}, "precision"),
        (adapter("a"), "no readable PEFT checkpoint"),
    ],
)
def test_what_does_not_run_here_is_refused(change: dict[str, Any], words: str, same: Path) -> None:
    one = deployment(_SINGLE, ROLLED, change)
    with pytest.raises(CannotStageError, match=words):
        EmbeddedBackend(one, one, folders=Folders(same, same))
