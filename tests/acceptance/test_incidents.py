"""Eight public incidents, from files to the verdict and its cause (sources in the docstrings)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import FORGET, Capture, Check, Edit
from tests.acceptance.releases import LMCACHE_DECLARED, LMCACHE_MP, Checkpoints, own_store, serve

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
K_PROJ = "model.layers.0.self_attn.k_proj.weight"
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


def test_i19_another_revision_over_one_file_tier(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path
) -> None:
    """vllm-project/vllm#49261, #49266: the directory's fingerprint holds no revision, so old KV would be hit."""
    old = capture(base, serve("--revision", R1, model="org/m"))
    new = capture(checkpoints.with_a_changed_byte(K_PROJ), serve("--revision", R2, model="org/m"))
    answer = check(old, new)
    assert (*answer,) == (NEW, 10, ["model-name-inert", "weights-changed"])
    assert answer.finding("weights-changed")["answers"]["keysSeparate"] == "no"


def test_i20_a_repository_made_anew_under_its_name(
    check: Check, capture: Capture, checkpoints: Checkpoints, edit: Edit, base: Path
) -> None:
    """noonghunna/club-3090#319, osaurus-ai/osaurus#1989, antirez/ds4#805: `main` on both sides."""
    launch = serve("--revision", "main", model="org/m")
    old, new = capture(base, launch), capture(checkpoints.with_a_changed_byte(K_PROJ), launch)
    named = [edit(one, name, {"weights.checkpoint": FORGET}) for one, name in ((old, "old"), (new, "new"))]
    refused = check(*named)
    assert (*refused,) == (NEW, 11, ["weights-changed"])
    assert "a name that can move" in refused.finding("weights-changed")["detail"]
    assert (*check(old, new),) == (NEW, 10, ["weights-changed"])


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


@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        (("--dtype", "float16"), ("--dtype", "bfloat16"), ["compute-dtype-changed", "kv-dtype-changed"]),
        (("--dtype", "bfloat16"), ("--dtype", "bfloat16", "--kv-cache-dtype", "fp8_e4m3"), ["kv-dtype-changed"]),
    ],
)
def test_i27_auto_is_not_auto(
    check: Check, capture: Capture, base: Path, before: tuple[str, ...], after: tuple[str, ...], rules: list[str]
) -> None:
    """vllm-project/vllm#49438, #45767, sgl-project/sglang#33268, InternLM/lmdeploy#4930: no size check fires."""
    old, new = (capture(base, serve(*flags, store=LMCACHE_MP), sets=LMCACHE_DECLARED) for flags in (before, after))
    assert (*check(old, new),) == (NEW, 10, rules)


def test_i33_the_served_name_is_no_identity(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path
) -> None:
    """sgl-project/sglang#24758: one alias, another path, one storage folder."""
    store = own_store("model.served_name", "token_ids")
    old = capture(base, serve("--served-model-name", "support", model="/models/a", store=None), sets=store)
    changed = checkpoints.with_a_changed_byte(K_PROJ)
    new = capture(changed, serve("--served-model-name", "support", model="/models/b", store=None), sets=store)
    answer = check(old, new)
    assert (*answer,) == (NEW, 10, ["model-name-inert", "weights-changed"])
    assert answer.finding("weights-changed")["answers"]["keysSeparate"] == "no"
