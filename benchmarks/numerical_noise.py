"""How far one model is from itself when only the shapes differ in which its prompt is computed.

    python benchmarks/numerical_noise.py [SEEDS]

Tiny random models of several architectures, each number format and kind of attention: the prompt computed whole, once
more, and cut in several places. Prints the largest difference of a log-probability (nats) and of a key or value (of
the largest magnitude in its layer). What `probes/evaluation/data/tolerances.yaml` allows comes from this.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from kvgate.probes.embedded.models import build
from kvgate.probes.embedded.noise import noise_of

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LATENT = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "mistral": {"sliding_window": 48},
    "gemma3_text": {"sliding_window": 48, "query_pre_attn_scalar": 16},
    "deepseek_v3": _LATENT,
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
}
_LENGTH = 200


def main() -> None:
    """Measure, and print a row for each number format and kind of attention."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {len(_KINDS)} architectures, {seeds} seeds")
    for dtype in ("float32", "bfloat16", "float16"):
        for attention in ("eager", "sdpa"):
            worst = [_apart(kind, dtype, attention, seed) for kind in _KINDS for seed in range(seeds)]
            logprob, kv = (max(one[part] for one in worst) for part in (0, 1))
            print(f"{dtype}/{attention}/cpu: logprob {logprob:.3g} nats, kv {kv:.3g}")


def _apart(kind: str, dtype: str, attention: str, seed: int) -> tuple[float, float]:
    config = {"model_type": kind, **_SMALL, **_KINDS[kind]}
    spec = {"kind": "stand-in", "dtype": dtype, "attention": attention, "seed": seed, "tail_seed": seed}
    model = build({**spec, "config": config})
    ids = torch.randint(0, 512, (_LENGTH,), generator=torch.Generator().manual_seed(seed)).tolist()
    return noise_of(model, ids, dtype)


if __name__ == "__main__":
    main()
