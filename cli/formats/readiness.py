"""Whether a worker is the one that was approved, as text and as data."""

from __future__ import annotations

from typing import Any

from kvgate.cli.formats.page import Page
from kvgate.cli.plain import short, visible
from kvgate.probes.readiness.items import Item, Readiness

_LONGEST = 600
_HEADINGS = {"differs": "DIFFERS FROM WHAT WAS APPROVED", "not asked": "COULD NOT BE ASKED", "same": "AS APPROVED"}


def readiness_data(found: Readiness) -> dict[str, Any]:
    """Return it as plain data."""
    return {"state": found.state, "items": [vars(item) for item in found.items], "unasked": sorted(found.unasked)}


def readiness_page(page: Page, found: Readiness, endpoint: str) -> None:
    """Write it as text, the outcome last."""
    page.say(f"asked: {visible(endpoint)}")
    page.gap()
    for state, heading in _HEADINGS.items():
        items = [item for item in found.items if item.state == state]
        if items:
            page.heading(f"{heading} ({len(items)})")
        for item in items:
            taken = "; accepted without an answer" if state == "not asked" and item.name in found.unasked else ""
            page.say(f"{item.name}: {said(item, endpoint)}{taken}", indent=2, hang=2)
    page.gap()
    page.say(found.state, style="bold")


def said(item: Item, endpoint: str = "") -> str:
    """Return what was found of an item, one line; places are named as the server's own where it is given."""
    told = item.why.replace(endpoint.rstrip("/"), "").removeprefix(": ") if endpoint else item.why
    approved, there, why = (visible(short(text, _LONGEST)) for text in (item.approved, item.found, told))
    if item.state == "differs":
        return f"{approved} was approved, {there} is here ({why})"
    if item.state == "same":
        return f"{approved} ({why})" if approved else why
    return why
