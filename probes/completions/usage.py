"""What a server says of its cache in the usage of an answer; each API has fields of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer.

    Attributes:
        prompt: tokens of the prompt; ``None``: not told.
        cached: those that came from a cache; ``None``: not told, which is not zero.
        written: those that were written to one; ``None``: not told.

    """

    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


def read_usage(answer: Any) -> Usage:
    """Return what an answer says.

    OpenAI, vLLM with ``--enable-prompt-tokens-details`` and SGLang with ``--enable-cache-report``:
    ``usage.prompt_tokens_details.cached_tokens``. OpenAI's responses: ``input_tokens_details``. DeepSeek:
    ``prompt_cache_hit_tokens``. Anthropic, and vLLM and SGLang in its place: ``cache_read_input_tokens`` and
    ``cache_creation_input_tokens``, which are not part of ``input_tokens``. SGLang's own ``/generate``: ``meta_info``.
    Sources: vllm/entrypoints/serve/engine/protocol.py and anthropic/protocol.py, 0.32.0;
    sglang/srt/entrypoints/openai/protocol.py and anthropic/protocol.py, 0.5.23; the vendors' API references.
    """
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        usage = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return Usage()
    if "input_tokens" in usage and "input_tokens_details" not in usage:
        read, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        own = _count(usage, "input_tokens")
        return Usage(None if own is None else own + (read or 0) + (written or 0), read, written)
    prompt = _first(_count(usage, "prompt_tokens"), _count(usage, "input_tokens"))
    details = _first(usage.get("prompt_tokens_details"), usage.get("input_tokens_details"))
    cached = _first(
        _count(details, "cached_tokens"), _count(usage, "prompt_cache_hit_tokens"), _count(usage, "cached_tokens")
    )
    # More than there are is no count of them.
    return Usage(prompt, None if prompt is not None and cached is not None and cached > prompt else cached, None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _count(data: Any, name: str) -> int | None:
    value = data.get(name) if isinstance(data, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 40 else None
