"""How far a real vLLM is from itself when a prompt is cut elsewhere, and from another one of its kind.

    python benchmarks/engine_noise.py [SEEDS] [--python PYTHON] [--path FOLDER]...

Random models of several architectures in each number format, in front of LMCache's files: what one engine has stored is
read by another, and computed by it. The largest difference of a log-probability (nats) and of a key or value (of the
largest magnitude in its layer). The rows for vLLM in `probes/evaluation/data/tolerances.yaml` come from this.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.embedded.stand_in import Side
from kvgate.probes.engines.backend import VllmBackend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.engines.sides import write_stand_in
from kvgate.probes.evaluation.comparison import compare_answers
from kvgate.probes.rehearsal.backend import Prompt, Start
from kvgate.rules.manifest import Manifest, manifest_from

_WORDS = 512
_PLAIN = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": _WORDS,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_KINDS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3ForCausalLM": {"model_type": "qwen3"},
    "GraniteForCausalLM": {"model_type": "granite"},
    "MixtralForCausalLM": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "LlamaForCausalLM wide": {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
_LENGTHS, _STEPS = (120, 215, 270), 16
_Apart = tuple[float, float]


@dataclass(frozen=True)
class _Started:
    installation: Installation
    program: Program
    child: Child
    models: Path


def main() -> None:
    """Measure, and print a row for each number format."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="?", default=2)
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--path", type=Path, action="append", default=[])
    asked = parser.parse_args()
    installation = Installation(asked.python, tuple(folder.resolve() for folder in asked.path))
    models = Path(tempfile.mkdtemp())
    started = _Started(installation, Program(installation), Child(), models)
    try:
        for dtype in ("float32", "bfloat16", "float16"):
            logprob = noise = 0.0
            for name, kind in _KINDS.items():
                for seed in range(asked.seeds):
                    config = {"architectures": name.split()[:1], **_PLAIN, **kind}
                    found = _apart(config, dtype, seed, started)
                    print(f"{dtype} {name} {seed}: {found[0]:.3g} nats, {found[1]:.3g}", file=sys.stderr)
                    logprob, noise = max(logprob, found[0]), max(noise, found[1])
            print(f"{dtype}/vllm/cpu: logprob {logprob:.3g} nats, kv {noise:.3g}")
    finally:
        started.program.close()
        started.child.close()
        shutil.rmtree(models)


def _apart(config: dict[str, Any], dtype: str, seed: int, started: _Started) -> _Apart:
    old, new = (_deployment(config, dtype, seed) for _ in range(2))
    folder = started.models / f"{len(list(started.models.iterdir()))}"
    write_stand_in(started.child, Side(config, seed, seed, dtype, dtype, {}), folder, foreign=False)
    installation, program = started.installation, started.program
    backend = VllmBackend(old, new, installation, folders=Folders(folder, folder), program=program, child=started.child)
    draw = random.Random(old.sha256)
    prompts = [Prompt(str(length), tuple(draw.randrange(_WORDS) for _ in range(length))) for length in _LENGTHS]
    try:
        backend.ground()
        fills = backend.start(Start(old, "store", fills=True))
        for prompt in prompts:
            fills.generate(prompt, 1)
        fresh, hit = backend.start(Start(new, "none", "no-reuse")), backend.start(Start(new, "store"))
        logprob = kv = 0.0
        for prompt in prompts:
            one, two = fresh.generate(prompt, _STEPS), hit.generate(prompt, _STEPS)
            layers = hit.compare_blocks(prompt)
            if not two.cached or not layers:
                sys.exit("nothing was read from the store")
            found = compare_answers((one.token_ids, one.top), (two.token_ids, two.top), float("inf"))
            logprob = max(logprob, found.difference)
            kv = max(kv, *(max(layer.error, layer.noise) for layer in layers))
    finally:
        backend.close()
    return logprob, kv


def _deployment(config: dict[str, Any], dtype: str, seed: int) -> Manifest:
    digest = "blake3:" + hashlib.sha256(f"{config}{seed}".encode()).hexdigest()
    data = {
        "schema": "kvgate/manifest/v1",
        "model": {"id": "noise", "config": config, "quantization": None, "code": None},
        "weights": {"checkpoint": {"digest": digest}},
        "precision": {"compute": dtype, "kv_cache": dtype, "kv_scales": None},
        "adapters": [],
        "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "decode_context": 1, "prefill_context": 1},
        "engine": {"name": "vllm", "block_size": 32, "max_model_len": 1024, "speculative": None, "args": {}},
        "request_features": [],
        "cache": {
            "connector": "lmcache-mp",
            "version": "0.5.6",
            "location": "/kv",
            "chunk_size": 32,
            "serde": "naive",
            "namespace": "noise",
            "tenancy": None,
        },
    }
    return manifest_from(data, "noise.yaml")


if __name__ == "__main__":
    main()
