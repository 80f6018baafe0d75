"""A rehearsal as text: the three things that are shown, each with its state and why."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.cli.plain import visible

if TYPE_CHECKING:
    from kvgate.cli.formats.page import Page
    from kvgate.probes.rehearsal.seen import Part, Rehearsal
    from kvgate.rules.evidence import Evidence, State

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


@dataclass(frozen=True)
class Told:
    """What the command knows beside what was seen.

    Attributes:
        state: of everything that was asked for.
        backend: that staged it.
        command: that does the same again.
        old: the deployments, as they were named.
        new: likewise.
        stand_in: why a stand-in answered; ``None`` where that was asked for, or none did.
        written: evidence by the file that holds it.
        answers: refutations that were to be answered, by their files: why they are not; ``None`` where they are.

    """

    state: State
    backend: str
    command: str
    old: str
    new: str
    stand_in: str | None = None
    written: tuple[tuple[str, Evidence], ...] = ()
    answers: tuple[tuple[str, str | None], ...] = ()


def rehearsal_page(page: Page, seen: Rehearsal, told: Told) -> None:
    """Lay a rehearsal out; the state is the last line."""
    page.say(f"old: {visible(told.old)}")
    page.say(f"new: {visible(told.new)}")
    because = f"; they differ in, or leave open: {', '.join(seen.because)}" if seen.because else ""
    page.say(f"claim: {_CLAIMS[seen.claim]}{because}", hang=2)
    if (ground := seen.ground) is not None:
        stood = "the deployments' own weights" if ground.model == "real" else "tiny stand-ins with random weights"
        page.say(f"staged with {stood}, {ground.precision}; {_CAME_UP[ground.procedure]}", hang=2)
        if told.stand_in is not None and ground.model == "stand-in":
            page.say(f"not with their own: {visible(told.stand_in)} (--old-model, --new-model)", hang=2)
    if seen.state != "not-run":
        _parts(page, seen)
    if seen.mistakes:
        page.heading("MISTAKES")
        for mistake in seen.mistakes:
            page.say(f"{mistake.id}: {visible(mistake.what)}", indent=2, hang=2)
    page.gap()
    _written(page, told)
    _next(page, seen, told)
    page.say(told.state, style=_STATES[told.state])


def _parts(page: Page, seen: Rehearsal) -> None:
    for name, part in (
        ("control", seen.control),
        ("isolation", seen.isolation),
        ("equivalence", seen.equivalence),
        ("tenants", seen.tenants),
        ("torn", seen.torn),
    ):
        if name not in ("tenants", "torn") or part.state != "not-run":
            _part(page, name, part)
    for heading, found in (("STAGED", seen.staged), ("NOT STAGED", seen.missing)):
        if found:
            page.heading(heading)
            for name, what in sorted(found.items()):
                page.say(f"{name}: {visible(what)}", indent=2, hang=2)


def _written(page: Page, told: Told) -> None:
    for file, why in told.answers:
        page.say(
            f"answers {visible(file)}" if why is None else f"does not answer {visible(file)}: {visible(why)}", hang=2
        )
    if told.written:
        files = (f"{visible(file)} ({one.kind}: {one.state})" for file, one in told.written)
        page.say(f"wrote {', '.join(files)}", hang=2)
    else:
        page.say("nothing was written (-o FILE.json)")


def _next(page: Page, seen: Rehearsal, told: Told) -> None:
    """Say what it comes to, and what to do now."""
    sides = shlex.join([told.old, told.new])
    if seen.torn.state == "failed":
        page.say(
            f"A half-written entry is taken for a whole one: {visible(seen.torn.why)}. Delete what lies in the store "
            "whenever a writer has ended half-way, or store with a connector that notices.",
            hang=2,
        )
    elif seen.torn.state == "open":
        page.say(f"Of half-written entries nothing is shown: {visible(seen.torn.why)}.", hang=2)
    if seen.state == "proved":
        held = "old entries may be read" if seen.claim == "reuse" else "the boundary holds"
        page.say(f"In this rehearsal {held}. What the manifests ask for beside it, `kvgate check` says:", hang=2)
        files = [file for file, _ in (*told.written, *told.answers)] or ["EVIDENCE.json"]
        given = shlex.join(word for file in files for word in ("--evidence", file))
        page.whole(visible(f"kvgate check {sides} {given}"), indent=2)
    elif seen.state == "refuted":
        page.say(f"Do not roll it out: {visible(seen.reason)}.", hang=2)
        page.say("Put that right (`kvgate check` says how), capture, and rehearse again:", hang=2)
        file = shlex.quote(told.written[0][0]) if told.written else None
        answers = "-o EVIDENCE.json" if file is None else f"-o AGAIN.json --supersedes {file}"
        page.whole(visible(f"{told.command} {answers}"), indent=2)
    else:
        page.say(f"Nothing is proved: {visible(seen.reason)}.", hang=2)
        real = seen.ground is not None and seen.ground.model == "real"
        if real and seen.staged and seen.control.state == "open" and seen.control.cached:
            page.say(
                "What differs is too little to be seen in these answers: --evaluate and --prompt-tokens ask more; "
                "--model stand-in shows the boundary with weights that differ by more.",
                hang=2,
            )
        if told.backend == "embedded" and any(name in seen.missing for name in seen.because):
            page.say(
                "What nothing here stands for, a real engine may have: --backend vllm (with --old-engine-python for "
                "another version), or --backend endpoint.",
                hang=2,
            )


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
