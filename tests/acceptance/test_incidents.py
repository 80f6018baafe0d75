"""Public incidents about files of the model, to the verdict and its cause (sources in the docstrings)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.conftest import Capture, Check
from tests.acceptance.releases import Checkpoints, serve

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
R1, R2 = "a" * 40, "b" * 40


def test_i06_another_tokenizer_class_at_another_revision(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path
) -> None:
    """embeddings-benchmark/mteb#5377: the weights were equal; saying that they changed would be wrong."""
    other = checkpoints("i06", tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"})
    answer = check(capture(base, serve("--revision", R1)), capture(other, serve("--revision", R2)))
    assert (answer.verdict, answer.code) == (NEW, 0)
    causes = [finding for finding in answer.predicate["findings"] if finding["obligations"]]
    assert {finding["rule"] for finding in causes} == {"tokenizer-changed"}
    assert {finding["answers"]["kvValid"] for finding in causes} == {"yes"}
    assert {finding["answers"]["keysSeparate"] for finding in causes} == {"through token ids"}
    assert "no" in {finding["answers"]["tokensEqual"] for finding in causes}
    assert "weights-changed" not in answer.rules


def test_i14_stops_padding_and_clean_up(check: Check, capture: Capture, checkpoints: Checkpoints, base: Path) -> None:
    """unslothai/unsloth#416, turboderp-org/exllamav2#449: the template writes its markers itself."""
    other = checkpoints(
        "i14",
        config={"eos_token_id": [2, 1], "pad_token_id": 1},
        tokenizer_config={"pad_token": "<|role|>", "model_max_length": 2048, "clean_up_tokenization_spaces": True},
    )
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    answer = check(capture(base), capture(other))
    assert (answer.verdict, answer.code) == (REUSE, 0)
    assert set(answer.rules) == {"config-harmless", "tokenizer-inert"}


def test_i21_other_shards_and_a_tied_head_left_out(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """T0mSIlver/localvoxtral#140, EvolvingLMMs-Lab/lmms-engine#157."""
    tied = {"tie_word_embeddings": True}
    tensors = checkpoints.tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    old = capture(checkpoints("i21-stored", tensors=tensors, files=2, config=tied))
    del tensors["lm_head.weight"]
    new = capture(checkpoints("i21-dropped", tensors=tensors, files=3, config=tied))
    assert (*check(old, new),) == (REUSE, 0, ["weights-layout-only"])


def test_i24_renamed_config_keys(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """vllm-project/vllm#28542, sgl-project/sglang#14745: torch_dtype, rope_theta and rope_scaling."""
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    }
    before = {"dtype": ..., "torch_dtype": "bfloat16", "rope_theta": 500000.0, "rope_scaling": rope}
    after = {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 500000.0, **rope}}
    old = capture(checkpoints("i24-old", config={**before, "rope_parameters": ...}))
    assert (*check(old, capture(checkpoints("i24-new", config=after))),) == (REUSE, 0, [])
