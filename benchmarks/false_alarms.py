"""How often a rehearsal of an unchanged deployment raises an alarm, or is not proved.

    python benchmarks/false_alarms.py MANIFEST [RUNS] [DTYPE]

The manifest's deployment against itself with the embedded back end, in bfloat16 unless another format is named. Each
run has other random weights; architectures take turns, each as its class in transformers has it by default, scaled
down to a stand-in. Prints how many runs ended in each state and the largest difference of a log-probability. Aim: all
of them proved.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from typing import Any

from kvgate.inputs import load_manifest
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.probes.evaluation.comparison import worst_of
from kvgate.probes.rehearsal.rehearse import rehearse
from kvgate.rules.manifest import Manifest, manifest_from, with_overrides

_KINDS = (
    *("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text"),
    *("gemma3n_text", "gemma4_text", "deepseek_v2", "deepseek_v3", "phi", "phi3", "phimoe", "gpt_oss", "llama4_text"),
    *("glm", "glm4", "glm4_moe", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe", "cohere", "cohere2"),
    *("starcoder2", "falcon", "stablelm", "exaone4", "smollm3", "ernie4_5", "seed_oss", "gpt2", "gpt_neox", "opt"),
)


def main() -> None:
    """Rehearse, and print what came of it."""
    manifest = load_manifest(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else len(_KINDS)
    dtype = sys.argv[3] if len(sys.argv) > 3 else "bfloat16"
    states: Counter[str] = Counter()
    worst = 0.0
    child = Child()
    try:
        for run in range(runs):
            kind = _KINDS[run % len(_KINDS)]
            one = _deployment(manifest, kind, run, dtype)
            seen = rehearse(one, one, lambda one=one: EmbeddedBackend(one, one, child=child))  # type: ignore[misc]
            states[seen.state] += 1
            worst = max(worst, worst_of(hit.agreement for hit in seen.equivalence.hits))
            if seen.state != "proved":
                print(f"{kind}, run {run}: {seen.state}: {seen.reason}")
    finally:
        child.close()
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    print(
        f"{runs} runs of {min(runs, len(_KINDS))} architectures in {dtype}: {told}; largest difference {worst:.3g} nats"
    )
    sys.exit(states.keys() != {"proved"})


def _deployment(manifest: Manifest, kind: str, run: int, dtype: str) -> Manifest:
    digest = f"blake3:{hashlib.sha256(f'{kind} {run}'.encode()).hexdigest()}"
    changes = {
        "model.config": _config(kind),
        "model.config_class": None,
        "weights.checkpoint.digest": digest,
        "weights.checkpoint.kv_digest": digest,
        "precision.compute": dtype,
        "precision.kv_cache": dtype,
        "engine.args": {},
        # The names of many connectors are not foretold for every architecture; an application's own store has them.
        "cache.connector": "own-store",
        "cache.version": None,
        "cache.key_fields": ["model.id", "token_ids"],
    }
    return manifest_from(with_overrides(manifest.data, changes), manifest.source)


def _config(kind: str) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, Any] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    return {name: value for name, value in found.items() if name not in ("id2label", "label2id")}


if __name__ == "__main__":
    main()
