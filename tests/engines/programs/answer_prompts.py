"""A vLLM in one process that answers prompts of token ids, a line of JSON each, and says what it had cached.

    python answer_prompts.py '{"model": FOLDER, "kv_transfer_config": {...}}'

Of a line ``{"token_ids": [...], "salt": null}`` it makes a line ``{"cached": 0, "token_ids": [...]}``. What vLLM itself
says goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """Answer until there are no more prompts."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.platforms import current_platform

    # It goes through every module that there is, and fails at one of numba's, which LMCache imports: so before that.
    current_platform.register_triton_kernel_overrides()
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)

    engine = LLM(
        model=settings["model"],
        kv_transfer_config=KVTransferConfig(**settings["kv_transfer_config"]),
        dtype="bfloat16",
        max_model_len=256,
        block_size=32,
        max_num_seqs=1,
        enforce_eager=True,
        skip_tokenizer_init=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = {"prompt_token_ids": asked["token_ids"]}
        if asked["salt"] is not None:
            prompt["cache_salt"] = asked["salt"]
        answered = engine.generate([prompt], sampling, use_tqdm=False)[0]
        said = {"cached": answered.num_cached_tokens, "token_ids": list(answered.outputs[0].token_ids)}
        print(json.dumps(said), file=answers, flush=True)
    os._exit(0)  # what connectors leave running would keep the process


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
