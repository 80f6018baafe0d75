"""A bypass diff as text and as data."""

from __future__ import annotations

from typing import Any

from kvgate.cli.formats.page import Page
from kvgate.cli.plain import short, visible
from kvgate.probes.bypass.diff import BypassDiff
from kvgate.probes.bypass.judging import Row

_SHOWN = 100
_LONGEST = 60


def bypass_data(found: BypassDiff) -> dict[str, Any]:
    """Return a bypass diff as plain data."""
    rows = [
        {
            "line": row.line,
            "id": row.id,
            "outcome": row.outcome,
            "why": row.why,
            "promptTokens": row.prompt,
            "cachedTokens": row.cached,
            "cachedTokensBypassed": row.bypassed,
            "inTheCacheBefore": row.there,
            "divergence": row.divergence,
            "unit": row.unit,
            "difference": row.difference,
        }
        for row in found.rows
    ]
    return {
        "verdict": found.verdict,
        "why": found.why,
        "method": found.method,
        "tolerance": found.tolerance,
        "ownNoise": found.noise,
        "counts": dict(found.counts),
        "notSent": found.not_sent,
        "processes": len(found.who.processes) or None,
        "requests": rows,
    }


def bypass_page(page: Page, found: BypassDiff) -> None:
    """Write a bypass diff as text, its verdict last."""
    noise = "" if found.noise is None else f"; the server's own entries: {found.noise:.2g} nats"
    page.say(f"method: {found.method}; tolerance: {found.tolerance:g} nats{noise}")
    page.gap()
    for row in found.rows[:_SHOWN]:
        page.say(_line(row), indent=2, hang=2)
    if len(found.rows) > _SHOWN:
        page.say(f"and {len(found.rows) - _SHOWN:,} more (-o json has them)", indent=2)
    if found.not_sent:
        page.say(f"not sent: {found.not_sent:,}", indent=2)
    page.gap()
    for text in found.who.missing.values():
        if text not in found.why:
            page.say(text)
    page.say(visible(found.why))
    page.say(found.verdict, style="bold")


def _line(row: Row) -> str:
    parts: list[str] = [row.outcome]
    if row.divergence is not None:
        parts.append(f"from {row.unit} {row.divergence} on")
    if row.difference is not None:
        parts.append(f"log-probabilities up to {row.difference:.3g} apart")
    if row.cached is not None:
        prompt = "" if row.prompt is None else f" of {row.prompt:,}"
        parts.append(f"{row.cached:,}{prompt} tokens cached")
    why = f" ({visible(short(row.why, 200))})" if row.why else ""
    line = f"line {row.line}"
    name = line if row.id == line else f"{line}, {visible(short(row.id, _LONGEST))}"
    return f"{name}: {', '.join(parts)}{why}"
