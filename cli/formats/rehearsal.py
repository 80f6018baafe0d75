"""A rehearsal as text: the three things that are shown, each with its state and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.cli.plain import visible

if TYPE_CHECKING:
    from kvgate.cli.formats.page import Page
    from kvgate.probes.rehearsal.seen import Part, Rehearsal

_STYLES = {"held": "green", "failed": "bold red", "open": "yellow", "not-run": "yellow"}
_WORDS = {"open": "shows nothing", "not-run": "not run"}
_STATES = {"proved": "bold green", "refuted": "bold red", "inconclusive": "bold yellow", "not-run": "bold yellow"}
_CAME_UP = {
    "plan": "the plan: no launch file was started",
    "launch files": "launch files were started",
    "running servers": "servers that the operator had started were asked",
}
_CLAIMS = {
    "reuse": "the new deployment reads what the old one stored",
    "separate": "the new deployment keeps away from what the old one stored",
}


def rehearsal_page(page: Page, seen: Rehearsal) -> None:
    """Lay a rehearsal out; the state is the last line."""
    page.say(f"claim: {_CLAIMS[seen.claim]}")
    if (ground := seen.ground) is not None:
        stood = "the deployments' own weights" if ground.model == "real" else "tiny stand-ins with random weights"
        page.say(f"staged with {stood}, {ground.precision}; {_CAME_UP[ground.procedure]}")
    for name, part in (
        ("control", seen.control),
        ("isolation", seen.isolation),
        ("equivalence", seen.equivalence),
        ("tenants", seen.tenants),
    ):
        if name != "tenants" or part.state != "not-run":
            _part(page, name, part)
    for heading, found in (("STAGED", seen.staged), ("NOT STAGED", seen.missing)):
        if found:
            page.heading(heading)
            for name, what in sorted(found.items()):
                page.say(f"{name}: {visible(what)}", indent=2, hang=2)
    if seen.mistakes:
        page.heading("MISTAKES")
        for mistake in seen.mistakes:
            page.say(f"{mistake.id}: {visible(mistake.what)}", indent=2, hang=2)
    page.gap()
    page.say(visible(seen.reason))
    page.say(seen.state, style=_STATES[seen.state])


def _part(page: Page, name: str, part: Part) -> None:
    page.gap()
    word = _WORDS.get(part.state, part.state)
    page.parts([(f"{name}: ", "bold"), (word, _STYLES[part.state]), (f"  {visible(part.why)}", "")], hang=2)
    if part.hits:
        hits = sum(hit.cached > 0 for hit in part.hits)
        wrong = sum(hit.wrong for hit in part.hits)
        page.say(
            f"{len(part.hits)} prompts, {hits} hit the store ({part.cached:,} tokens), {wrong} answered wrong",
            indent=2,
            hang=2,
        )
