"""``auto`` and defaults become values by vLLM's rules, or stay unknown with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.deployments.launch import LaunchFacts, parse_vllm, resolve


def settled(line: str, config: dict[str, Any], **more: Any) -> LaunchFacts:
    return resolve(parse_vllm(f"vllm serve org/m {line}", source="x"), config, **more)


def value(path: str, line: str, config: dict[str, Any], **more: Any) -> Any:
    found = settled(line, config, **more)
    assert (path in found.values) != (path in dict(found.unknown))
    assert found.pending == ()
    return found.values.get(path, "unknown")


COMPUTE = [
    ("", {"dtype": "bfloat16"}, {}, "bfloat16"),
    ("", {"dtype": "float16"}, {}, "float16"),
    ("", {"dtype": "float32"}, {}, "bfloat16"),
    ("", {"dtype": "float16", "model_type": "gemma2"}, {}, "bfloat16"),
    ("", {"dtype": "bfloat16"}, {"accelerator": "Tesla T4"}, "float16"),
    ("", {"dtype": "bfloat16"}, {"accelerator": "NVIDIA H200"}, "bfloat16"),
    ("", {"dtype": "float32"}, {"accelerator": "Tesla V100-SXM2"}, "float16"),
    ("--runner pooling", {"dtype": "float32"}, {}, "float16"),
    ("", {"text_config": {"dtype": "bfloat16"}}, {}, "bfloat16"),
    ("", {}, {"tensor_dtypes": {"BF16"}}, "bfloat16"),
    ("", {}, {"tensor_dtypes": {"F16", "F32"}}, "bfloat16"),
    ("", {}, {"tensor_dtypes": {"BF16", "I32"}}, "unknown"),
    ("", {}, {"tensor_dtypes": {"BF16", "F16"}}, "unknown"),
    ("", {}, {}, "unknown"),
    ("--dtype half", {"dtype": "bfloat16"}, {}, "float16"),
    ("--dtype float", {"dtype": "bfloat16"}, {}, "float32"),
    ("--dtype auto", {"dtype": "bfloat16"}, {}, "bfloat16"),
]


@pytest.mark.parametrize(("line", "config", "more", "expected"), COMPUTE)
def test_the_compute_type(line: str, config: dict[str, Any], more: dict[str, Any], expected: str) -> None:
    assert value("precision.compute", line, config, **more) == expected


MODELOPT = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
CT: dict[str, Any] = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
KV = [
    ("", {"dtype": "float16"}, "float16"),
    ("--dtype bfloat16", {"dtype": "float16"}, "bfloat16"),
    ("--kv-cache-dtype fp8", {"dtype": "float16"}, "fp8"),
    ("", {"dtype": "float16", "quantization_config": MODELOPT}, "fp8_e4m3"),
    ("--kv-cache-dtype bfloat16", {"dtype": "bfloat16", "quantization_config": MODELOPT}, "bfloat16"),
    ("", {"dtype": "float16", "quantization_config": CT}, "fp8"),
    ("", {"dtype": "float16", "quantization_config": {**CT, "kv_cache_scheme": None}}, "float16"),
    (
        "",
        {"dtype": "float16", "quantization_config": {**CT, "kv_cache_scheme": {"num_bits": 4, "type": "int"}}},
        "unknown",
    ),
    ("", {"dtype": "float16", "quantization_config": {"quant_method": "quark", "kv_cache_group": ["x"]}}, "unknown"),
    ("", {"dtype": "float16", "quantization_config": {"quant_method": "awq"}}, "float16"),
    ("", {"dtype": "bfloat16", "index_topk": 2048}, "unknown"),
    ("", {}, "unknown"),
]


@pytest.mark.parametrize(("line", "config", "expected"), KV)
def test_the_kv_type(line: str, config: dict[str, Any], expected: str) -> None:
    assert value("precision.kv_cache", line, config) == expected


def test_the_kv_scales() -> None:
    path = "precision.kv_scales"
    assert value(path, "", {"dtype": "float16"}) is None
    assert value(path, "--kv-cache-dtype fp8 --calculate-kv-scales", {"dtype": "float16"}) == "dynamic"
    assert value(path, "--kv-cache-dtype fp8_per_token_head", {"dtype": "float16"}) == "stored-in-block"
    assert value(path, "--kv-cache-dtype nvfp4", {"dtype": "float16"}) == "unknown"
    found = settled("--kv-cache-dtype fp8", {"dtype": "float16"})
    assert path not in found.values  # the checkpoint's tensors say it
    assert path not in dict(found.unknown)


def test_the_quantization() -> None:
    path = "model.quantization"
    assert value(path, "", {}) is None
    assert value(path, "", {"quantization_config": {"quant_method": "gptq"}}) == "gptq"
    assert value(path, "-q fp8", {}) == "fp8"
    assert value(path, "", {"quantization_config": {"bits": 4}}) == "unknown"
    assert value(path, "-q $Q", {"quantization_config": {"quant_method": "gptq"}}) == "unknown"


ROPE = {"rope_type": "default", "rope_theta": 1}
LENGTH = [
    ("", {"max_position_embeddings": 4096}, 4096),
    ("--max-model-len 1K", {"max_position_embeddings": 4096}, 1024),
    ("", {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2}}, 8192),
    ("", {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn", "factor": 2}}, 4096),
    (
        "",
        {"max_position_embeddings": 4096, "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
        4096,
    ),
    (
        "",
        {
            "max_position_embeddings": 9,
            "original_max_position_embeddings": 5,
            "rope_parameters": {"rope_type": "longrope"},
        },
        5,
    ),
    ("", {"max_position_embeddings": 9, "seq_length": 7}, 7),
    ("", {"text_config": {"max_position_embeddings": 12}}, 12),
    ("--disable-sliding-window", {"max_position_embeddings": 4096}, None),
    ("", {}, None),
    ("", {"max_position_embeddings": "x", "rope_parameters": [1]}, None),
    ("", {"max_position_embeddings": 9, "rope_parameters": {"rope_type": "linear", "factor": "x"}}, None),
]


@pytest.mark.parametrize(("line", "config", "expected"), LENGTH)
def test_the_default_length(line: str, config: dict[str, Any], expected: int | None) -> None:
    assert value("engine.max_model_len", line, config) == expected


def test_media_are_a_feature_unless_the_line_shuts_them_out() -> None:
    config = {"vision_config": {}, "dtype": "bfloat16"}
    assert value("request_features", "--enable-lora", config) == ["lora", "multimodal"]
    assert value("request_features", "--language-model-only", config) == []
    assert value("request_features", "", {}) == []


def test_nothing_is_ever_auto() -> None:
    for config in ({}, {"dtype": "auto"}, {"dtype": "bfloat16"}, {"dtype": 3}):
        found = settled("--dtype auto --kv-cache-dtype auto --max-model-len auto", config)
        assert "auto" not in found.values.values()
