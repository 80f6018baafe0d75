"""The configuration in force: aliases, class defaults and overrides give one spelling; bad files give one error."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kvgate.deployments.config import (
    code_digest,
    effective_config,
    is_multimodal,
    processor_digest,
    read_config,
    text_config,
)
from kvgate.rules.errors import InputError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
BASE: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 131072}
OLD = {
    **BASE,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
    "rope_scaling": LLAMA3,
    "transformers_version": "4.40.0",
    "_name_or_path": "somewhere",
    "rms_norm_eps": 1e-06,
}
NEW = {
    **BASE,
    "dtype": "bfloat16",
    "rope_parameters": {**LLAMA3, "factor": 8, "rope_theta": 500000},
    "transformers_version": "5.24.0",
}


def here(raw: dict[str, Any], overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the config built in this process: with torch, and without the start of another process."""
    from kvgate.deployments.config_worker import build

    built: dict[str, Any] = json.loads(json.dumps(build(copy.deepcopy(raw), overrides or {})["config"]))
    return built


@pytest.fixture(scope="module")
def current() -> dict[str, Any]:
    return dict(effective_config(NEW).config)


def test_old_and_new_spelling_and_absent_defaults_are_one_config(current: dict[str, Any]) -> None:
    old = effective_config(OLD)
    assert dict(old.config) == current
    assert old.config_class is not None
    assert old.config_class["name"] == "LlamaConfig"
    assert current["dtype"] == "bfloat16"
    assert current["rope_parameters"]["rope_theta"] == 500000
    assert current["rms_norm_eps"] == 1e-06
    assert not {"transformers_version", "_name_or_path", "torch_dtype", "rope_theta"} & current.keys()


@pytest.mark.parametrize(
    "change", [{"rms_norm_eps": 1e-05}, {"rope_theta": 1e6}, {"hidden_act": "gelu"}, {"made_up": 1}]
)
def test_another_value_is_another_config(change: dict[str, Any], current: dict[str, Any]) -> None:
    changed = here({**OLD, **change})
    assert {key: changed.get(key) for key in current} != current or changed.get("made_up")


def test_torch_makes_no_difference(current: dict[str, Any]) -> None:
    with_torch = here(NEW)
    assert {key: with_torch[key] for key in current} == current


def test_overrides_work_as_in_vllm() -> None:
    overrides = {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
    }
    config = effective_config(OLD, overrides).config
    assert config["rope_parameters"] == {
        "rope_type": "linear",
        "factor": 2,
        "rope_theta": 1000000,
    }  # replaced, not merged
    assert config["num_hidden_layers"] == 4
    composite = {"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_hidden_layers": 2}}
    inner = here(composite, {"text_config": {"sliding_window": 77}})["text_config"]
    assert (inner["sliding_window"], inner["hidden_size"]) == (77, 64)  # merged into a nested config


def test_a_nested_config_gets_defaults_and_loses_bookkeeping_too() -> None:
    config = effective_config({"model_type": "gemma3", "text_config": {"hidden_size": 64}}).config
    assert text_config(config)["head_dim"] == 256
    assert "transformers_version" not in config["text_config"]
    assert "_name_or_path" not in config["vision_config"]
    assert is_multimodal(config)
    assert not is_multimodal({"model_type": "llama"})


def test_no_class_says_why_and_still_lays_overrides_over_the_file() -> None:
    found = effective_config(
        {"model_type": "made-up", "torch_dtype": "float16", "a": 1.0, "text_config": {"b": 1}},
        {"a": 2, "text_config": {"c": 3}},
    )
    assert found.config_class is None
    assert found.reason is not None
    assert "model_type" in found.reason
    assert dict(found.config) == {"model_type": "made-up", "dtype": "float16", "a": 2, "text_config": {"b": 1, "c": 3}}


def test_a_refusing_class_says_why_without_quoting_the_file() -> None:
    found = effective_config({"model_type": "llama", "hidden_size": "hf_secret_text"})
    assert found.reason is not None
    assert "secret" not in found.reason
    assert found.config["hidden_size"] == "hf_secret_text"


def test_code_named_in_a_config_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    effective_config(
        {"model_type": "made-up", "auto_map": {"AutoConfig": "evil.Config"}, "_name_or_path": str(tmp_path)}
    )
    assert not marker.exists()


def test_numbers_that_would_fill_the_memory_give_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgate.deployments.config._PROCESSOR_SECONDS", 5)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"more (time|memory) than any real model"):
        effective_config({"model_type": "gemma3_text", "num_hidden_layers": 10**12})
    assert time.monotonic() - started < 30


def _file(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "config.json").write_bytes(content)
    return tmp_path


def test_a_bom_and_bare_infinity_are_read(tmp_path: Path) -> None:
    folder = _file(tmp_path, b'\xef\xbb\xbf{"model_type": "made-up", "limit": Infinity, "other": NaN}')
    config = effective_config(read_config(folder)).config
    assert config["limit"] == "float:inf"
    assert config["other"] == "float:nan"


def test_an_older_modelopt_file_counts_as_quantization(tmp_path: Path) -> None:
    folder = _file(tmp_path, b'{"model_type": "llama"}')
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    assert read_config(folder)["quantization_config"] == {"quantization": {"quant_algo": "FP8"}}


BAD = {
    "truncated": b'{"model_type": "llama"',
    "empty": b"",
    "a list": b"[1]",
    "duplicate keys": b'{"rope_theta": 1, "rope_theta": 2}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep": b'{"a":' * 100_000,
    "huge": b'{"a": "' + b"x" * 20_000_000 + b'"}',
    "a long number": b'{"a": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_clear_error_quickly(tmp_path: Path, name: str) -> None:
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        read_config(_file(tmp_path, BAD[name]))
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - started < 3


def test_a_missing_file_a_folder_and_a_pipe_give_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").rmdir()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="not a regular file"):
        read_config(tmp_path)


def test_the_processor_digest_is_of_content(tmp_path: Path) -> None:
    assert processor_digest(tmp_path) is None
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"size": 1, "mean": [0.5], "transformers_version": "4"}')
    first = processor_digest(tmp_path)
    file.write_text('{"mean": [0.5],\n "size": 1.0}')
    assert processor_digest(tmp_path) == first
    file.write_text('{"mean": [0.6], "size": 1}')
    assert processor_digest(tmp_path) != first


def test_the_code_digest_is_of_every_python_file_that_may_run(tmp_path: Path) -> None:
    folder = _file(tmp_path, b'{"model_type": "x"}')
    assert code_digest(folder) == (None, None)
    _file(tmp_path, b'{"model_type": "x", "auto_map": {"AutoModel": "modeling.M"}}')
    assert code_digest(folder) == (None, "its auto_map names code that is not in the folder")
    (folder / "modeling.py").write_text("a = 1")
    first = code_digest(folder)
    assert first[0] is not None
    _file(tmp_path, b'{"model_type": "x"}')
    assert code_digest(folder) == first  # no file asks for it, and it may be imported all the same
    (folder / "helper.py").write_text("b = 2")
    second = code_digest(folder)
    assert second != first
    (folder / "helper.py").write_text("b = 3")
    assert code_digest(folder) != second
    _file(tmp_path, b'{"auto_map": {"AutoModel": "org/other--modeling.M"}}')
    assert code_digest(folder) == (None, "its auto_map names code in another repository")
