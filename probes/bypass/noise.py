"""How far a server's own cache moves its answers: measured on prompts whose entries it has just computed itself."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvgate.probes.bypass.judging import Row, agreement
from kvgate.probes.bypass.methods import Bypass
from kvgate.probes.completions.requests import Request
from kvgate.rules.change import same
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest

_ASKED = 3  # prompts
_ALIKE = (
    "engine.name",
    "engine.version",
    "engine.accelerator",
    "engine.attention_backend",
    "precision.compute",
    "precision.kv_cache",
    "precision.kv_scales",
    "parallelism.tensor",
    "model.quantization",
    "cache.serde",
)
_MARGIN = 4.0  # times what was measured on so few


def own_noise(bypass: Bypass, requests: Sequence[Request]) -> float | None:
    """Return the largest difference of a log-probability between entries that are right and none, in nats.

    Some of the requests are sent with their prompts turned round at a place that is drawn: of the same length, and in
    nobody's cache. What is then read is what the server computed a moment ago.

    Returns:
        ``None`` where it cannot be measured: the server does not tell that it read nothing at first and something then.

    """
    found: list[float] = []
    for number in sorted({0, len(requests) // 2, len(requests) - 1})[:_ASKED]:
        turned = _turned(requests[number])
        if turned is None:
            continue
        try:
            first, again, off = bypass.reusing(turned), bypass.reusing(turned), bypass.bypassing(turned)
        except InputError:
            continue
        if first.usage.cached == 0 == off.usage.cached and again.usage.cached and again.top and off.top:
            found.append(agreement(again, off, float("inf")).difference)
    return max(found, default=None)


def floor_of(noise: float | None, step: float, tolerance: float) -> float:
    """Return below which difference answers are alike: a step of the format at least, the tolerance at most."""
    return min(tolerance, step if noise is None else max(step, _MARGIN * noise))


def alike(new: Manifest | None, old: Manifest | None) -> bool:
    """Whether what filled a cache is known to compute as the server does that reads it, but for the model.

    A store that packs with losses gives back what neither computed; the server's own entries lie in its memory.
    """
    if new is None or old is None or new.value("cache.serde") not in (None, "naive"):
        return False
    if new.value("engine.accelerator") is None:
        return False  # null names none, and every engine runs on one
    return all(same(old.get(path), new.get(path)) is True for path in _ALIKE)


def settle(row: Row, floor: float, noise: float | None, tolerance: float, *, alike: bool) -> Row:
    """Decide on what is further off than the server's own cache explains, and less than the tolerance.

    Entries of a worker that computes alike are no further off than the server's own. Otherwise it stays open.
    """
    if row.outcome not in ("match", "near-tie") or row.difference is None or row.difference <= floor:
        return row
    off = f"it is {row.difference:.2g} nats off"
    if noise is None:
        return replace(row, outcome="unclear", why=f"{off}, and what its own entries give was not to be measured")
    if alike:
        return replace(row, outcome="differs", why=f"{off}, and its own entries give {noise:.2g}")
    return replace(
        row,
        outcome="unclear",
        why=f"{off}, its own entries give {noise:.2g}, and those of a worker on other hardware may give {tolerance:g}: "
        "it is another answer if what filled the cache computes alike (--manifest and --old, or --tolerance)",
    )


def _turned(request: Request) -> Request | None:
    prompt = request.body.get("prompt")
    if prompt is not None:
        return _with(request, {**request.body, "prompt": _turn(prompt)}) if len(prompt) > 1 else None
    told = request.body.get("messages")
    messages = told if isinstance(told, list) else []
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str) and len(content) > 1:
            changed = [*messages[:place], {**message, "content": _turn(content)}, *messages[place + 1 :]]
            return _with(request, {**request.body, "messages": changed})
    return None


def _with(request: Request, body: dict[str, Any]) -> Request:
    return replace(request, body=body, expect=None)


def _turn(prompt: Any) -> Any:
    place = 1 + secrets.randbelow(len(prompt) - 1)
    return prompt[place:] + prompt[:place]
