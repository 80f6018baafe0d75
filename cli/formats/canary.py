"""Canaries as text and as data: tenants are numbered, unless they are asked for by name."""

from __future__ import annotations

from typing import Any

from kvgate.cli.formats.page import Page
from kvgate.cli.formats.privacy import Veil
from kvgate.cli.plain import short, visible
from kvgate.probes.canary.echoes import Echoes
from kvgate.probes.canary.probe import FEWEST, Isolation

_LONGEST = 100
_KINDS = {
    "own": "hold their tenant's reference",
    "foreign": "hold another tenant's reference",
    "unknown": "hold a reference of no tenant in the file",
    "malformed": "malformed: something else stands where the reference belongs",
    "missing": "missing: no reference",
    "unreadable": "lines are no answer of a known tenant",
}


def echoes_data(found: Echoes, state: str, why: str, veil: Veil) -> dict[str, Any]:
    """Return what answers held as plain data."""
    return {
        "state": state,
        "why": why,
        "answers": found.total,
        "counts": {kind: found.counts[kind] for kind in _KINDS},
        "firstLine": dict(found.first),
        "foreign": [
            {
                "line": leak.line,
                "request": leak.request,
                "expected": veil.namespace(leak.expected),
                "seen": veil.namespace(leak.seen),
            }
            for leak in found.leaks
        ],
    }


def echoes_page(page: Page, found: Echoes, state: str, why: str, veil: Veil) -> None:
    """Write what answers held as text, the outcome last."""
    for kind, text in _KINDS.items():
        if number := found.counts[kind]:
            page.say(f"{number:,} {text} (first: line {found.first[kind]})", indent=2)
    for leak in found.leaks:
        expected, seen = (visible(veil.namespace(name) or "") for name in (leak.expected, leak.seen))
        named = visible(short(leak.request, _LONGEST))
        page.say(f"{named}: expected tenant {expected}, seen tenant {seen} (line {leak.line})", indent=4, hang=2)
    if found.counts["foreign"] > len(found.leaks):
        page.say(f"and {found.counts['foreign'] - len(found.leaks):,} more", indent=4)
    page.gap()
    page.say(visible(why))
    page.say(state, style="bold")


def isolation_data(found: Isolation) -> dict[str, Any]:
    """Return what a probe found as plain data."""
    timing = found.timing
    return {
        "state": found.state,
        "why": found.why,
        "processes": len(found.who.processes) or None,
        "byTokens": found.tokens,
        "byTime": None
        if timing is None
        else {
            "state": timing.state,
            "control": timing.warm,
            "other": timing.other,
            "power": timing.power,
            "secondsSaved": timing.saved,
            "secondsGained": timing.gained,
        },
        "tries": [
            {name: {"cachedTokens": pair[0], "seconds": pair[1]} for name, pair in vars(sample).items()}
            for sample in found.samples
        ],
    }


def isolation_page(page: Page, found: Isolation) -> None:
    """Write what a probe found as text, the outcome last."""
    told = found.tokens or "not told by the server"
    page.say(f"by cached tokens: {told}")
    if found.timing is None:
        page.say(f"by time to the first token: too few tries, {FEWEST} at least")
    else:
        timing = found.timing
        page.say(
            f"by time to the first token: {timing.state} "
            f"(a hit saves {timing.saved * 1e3:.1f} ms, p = {timing.warm:.2g}; "
            f"the other tenant gains {timing.gained * 1e3:.1f} ms, p = {timing.other:.2g}; power {timing.power:.2f})"
        )
    page.gap()
    for text in found.who.missing.values():
        if text not in found.why:
            page.say(text)
    page.say(found.why)
    page.say(found.state, style="bold")
