"""From findings to an answer: waivers, declarations, the verdict, acceptance and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.rules.boundary import about_the_target
from kvgate.rules.case import Case, Options, Verdict
from kvgate.rules.finding import DECLARED, Finding
from kvgate.rules.values import Known
from kvgate.rules.waivers import Waiver


@dataclass(frozen=True)
class Settled:
    """What a declaration and the accepted verdicts make of findings."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    accepted: bool
    why: str
    exit_code: int


def settle(findings: Sequence[Finding], options: Options) -> Settled:
    """Apply what is declared and accepted; ``advisory`` and the date play no part here."""
    settled = tuple(_declared(finding, options) for finding in findings)
    verdict = _verdict(settled)
    return Settled(settled, verdict, *_accept(verdict, settled, options))


def waive(findings: list[Finding], case: Case) -> tuple[list[Finding], list[tuple[Waiver, str]]]:
    """Apply the waivers of a case; also return those that were not used, each with the reason.

    A waiver that fits several findings and names no path covers none of them: equal values (``false`` to
    ``true``) say nothing of which field somebody signed for.
    """
    fitting = [
        [place for place, finding in enumerate(findings) if _may_be_waived(finding) and _covers(waiver, finding)]
        for waiver in case.waivers
    ]
    used: set[int] = set()
    result = list(findings)
    for number, (waiver, places) in enumerate(zip(case.waivers, fitting, strict=True)):
        paths = {findings[place].change.path for place in places}
        if waiver.expired(case.options.as_of) or (waiver.path is None and len(paths) > 1):
            continue
        for place in places:
            if result[place].waived is not None:
                continue
            used.add(number)
            signed = f"{waiver.owner} until {waiver.expires}: {waiver.reason}"
            result[place] = replace(result[place], obligations=(), waived=signed)
    unused = [
        (waiver, _why_unused(waiver, [result[place] for place in places], case.options.as_of))
        for number, (waiver, places) in enumerate(zip(case.waivers, fitting, strict=True))
        if number not in used
    ]
    return result, unused


def _why_unused(waiver: Waiver, fits: list[Finding], as_of: str) -> str:
    if waiver.expired(as_of):
        return f"expired {waiver.expires}"
    if not fits:
        return "no finding has its rule, dimension and values"
    return "another waiver covers it" if all(one.waived for one in fits) else "it fits several findings: name the path"


def _may_be_waived(finding: Finding) -> bool:
    return bool(finding.obligations) and not (
        finding.unverified
        or finding.adverse
        or finding.self_fault
        or finding.may_be is not None
        or "delete" in finding.obligations
    )


def _covers(waiver: Waiver, finding: Finding) -> bool:
    old, new = finding.change.old, finding.change.new
    return (
        isinstance(old, Known)
        and isinstance(new, Known)
        and waiver.covers(finding.rule, finding.change.dimension, finding.change.path, old.value, new.value)
    )


def _declared(finding: Finding, options: Options) -> Finding:
    """Apply ``--declare clear``: it deletes, and it separates only where old workers are drained first."""
    if not options.declare_clear or finding.self_fault or finding.baseline is None:
        return finding
    meets = dict(finding.met)
    if "delete" in finding.obligations:
        meets.setdefault("delete", f"{DECLARED}the old entries are deleted")
    # A pool that is not known may have filed its entries where nobody looks for them to delete.
    out_of_sight = about_the_target(finding.change) or (finding.change.dimension == "roles" and finding.unverified)
    if "separate" in finding.obligations and options.strategy == "recreate" and not out_of_sight:
        meets.setdefault(
            "separate", f"{DECLARED}old workers are drained and their entries deleted before new ones start"
        )
    return finding if meets == finding.met else replace(finding, met=meets)


def _verdict(findings: Sequence[Finding]) -> Verdict:
    demanded = {obligation for finding in findings for obligation in finding.obligations}
    if "delete" in demanded:
        return "clear"
    return "new-namespace" if "separate" in demanded else "verified-compatible-reuse"


def _accept(verdict: Verdict, findings: Sequence[Finding], options: Options) -> tuple[bool, str, int]:
    if any(finding.self_fault for finding in findings):
        return False, "the new deployment is unsafe by itself; no boundary discharges that", 30
    unmet = [finding for finding in findings if finding.open]
    if not unmet:
        if verdict == "verified-compatible-reuse":
            return True, "every difference is absent or proved harmless", 0
        return True, "every obligation is met by what is declared or by the key", 0
    undecided = [finding for finding in unmet if finding.may_be is not None]
    if verdict in options.accept and not undecided:
        return True, f"{verdict} is accepted by the caller", 0
    if any("delete" in finding.open for finding in unmet):
        return False, "old entries must be deleted, and that is not declared", 20
    if all(finding.unverified for finding in unmet):
        return False, "evidence is missing", 11
    return False, "the boundary does not carry the difference out", 10
