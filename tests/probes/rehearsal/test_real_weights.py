"""Real checkpoints, and weights that differ by a little: log-probabilities decide, down to their floor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvgate.probes.embedded.backend import EmbeddedBackend, Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.evaluation.tolerances import tolerance_for
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.probes.rehearsal.evidence import kv_state
from kvgate.probes.rehearsal.rehearse import Size
from kvgate.rules.manifest import Manifest
from tests.probes.rehearsal.conftest import Rehearse
from tests.probes.rehearsal.pairs import OFFLOAD, ROLLED, WEIGHTS, adapter, deployment
from tests.rules.clean import FORGET

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
        "equal here, but what serves is not what computed them",
    )
    here = deployment(_SINGLE, _here(transformers.__version__))
    seen = rehearsed(here, here, folders=Folders(same, same), size=_CORPUS)
    assert kv_state(here, here, seen)[0] == "proved"


def _here(version: str) -> dict[str, Any]:
    """What runs in the back end's own process."""
    return {
        "engine.name": "transformers",
        "engine.version": version,
        "engine.attention_backend": "eager",
        "engine.accelerator": "cpu",
        "cache.connector": "own-store",
        "cache.key_fields": ["model.id", "token_ids"],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"engine.attention_backend": "sdpa"},
        {"engine.accelerator": "H200"},
        {"engine.packages": "blake3:" + "6" * 64},
        {"engine.packages": FORGET},
        {"engine.args": {"no-such-flag": 1}},
        {"engine.speculative": {"method": "ngram"}},
        {"parallelism.tensor": 2},
        {"cache.version": "2"},
    ],
)
def test_what_was_not_there_when_it_ran_is_not_shown(change: dict[str, Any], same: Path, child: Child) -> None:
    import transformers

    here = _here(transformers.__version__)
    one, other = deployment(_SINGLE, here), deployment(_SINGLE, here, change)
    for old, new in ((one, other), (other, one)):
        assert not EmbeddedBackend(old, new, folders=Folders(same, same), child=child).ground().engines
    assert EmbeddedBackend(one, one, folders=Folders(same, same), child=child).ground().engines


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 3}, "9 missing tensors"),
        ({"attention_bias": True}, "8 missing tensors"),
        ({"num_hidden_layers": 1}, "9 unexpected tensors"),
        ({"intermediate_size": 64}, "mismatched"),
    ],
)
def test_a_checkpoint_of_another_config_is_not_filled_up(
    change: dict[str, Any], words: str, same: Path, rehearsed: Rehearse
) -> None:
    one = deployment(_SINGLE, {"model.config": {**_CONFIG, **change}})
    seen = rehearsed(one, one, folders=Folders(same, same), size=_CORPUS)
    assert seen.state == "not-run"
    assert words in seen.reason


def _adapter(folder: Path, letter: str, settings: dict[str, Any] | None = None, more: str = "") -> dict[str, Any]:
    folder.mkdir()
    draw = np.random.default_rng(ord(letter))
    front = "base_model.model.model.layers.0.self_attn.k_proj"
    parts = {f"{front}.lora_A.weight": (4, 64), f"{front}.lora_B.weight": (32, 4)} | ({more: (4, 4)} if more else {})
    tensors = {name: draw.normal(0, 0.3, s).astype(np.float32) for name, s in parts.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, **(settings or {})}))
    change = adapter(letter)
    change["adapters"][0]["path"] = str(folder)
    return change


def test_an_adapter_is_read_from_its_own_checkpoint(same: Path, tmp_path: Path, rehearsed: Rehearse) -> None:
    sides = [_adapter(tmp_path / letter, letter, {"peft_type": "LORA", "bias": "none"}) for letter in "ab"]
    old, new = deployment(_SINGLE, OFFLOAD, sides[0]), deployment(_SINGLE, OFFLOAD, sides[1])
    seen = rehearsed(old, new, folders=Folders(same, same), size=_CORPUS)
    stale = {hit.adapter for hit in seen.control.hits if hit.wrong}
    assert stale == {"billing"}
    assert seen.state == "proved", seen.reason  # their paths are in the key, and differ
    assert seen.layers is not None
    assert max(layer.error for layer in seen.layers) == 0  # the model's own entries, which are what they were


def test_a_window_is_staged_where_prompts_reach_past_it(same: Path, rehearsed: Rehearse) -> None:
    windowed = {**_CONFIG, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    old, new = (
        deployment(_SINGLE, {"model.config": {**windowed, "sliding_window": window}}, change)
        for window, change in ((700, {}), (600, ROLLED))
    )
    short = rehearsed(old, new, folders=Folders(same, same), size=_CORPUS)
    assert (short.state, short.control.state) == ("inconclusive", "open")
    assert "do not reach past 700" in short.missing["prompts"]
    long = rehearsed(old, new, folders=Folders(same, same), size=replace(_CORPUS, length=760))
    assert long.state == "proved", long.reason
    assert "prompts" not in long.missing


@pytest.mark.parametrize(
    "settings", [{"use_rslora": True}, {"alpha_pattern": {"k_proj": 16}}, {"bias": "all"}, {"no_such_setting": 1}]
)
def test_an_adapter_that_is_more_than_two_matrices_is_refused(
    settings: dict[str, Any], same: Path, tmp_path: Path
) -> None:
    one = deployment(_SINGLE, OFFLOAD, _adapter(tmp_path / "a", "a", settings))
    with pytest.raises(CannotStageError, match="no plain LoRA"):
        EmbeddedBackend(one, one, folders=Folders(same, same))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("base_model.model.lm_head.weight", "more than pairs of matrices"),
        ("base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight", "KeyError"),
    ],
)
def test_no_tensor_of_an_adapter_is_left_out(
    more: str, words: str, same: Path, tmp_path: Path, rehearsed: Rehearse
) -> None:
    one = deployment(_SINGLE, OFFLOAD, _adapter(tmp_path / "a", "a", more=more))
    seen = rehearsed(one, one, folders=Folders(same, same), size=_CORPUS)
    assert seen.state == "not-run"
    assert words in seen.reason


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
