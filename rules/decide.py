"""The decision: manifests and evidence in, verdict and obligations out. Pure: the same inputs give the same answer."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.rules.case import Case, Verdict
from kvgate.rules.find import Between, find
from kvgate.rules.finding import Finding
from kvgate.rules.namespace import Derived, derive
from kvgate.rules.settling import settle
from kvgate.rules.waivers import Waiver


@dataclass(frozen=True)
class Decision:
    """The answer, with everything that led to it.

    Attributes:
        verdict: the strictest that any finding demands.
        accepted: whether every obligation is met, or the verdict is accepted by the caller.
        why: one sentence for ``accepted``.
        exit_code: the process's exit code for it (design, section 6).
        boundaries: one for each old deployment, in order, and for each pair of pools where there are several.
    """

    case: Case
    verdict: Verdict
    accepted: bool
    why: str
    exit_code: int
    findings: tuple[Finding, ...]
    boundaries: tuple[Between, ...]
    derived: Derived
    unused_waivers: tuple[tuple[Waiver, str], ...] = ()

    @property
    def enforced(self) -> bool:
        """Whether the exit code follows the decision."""
        return not self.case.options.advisory


def decide(case: Case) -> Decision:
    """Decide whether the new deployment may reach what the old ones stored.

    Raises:
        InputError: where manifests contradict each other.
    """
    found = find(case)
    settled = settle(found.findings, case.options)
    return Decision(
        case,
        settled.verdict,
        settled.accepted,
        settled.why,
        0 if case.options.advisory else settled.exit_code,
        settled.findings,
        found.boundaries,
        derive(case.new),
        found.unused_waivers,
    )
