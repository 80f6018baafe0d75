"""SGLang's plugin: every rank fingerprints the weights it serves with, where they are.

SGLang loads what is registered under the entry points ``sglang.srt.plugins`` (0.5.23, ``srt/plugins``; kvgate's
packaging registers :func:`register`, as ``kvgate_weights``). It puts one more action in front of those of SGLang's own
weight checker, which answers at ``POST /weights_checker`` with one document per tensor-parallel rank
(``srt/utils/weight_checker.py``). That checker's checksums cannot stand in for kvgate's: they are 64 bits each, and of
dequantized values. A document has room for texts by name; kvgate's report is the text under its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kvgate.weights.served.model import describe_model
from kvgate.weights.served.report import SCHEMA

ACTION = "kvgate_weights"
_TARGET = "sglang.srt.utils.weight_checker.WeightChecker.handle"


def register() -> None:
    """Put kvgate's action in front of SGLang's own. Nothing else of SGLang changes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _answer, HookType.AROUND)


def _answer(handle: Callable[..., Any], checker: Any, action: str, *given: Any, **named: Any) -> Any:
    """Answer kvgate's action, and leave every other one to SGLang.

    Raises:
        InputError: when a tensor cannot be hashed.
    """
    if action != ACTION:
        return handle(checker, action, *given, **named)
    place = checker._parallelism_info(role=named["role"]).model_dump()
    report = {**_head(checker._get_model(), place), **describe_model(checker._get_model())}
    return {"checksums": {ACTION: json.dumps(report)}, "per_gpu_checksum": "", "parallelism_info": place}


def _head(model: Any, place: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "schema": SCHEMA,
        "form": "served",
        "engine": "sglang",
        "engine_version": version("sglang"),
        "architecture": type(model).__name__,
        "world": {"rank": place["rank"], "size": place["size"]},
        "tensor_parallel": {"rank": place["tp_rank"], "size": place["tp_size"]},
        "pipeline_parallel": {"rank": place["pp_rank"], "size": place["pp_size"]},
    }
