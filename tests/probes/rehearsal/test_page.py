"""What a reader is told at the end: what it comes to, and what to do now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvgate.cli.formats.page import Page
from kvgate.cli.formats.rehearsal import Told, rehearsal_page
from kvgate.probes.rehearsal.backend import Ground
from kvgate.probes.rehearsal.evidence import evidence_of
from kvgate.probes.rehearsal.judging import Torn
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.rules.privacy import REDACTED, redacted
from kvgate.rules.shown import Shown
from tests.probes.rehearsal.pairs import WEIGHTS, deployment
from tests.probes.rehearsal.test_judging import MISS, READ, STALE, seen

_REAL = Ground("real", "float32/eager/cpu", {})
_STAND_IN = Ground("stand-in", "float32/eager/cpu", {})


def page_of(found: Rehearsal, **told: Any) -> str:
    page = Page(400, color=False)
    known = {"state": found.state, "backend": "embedded", "command": "kvgate rehearse a b --evaluate 2", **told}
    rehearsal_page(page, found, Told(old="a", new="b", **known))
    return page.text()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (seen(), ("In this rehearsal the boundary holds", "kvgate check a b --evidence EVIDENCE.json")),
        (seen(inside=(STALE,)), ("Do not roll it out", "kvgate rehearse a b --evaluate 2 -o EVIDENCE.json")),
        (seen(control=(READ,), ground=_REAL), ("Nothing is proved", "too little to be seen in these answers")),
        (seen(torn=Torn((READ,), (STALE,))), ("A half-written entry is taken for a whole one",)),
        (seen(torn=Torn((READ,), ())), ("Of half-written entries nothing is shown",)),
        (
            replace(seen(control=()), because=("engine.version",), missing={"engine.version": "differs"}),
            ("engine.version: differs", "--backend vllm (with --old-engine-python"),
        ),
        (Rehearsal("separate", "not-run", "no name"), ("Nothing is proved: no name.", "nothing was written")),
    ],
)
def test_it_ends_with_what_to_do_now(found: Rehearsal, words: tuple[str, ...]) -> None:
    page = page_of(found)
    assert [word for word in words if word not in page] == []
    assert page.splitlines()[-1] == found.state
    assert ("control" in page) is (found.state != "not-run")


def test_why_a_stand_in_answered_is_said_where_one_did() -> None:
    why = "/models/a: there is no checkpoint folder there"
    assert why in page_of(seen(ground=_STAND_IN), stand_in=why)
    assert why not in page_of(seen(ground=_REAL), stand_in=why)


def test_evidence_says_what_it_shows_and_can_be_read() -> None:
    """Parts between tenants hold no tenant's name: nothing of them is private."""
    old, new = deployment(), deployment(WEIGHTS)

    def evidence(found: Rehearsal, **more: Any) -> Any:
        return evidence_of(old, new, found, backend="embedded", tools={}, command="kvgate", **more)[0]

    proof, refuted = evidence(seen(ground=_STAND_IN)), evidence(seen(ground=_STAND_IN, inside=(STALE,)))
    assert proof.shown == Shown(
        where="scratch",
        of=["old-entries", "own-entries", "old-entries-of-tenants", "own-entries-of-tenants"],
        model="stand-in",
        ran="model",
        differences=["weights"],
        prompts=1,
        tokens=proof.shown.tokens,
    )
    assert refuted.shown.of == ["old-entries"]
    assert REDACTED not in str(redacted(proof).as_data())
    assert evidence(seen(ground=_STAND_IN), refutations=[refuted]).supersedes == [refuted.digest]
    assert evidence(seen(ground=_STAND_IN, inside=(STALE,)), refutations=[refuted]).supersedes == []
    assert evidence(seen(ground=_STAND_IN, control=(MISS,)), refutations=[refuted]).supersedes == []
