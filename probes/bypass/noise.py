"""How far a server's own cache moves its answers: measured on prompts whose entries it has just computed itself."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvgate.probes.bypass.judging import Row, agreement
from kvgate.probes.bypass.methods import Bypass
from kvgate.probes.completions.requests import Request
from kvgate.rules.errors import InputError

_ASKED = 3  # prompts
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


def settle(row: Row, floor: float, noise: float | None, tolerance: float) -> Row:
    """Leave open what is further off than the server's own cache explains, and less than the tolerance."""
    if row.outcome not in ("match", "near-tie") or row.difference is None or row.difference <= floor:
        return row
    own = "what its own entries give was not to be measured" if noise is None else f"its own entries give {noise:.2g}"
    return replace(
        row,
        outcome="unclear",
        why=f"it is {row.difference:.2g} nats off, {own}, and up to {tolerance:g} may be arithmetic on other hardware",
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
