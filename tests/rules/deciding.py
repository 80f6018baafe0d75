"""Short ways to decide about a pair and to write down the whole answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.rules.case import Case, Options
from kvgate.rules.decide import Decision, decide
from kvgate.rules.evidence import Evidence, Kind, State, subject_of
from kvgate.rules.finding import Finding
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from kvgate.rules.profile import Profile
from kvgate.rules.shown import Shown
from kvgate.rules.waivers import Waiver
from tests.rules.clean import clean

Changes = Mapping[str, Any]
STALE = Shown(
    where="scratch", of=["old-entries"], model="stand-in", ran="model", differences=["weights"], prompts=4, tokens=512
)
"""What a rehearsal saw in which the new deployment read the old one's entries; a proof of the same shows as much."""
REUSE, NAMESPACE, CLEAR = "verified-compatible-reuse", "new-namespace", "clear"


def side(given: Manifest | Changes) -> Manifest:
    return given if isinstance(given, Manifest) else clean(dict(given))


def decided(
    old: Manifest | Changes | Sequence[Manifest | Changes],
    new: Manifest | Changes,
    *,
    evidence: Sequence[Evidence] = (),
    waivers: Sequence[Waiver] = (),
    pack: str = "default",
    profiles: Mapping[str, Profile] | None = None,
    **options: Any,
) -> Decision:
    """Decide; ``old`` and ``new`` as manifests or as changes to the clean one."""
    olds = list(old) if isinstance(old, Sequence) else [old]
    case = Case(
        old=tuple(side(one) for one in olds),
        new=side(new),
        pack=shipped_pack(pack),
        evidence=tuple(evidence),
        waivers=tuple(waivers),
        options=Options(**options),
        profiles=profiles,
    )
    return decide(case)


def about(kind: Kind, state: State, old: Manifest | Changes | None, new: Manifest | Changes, **fields: Any) -> Evidence:
    """Make evidence that is bound to these deployments."""
    return Evidence(
        schema="kvgate/evidence/v1",
        kind=kind,
        state=state,
        old=None if old is None else subject_of(side(old), kind),
        new=subject_of(side(new), kind),
        **fields,
    )


def line(finding: Finding) -> str:
    """Write a finding down in one line: what it is about, what is left of it, and why."""
    change = finding.change
    parts = [f"{finding.rule} | {change.dimension}: {change.kind} | {change.path}"]
    if change.scope != "all":
        parts.append(f"scope {change.scope}")
    parts.append(f"keys separate: {finding.keys_separate}")
    marks = [name for name in ("unverified", "adverse", "self_fault") if getattr(finding, name)]
    if finding.may_be:
        marks.append(f"may be {finding.may_be}")
    parts += [" ".join(marks)] if marks else []
    if finding.open:
        parts.append(f"open: {', '.join(finding.open)}")
    parts += [f"{obligation} met: {how}" for obligation, how in finding.met.items()]
    if finding.discharged:
        parts.append(f"discharged: {finding.discharged}")
    if finding.waived:
        parts.append(f"waived: {finding.waived}")
    return " | ".join(parts)


def answer(decision: Decision) -> list[str]:
    """Write the whole decision down."""
    return [f"{decision.verdict}, exit {decision.exit_code}", *(line(finding) for finding in decision.findings)]


def kinds(decision: Decision) -> list[tuple[str, str]]:
    """Return the findings' (dimension, kind), in order."""
    return [(finding.change.dimension, finding.change.kind) for finding in decision.findings]


def rules(decision: Decision) -> list[str]:
    """Return the findings' rule ids, in order."""
    return [finding.rule for finding in decision.findings]
