"""LoRA adapters: tensors and every setting that matters count, what only looks different does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.rules.errors import InputError
from kvgate.weights.adapters import AdapterFingerprint, fingerprint_adapter

from .builders import Tensor, Tensors, encode, words

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "base",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "lora_dropout": 0.1,
    "task_type": "CAUSAL_LM",
}
WEIGHTS: Tensors = {
    "base_model.model.q_proj.lora_A.weight": Tensor("BF16", (2,), words(1, 2)),
    "base_model.model.q_proj.lora_B.weight": Tensor("BF16", (2,), words(3, 4)),
}


def _adapter(folder: Path, config: dict[str, Any] = CONFIG, tensors: Tensors = WEIGHTS) -> AdapterFingerprint:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(encode(tensors))
    return fingerprint_adapter(folder)


def test_what_is_reported(tmp_path: Path) -> None:
    found = _adapter(tmp_path)
    assert (found.rank, found.alpha, found.tensors, found.bytes) == (8, 16, 2, 8)
    assert found.digest.startswith("blake3:")
    assert len(found.digest) == 7 + 64


@pytest.mark.parametrize(
    "change",
    [
        {"base_model_name_or_path": "elsewhere/base", "revision": "main"},
        {"lora_dropout": 0, "inference_mode": True, "task_type": None, "peft_version": "0.18.0"},
        {"target_modules": ["v_proj", "q_proj"]},
        {"init_lora_weights": True},
        {"init_lora_weights": "gaussian"},
        {"use_dora": False, "use_rslora": False, "bias": "none", "rank_pattern": {}, "modules_to_save": None},
        {"lora_alpha": 16.0},
        dict.fromkeys(("arrow_config", "velora_config", "monteclora_config", "kasa_config", "use_bdlora")),
        {"alora_invocation_tokens": None, "qalora_group_size": 16, "lora_ga_config": None},
    ],
)
def test_inert_settings_and_defaults_do_not_count(change: dict[str, Any], tmp_path: Path) -> None:
    assert _adapter(tmp_path / "old") == _adapter(tmp_path / "new", {**CONFIG, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"r": 16},
        {"lora_alpha": 32},
        {"lora_alpha": 16.5},
        {"target_modules": ["q_proj"]},
        {"target_modules": "q_proj|v_proj"},
        {"use_rslora": True},
        {"use_dora": True},
        {"use_dora": 1},
        {"bias": "all"},
        {"fan_in_fan_out": True},
        {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"q_proj": 4}},
        {"modules_to_save": ["lm_head"]},
        {"layers_to_transform": [0]},
        {"alora_invocation_tokens": [1]},
        {"qalora_group_size": 32},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": 1},
        {"trainable_token_indices": [1, 2]},
        {"a_setting_of_next_year": False},
        {"a_setting_of_next_year": None},
    ],
)
def test_settings_that_matter_or_are_unknown_count(change: dict[str, Any], tmp_path: Path) -> None:
    assert _adapter(tmp_path / "old").digest != _adapter(tmp_path / "new", {**CONFIG, **change}).digest


def test_tensors_count_and_their_layout_does_not(tmp_path: Path) -> None:
    old = _adapter(tmp_path / "old")
    name = next(iter(WEIGHTS))
    changed = {**WEIGHTS, name: WEIGHTS[name]._replace(data=words(1, 3))}
    assert _adapter(tmp_path / "changed", tensors=changed).digest != old.digest
    assert _adapter(tmp_path / "reordered", tensors=dict(reversed(WEIGHTS.items()))) == old
    _adapter(tmp_path / "extended")
    (tmp_path / "extended" / "new_embeddings.safetensors").write_bytes(encode({"e": changed[name]}))
    assert fingerprint_adapter(tmp_path / "extended").digest != old.digest


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "new_embeddings.bin"])
def test_pickle_is_never_loaded(name: str, tmp_path: Path) -> None:
    _adapter(tmp_path)
    if name.startswith("adapter_model"):
        (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(InputError, match=f"{name} is pickle"):
        fingerprint_adapter(tmp_path)


def test_training_leftovers_do_not_matter(tmp_path: Path) -> None:
    old = _adapter(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"pickle")
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle; loaders take the safetensors file beside it")
    assert fingerprint_adapter(tmp_path) == old


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "not a LoRA adapter"),
        ({"peft_type": None}, "not a LoRA adapter: peft_type is None"),
        ({"r": 0}, "no rank: r is 0"),
        ({"r": "8"}, "no rank: r is '8'"),
        ({"r": True}, "no rank: r is True"),
        ({"r": 10**400}, "no rank: r is 1000"),
        ({"lora_alpha": None}, "no scale: lora_alpha is None"),
        ({"lora_alpha": True}, "no scale: lora_alpha is True"),
        ({"lora_alpha": 10**400}, "no scale: lora_alpha is 1000"),
        ({"lora_alpha": 1e308}, "no scale: lora_alpha is 1e"),
        ({"x": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_broken_configurations_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        _adapter(tmp_path, {**CONFIG, **change})


@pytest.mark.parametrize("name", ["r", "lora_alpha", "peft_type"])
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"it has no {name}") as caught:
        _adapter(tmp_path, {key: value for key, value in CONFIG.items() if key != name})
    assert caught.value.hint


@pytest.mark.parametrize("name", ["alpha_pattern", "rank_pattern", "a_setting_of_next_year"])
def test_the_first_pattern_that_matches_counts(name: str, tmp_path: Path) -> None:
    patterns = {"q_proj": 8, "layers.0.self_attn.q_proj": 64}
    both = [
        _adapter(tmp_path / str(number), {**CONFIG, name: dict(order)})
        for number, order in enumerate((patterns.items(), reversed(patterns.items())))
    ]
    assert both[0].digest != both[1].digest
    other = _adapter(tmp_path / "list", {**CONFIG, name: [list(pair) for pair in patterns.items()]})
    assert other.digest not in [one.digest for one in both]


def test_one_layer_is_a_list_of_it(tmp_path: Path) -> None:
    alike = [
        _adapter(tmp_path / str(number), {**CONFIG, "layers_to_transform": value})
        for number, value in enumerate((1, [1]))
    ]
    assert alike[0] == alike[1]


def test_missing_and_empty_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"adapter_config\.json: cannot be read"):
        fingerprint_adapter(tmp_path)
    with pytest.raises(InputError, match="the adapter holds no tensor"):
        _adapter(tmp_path, tensors={})
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no adapter_model\.safetensors here"):
        fingerprint_adapter(tmp_path)


def test_a_number_without_end_is_refused_in_our_words(tmp_path: Path) -> None:
    _adapter(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(path.read_text().replace('"r": 8', '"r": 1' + "0" * 5000))
    with pytest.raises(InputError, match="holds an integer of more than 4,300 digits"):
        fingerprint_adapter(tmp_path)
