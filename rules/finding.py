"""A finding: one change, what a rule makes of it, and what became of its obligations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kvgate.rules.boundary import KeysAnswer
from kvgate.rules.change import Change
from kvgate.rules.pack import Answer, Obligation
from kvgate.rules.values import Known

DECLARED = "declared: "
"""How what meets an obligation begins where somebody says that it will be done."""


@dataclass(frozen=True)
class Finding:
    """One finding. Every one is shown, discharged ones included.

    Attributes:
        rule: id of the rule that answered; ``title``, ``why``, ``fix`` and ``links`` are the rule's words.
        change: what was found.
        baseline: index of the old deployment it is about; ``None`` for the new one alone.
        obligations: what it demands; empty when it is harmless, discharged or waived.
        discharged: what settled it as harmless (``None``: nothing did, or it was harmless to begin with).
        met: obligation to what meets it; an obligation that is not here is open.
        unverified: it is one only because something is not known.
        may_be: what the known difference could turn out to be; such a finding is settled by no acceptance.
        settle: what would make the unknown known.

    """

    rule: str
    title: str
    change: Change
    baseline: int | None
    obligations: tuple[Obligation, ...]
    kv_valid: Answer
    tokens_equal: Answer
    keys_separate: KeysAnswer
    why: str
    unverified: bool = False
    adverse: bool = False
    self_fault: bool = False
    may_be: Literal["clear", "self-fault"] | None = None
    discharged: str | None = None
    waived: str | None = None
    met: dict[str, str] = field(default_factory=dict)
    settle: str | None = None
    fix: str | None = None
    evidence: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[Obligation, ...]:
        """The obligations that nothing meets."""
        return tuple(obligation for obligation in self.obligations if obligation not in self.met)

    @property
    def declared(self) -> bool:
        """Whether a declaration meets an obligation, so that what is declared is still to be done."""
        return any(how.startswith(DECLARED) for how in self.met.values())

    @property
    def harmless(self) -> bool:
        """Whether it demands nothing."""
        return not self.obligations and not self.self_fault

    def as_data(self) -> dict[str, Any]:
        """Return the finding as plain JSON data, camelCase as in-toto predicates are."""
        return {
            "rule": self.rule,
            "title": self.title,
            "baseline": self.baseline,
            "dimension": self.change.dimension,
            "kind": self.change.kind,
            "path": self.change.path,
            "scope": self.change.scope,
            "old": side_as_data(self.change.old),
            "new": side_as_data(self.change.new),
            "detail": self.change.detail,
            "answers": {"kvValid": self.kv_valid, "tokensEqual": self.tokens_equal, "keysSeparate": self.keys_separate},
            "obligations": list(self.obligations),
            "met": dict(sorted(self.met.items())),
            "unverified": self.unverified,
            "adverse": self.adverse,
            "selfFault": self.self_fault,
            "mayBe": self.may_be,
            "discharged": self.discharged,
            "waived": self.waived,
            "settle": self.settle,
            "fix": self.fix,
            "why": self.why,
            "evidence": list(self.evidence),
            "links": list(self.links),
        }


def side_as_data(side: Any) -> dict[str, Any]:
    """Return a field as data: ``{"unknown": true}``, or its value and basis."""
    if isinstance(side, Known):
        return {"value": side.value, "basis": side.basis}
    return {"unknown": True}
