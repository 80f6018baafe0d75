"""What the ranks of engines hold, as a manifest has it."""

from __future__ import annotations

from typing import Any

from tests.rules.clean import digest


def served(ranks: str, checkpoint: str | None = None, own: str | None = None) -> list[dict[str, Any]]:
    """What ranks hold, by a letter each: the checkpoint of another letter where that is shown."""
    return [
        {
            "rank": rank,
            "digest": digest(letter),
            "engine": "vllm",
            "engine_version": "0.33.0",
            "architecture": "LlamaForCausalLM",
            "tensor": {"rank": rank, "size": len(ranks)},
            "pipeline": {"rank": 0, "size": 1},
            "checkpoint": None if checkpoint is None else digest(checkpoint),
            "own": None if own is None else digest(own),
        }
        for rank, letter in enumerate(ranks)
    ]
