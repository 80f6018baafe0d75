"""The models themselves: the one that copies answers, and a cache with every token is the library's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvgate.probes.evaluation.references import decidable, reference


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_copying_model_names_the_reference_and_reads_no_stranger(dtype: str) -> None:
    from kvgate.probes.embedded.models import build

    model, stranger = (build({"kind": "copying", "seed": seed, "dtype": dtype}) for seed in (1, 2))
    for number in range(4):
        prompt, answer = decidable(f"document {number}", range(40 * number, 40 * number + 90), 120)
        cache = model.empty(dtype)
        assert _said(model, cache, [*prompt]) == answer
        stored = model.empty(dtype)
        model.compute([*prompt[:100]], stored)
        assert _said(stranger, stored, [*prompt[100:]]) != answer


def test_references_differ_by_label() -> None:
    assert len({reference(f"{number}") for number in range(200)}) > 180


def _said(model: Any, cache: Any, ids: list[int]) -> tuple[int, ...]:
    said = [int(model.compute(ids, cache).argmax())]
    while len(said) < 3:
        said.append(int(model.compute([said[-1]], cache).argmax()))
    return tuple(said)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "gpt_oss"])
def test_windowed_layers_restored_whole_answer_as_the_librarys_own_cache(kind: str) -> None:
    from transformers import DynamicCache

    from kvgate.probes.embedded.models import build

    config = {
        "model_type": kind,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "sliding_window": 24,
        "pad_token_id": None,
        **({"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "gpt_oss" else {}),
    }
    spec = {"kind": "stand-in", "dtype": "float32", "attention": "eager", "seed": 3, "tail_seed": 3, "config": config}
    model = build(spec)
    ids = [(number * 37 + 11) % 500 for number in range(100)]
    restored = model.empty("float32")
    model.compute(ids[:80], restored)
    own = DynamicCache(config=model.module.config)
    assert any(layer.is_sliding for layer in own.layers)
    assert not any(layer.is_sliding for layer in restored.layers)
    for step in (ids[80:], [7], [9]):
        found = model.compute(step, restored)
        wanted = model.compute(ids if step == ids[80:] else step, own)
        assert float((found - wanted).abs().max()) < 1e-4
    narrow = build({**spec, "config": {**config, "sliding_window": 12}})
    whole, other = (one.compute(ids, one.empty("float32")) for one in (model, narrow))
    assert float((whole - other).abs().max()) > 1e-2  # the window decides something, so that the test can fail


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_model_is_the_librarys_own(dtype: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from kvgate.probes.embedded.models import build

    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 64, "vocab_size": 300, "head_dim": 16}
    spec = {"dtype": "float32", "attention": "eager", "seed": 3, "tail_seed": 3, "config": config}
    build({**spec, "kind": "stand-in"}).module.save_pretrained(tmp_path)
    ours = build({**spec, "kind": "real", "dtype": dtype, "folder": str(tmp_path)})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype), attn_implementation="eager")
    ids = list(range(5, 205))
    with torch.inference_mode():
        wanted = torch.log_softmax(theirs(torch.tensor([ids])).logits[0, -1].float(), -1)
    assert float((ours.compute(ids, ours.empty(dtype)) - wanted).abs().max()) < 1e-5
