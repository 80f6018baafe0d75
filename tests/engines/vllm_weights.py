"""Serves a model, asks every rank what it holds, reloads other weights in place, and asks again.

python vllm_weights.py MODEL OTHER EXTENSION RANKS OUT     runs in the engine's environment
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Write both replies of the ranks."""
    from vllm import LLM

    model, other, extension, ranks, out = sys.argv[1:]
    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=64,
        block_size=32,
        max_num_seqs=2,
        enforce_eager=True,
        tensor_parallel_size=int(ranks),
        worker_extension_cls=extension,
    )
    before = engine.collective_rpc("kvgate_weights")
    engine.collective_rpc("reload_weights", kwargs={"weights_path": other})
    Path(out).write_text(json.dumps([before, engine.collective_rpc("kvgate_weights")]))


if __name__ == "__main__":  # vLLM's workers import this file again
    main()
