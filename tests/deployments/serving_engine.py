"""A vLLM on the loopback interface that says what it holds: a checkpoint, whole on every rank, or what a test makes.

What a real one says is tested in ``tests/engines``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgate.weights.fingerprint import fingerprint_checkpoint
from tests.corpora.engine_server import Answer

ZERO = "blake3:" + "0" * 64
SCALE = {"name": "model.layers.0.self_attn.attn._k_scale", "dtype": "F32", "shape": [], "content": ZERO, "buffer": True}


def replies(folder: Path, ranks: int = 1, version: str = "0.33.0") -> list[dict[str, Any]]:
    """Return what the workers reply that hold the checkpoint in a folder, and a scale of their own."""
    stored = [
        {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape), "content": entry.content}
        for entry in fingerprint_checkpoint(folder, None).entries
    ]
    return [
        {
            "schema": "kvgate/served-weights/v1",
            "form": "served",
            "engine": "vllm",
            "engine_version": version,
            "architecture": "LlamaForCausalLM",
            "world": {"rank": rank, "size": ranks},
            "tensor_parallel": {"rank": rank, "size": ranks},
            "pipeline_parallel": {"rank": 0, "size": 1},
            "tensors": [*({**one, "buffer": False} for one in stored), SCALE],
            "parts": [{**one, "held": one["name"], "stretch": None, "certain": True} for one in stored],
            "unreadable": [],
        }
        for rank in range(ranks)
    ]


def answering(given: Any, status: int = 200) -> Callable[[str, str, Any], Answer]:
    """Answer as vLLM does (0.32.0) whose workers reply this; ``given`` is a list of replies, or the whole body."""

    def answer(method: str, path: str, body: Any) -> Answer:
        if path == "/version":
            return 200, {"version": "0.33.0"}
        if (method, path, body) == ("POST", "/collective_rpc", {"method": "kvgate_weights"}):
            return status, {"results": given} if isinstance(given, list) else given
        return 404, {"detail": "Not Found"}

    return answer
