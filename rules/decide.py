"""The decision: manifests and evidence in, verdict and obligations out. Pure: the same inputs give the same answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kvgate.rules.alone import judge_alone
from kvgate.rules.boundary import Boundary, about_the_target, find_boundary, keys_answer, met, target_shown
from kvgate.rules.catalogue import dimension
from kvgate.rules.change import UNCLASSIFIED, UNVERIFIED, Change
from kvgate.rules.compare.sides import Sides
from kvgate.rules.diff import compare
from kvgate.rules.evidence import Evidence, superseded
from kvgate.rules.finding import Finding
from kvgate.rules.manifest import Manifest, manifest_from
from kvgate.rules.namespace import Derived, derive
from kvgate.rules.pack import Discharge, Obligation, Pack, Rule
from kvgate.rules.privacy import redacted
from kvgate.rules.profile import Coverer, Profile, cover, uses_mla, version_in
from kvgate.rules.values import UNKNOWN, Known
from kvgate.rules.waivers import Waiver

Verdict = Literal["verified-compatible-reuse", "new-namespace", "clear"]
VERDICTS: tuple[Verdict, ...] = ("verified-compatible-reuse", "new-namespace", "clear")
Strategy = Literal["rolling", "recreate"]

_TOKEN_DIMENSIONS = ("tokenizer", "tokenizer.renderer", "tokenizer.options", "chat_template")


@dataclass(frozen=True)
class Options:
    """How a decision is asked for.

    Attributes:
        strategy: ``recreate`` drains the old workers before the new ones start.
        declare_clear: the operator deletes the old deployments' entries as part of this change.
        accept: verdicts that the caller accepts.
        advisory: report, never refuse.
        as_of: the date against which waivers expire, ``YYYY-MM-DD``.

    """

    strategy: Strategy = "rolling"
    declare_clear: bool = False
    accept: frozenset[Verdict] = frozenset()
    advisory: bool = False
    as_of: str = "1970-01-01"


@dataclass(frozen=True)
class Case:
    """Everything a decision is made from.

    Attributes:
        old: every deployment that wrote into the namespace; empty for a first deployment.
        new: the deployment to be rolled out.
        profiles: connector profiles by id; the shipped ones where ``None``.

    """

    old: tuple[Manifest, ...]
    new: Manifest
    pack: Pack
    evidence: tuple[Evidence, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    options: Options = field(default_factory=Options)
    profiles: Mapping[str, Profile] | None = None


@dataclass(frozen=True)
class Decision:
    """The answer, with everything that led to it.

    Attributes:
        verdict: the strictest that any finding demands.
        accepted: whether every obligation is met, or the verdict is accepted by the caller.
        why: one sentence for ``accepted``.
        exit_code: the process's exit code for it (design, section 6).
        boundaries: one for each old deployment, in order.
        used: digests of the evidence that had an effect.

    """

    case: Case
    verdict: Verdict
    accepted: bool
    why: str
    exit_code: int
    findings: tuple[Finding, ...]
    boundaries: tuple[Boundary, ...]
    derived: Derived
    cover: Coverer
    unused_waivers: tuple[tuple[Waiver, str], ...] = ()

    @property
    def enforced(self) -> bool:
        """Whether the exit code follows the decision."""
        return not self.case.options.advisory


@dataclass(frozen=True)
class Found:
    """What a case holds before anybody declares or accepts anything."""

    findings: tuple[Finding, ...]
    boundaries: tuple[Boundary, ...]
    cover: Coverer
    unused_waivers: tuple[tuple[Waiver, str], ...]


@dataclass(frozen=True)
class Settled:
    """What a declaration and the accepted verdicts make of findings."""

    findings: tuple[Finding, ...]
    verdict: Verdict
    accepted: bool
    why: str
    exit_code: int


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
        found.cover,
        found.unused_waivers,
    )


def find(case: Case) -> Found:
    """Find everything that demands something, or that a reader must see.

    Raises:
        InputError: where manifests contradict each other.
    """
    new_cover = cover(case.new, case.profiles)
    findings: list[Finding] = _alone(case, new_cover)
    boundaries: list[Boundary] = []
    for index, old in enumerate(case.old):
        sides = Sides(old, case.new, cover(old, case.profiles), new_cover)
        found, boundary = _pair(case, sides, index)
        findings += found
        boundaries.append(boundary)
    if not case.old:
        findings += _first(case, new_cover)
    findings, unused = _waive(findings, case)
    return Found(tuple(findings), tuple(boundaries), new_cover, tuple(unused))


def settle(findings: Sequence[Finding], options: Options) -> Settled:
    """Apply what is declared and accepted; ``advisory`` and the date play no part here."""
    settled = tuple(_declared(finding, options) for finding in findings)
    verdict = _verdict(settled)
    return Settled(settled, verdict, *_accept(verdict, settled, options))


# ---- findings ----


def _alone(case: Case, new_cover: Coverer) -> list[Finding]:
    findings = [
        replace(
            _finding(case.pack.rule_for(change.dimension, change.kind), change, None),
            keys_separate="unknown" if new_cover.profile is None else "no",
        )
        for change in judge_alone(case.new, new_cover)
    ]
    return findings + _roles(case, new_cover)


def _roles(case: Case, new_cover: Coverer) -> list[Finding]:
    """Judge the pools of one deployment against each other: they share the store while they run."""
    roles = case.new.value("roles") or {}
    if not roles or new_cover.absent:
        return []
    pools = {name: _as_role(case.new, role["set"]) for name, role in sorted(roles.items())}
    rule, unknown = (case.pack.rule_for("roles", kind) for kind in ("fault", UNVERIFIED))
    own = case.new.get("roles")
    findings = []
    for (one, first), (other, second) in itertools.combinations(pools.items(), 2):
        sides = Sides(first, second, cover(first, case.profiles), cover(second, case.profiles))
        overridden = {*roles[one]["set"], *roles[other]["set"]}
        for finding in _pair(case, sides, None)[0]:
            path = finding.change.path
            if finding.unverified:
                # What is unknown of the whole deployment is said once, where it is judged alone.
                if path in overridden:
                    detail = f"{one} and {other} differ in {path}, which is not known of both"
                    findings.append(
                        _finding(unknown, Change("roles", UNVERIFIED, "roles", UNKNOWN, own, detail=detail), None)
                    )
            elif finding.open and not _about_the_store(finding):
                detail = f"{one} and {other} differ in {path} and share keys"
                fault = _finding(rule, Change("roles", "fault", "roles", UNKNOWN, own, detail=detail), None)
                findings.append(replace(fault, keys_separate=finding.keys_separate))
    return findings


def _about_the_store(finding: Finding) -> bool:
    """Whether a finding is about what lies in the store; pools that are filed apart share nothing."""
    return finding.adverse or finding.change.kind == "producer" or about_the_target(finding.change)


def _as_role(new: Manifest, overrides: Mapping[str, Any]) -> Manifest:
    data = _plain(new.data)
    for path, value in overrides.items():
        *sections, leaf = path.split(".")
        target = data
        for section in sections:
            if not isinstance(target.get(section), dict):
                target[section] = {}
            target = target[section]
        target[leaf] = value
    data["roles"] = None
    return manifest_from(data, new.source)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _first(case: Case, new_cover: Coverer) -> list[Finding]:
    if new_cover.absent:
        return []
    path = "cache.connector"
    change = Change(path, "first", path, UNKNOWN, case.new.get(path), "all", "no old deployment was given")
    finding = replace(_finding(case.pack.rule_for(path, "first"), change, None), unverified=True)
    inventory = [item for item in case.evidence if item.kind == "inventory"]
    how = target_shown(case.new, new_cover, [item for item in inventory if item.supports(None, case.new)])
    answered = superseded(list(case.evidence), None, case.new)
    if any(item.digest not in answered and item.speaks_against(None, case.new) for item in inventory):
        how = None
    adverse = _adverse(case, None, None)
    return [replace(finding, met={"separate": how} if how else {}), *adverse]


def _pair(case: Case, sides: Sides, index: int | None) -> tuple[list[Finding], Boundary]:
    answered = superseded(list(case.evidence), sides.old, sides.new)
    against = {
        item.kind for item in case.evidence if item.speaks_against(sides.old, sides.new) and item.digest not in answered
    }
    proved = [item for item in case.evidence if item.supports(sides.old, sides.new) and item.kind not in against]
    boundary = find_boundary(sides, [item for item in proved if item.kind == "inventory"])
    if "inventory" in against:
        why = "an inventory shows entries of another identity at the target"
        boundary = replace(boundary, knob=None, why_knob=why, target=None)
    findings = []
    changes = compare(sides)
    tokens_proved = _tokens_proved(changes, proved)
    for change in changes:
        rule = case.pack.rule_for(change.dimension, change.kind)
        finding = replace(_finding(rule, change, index), keys_separate=keys_answer(change, boundary, sides))
        findings.append(_settled(finding, rule.discharged_by, sides, boundary, proved, tokens_proved, against))
    for finding in _adverse(case, sides, index):
        ways = case.pack.adverse_rule_by_id(finding.rule).discharged_by
        settled = _settled(finding, ways, sides, boundary, proved, tokens_proved, against)
        _merge(findings, replace(settled, keys_separate=keys_answer(finding.change, boundary, sides)))
    return findings, boundary


def _merge(findings: list[Finding], adverse: Finding) -> None:
    """Add a refutation to the finding that it explains, or as one of its own.

    It only ever adds: the finding keeps its obligations, and gains the answers and the evidence.
    """
    group = _TOKEN_DIMENSIONS if adverse.change.dimension in _TOKEN_DIMENSIONS else (adverse.change.dimension,)
    for number, finding in enumerate(findings):
        explains = finding.change.dimension in group and not finding.unverified
        if explains and set(adverse.obligations) <= set(finding.obligations):
            detail = "; ".join(part for part in (finding.change.detail, adverse.change.detail) if part)
            findings[number] = replace(
                finding,
                change=replace(finding.change, detail=detail),
                evidence=(*finding.evidence, *adverse.evidence),
                kv_valid=adverse.kv_valid,
                tokens_equal=adverse.tokens_equal,
                adverse=True,
            )
            return
    findings.append(adverse)


def _finding(rule: Rule, change: Change, index: int | None) -> Finding:
    unverified = change.unverified
    return Finding(
        rule=rule.id,
        title=rule.title,
        change=change,
        baseline=index,
        obligations=tuple(rule.obligations),
        kv_valid="unknown" if unverified and rule.kv_valid == "no" else rule.kv_valid,
        tokens_equal=rule.tokens_equal,
        keys_separate="unknown",
        why=rule.why,
        unverified=unverified,
        self_fault=rule.self_fault,
        # Only the new side's own unknowns can hide a self-fault.
        may_be=None if not unverified else rule.may_be if index is None else rule.may_be_against_old,
        settle=dimension(change.dimension).settle if unverified and change.dimension != UNCLASSIFIED else None,
        fix=rule.fix,
        links=tuple(rule.links),
    )


def _settled(
    finding: Finding,
    ways: Sequence[Discharge],
    sides: Sides,
    boundary: Boundary,
    proved: Sequence[Evidence],
    tokens_proved: bool,
    against: set[Any],
) -> Finding:
    for condition in ways:
        reason = _discharge(condition, finding.change, sides, proved, tokens_proved, against)
        if reason is not None:
            used = tuple(item.digest for item in proved if item.kind == condition.evidence)
            return replace(finding, obligations=(), discharged=reason, evidence=used, may_be=None)
    return _met_by(finding, boundary, sides)


def _met_by(finding: Finding, boundary: Boundary, sides: Sides) -> Finding:
    """Note what meets the obligations, and turn a separation that nothing can ever provide into a deletion."""
    if boundary.detached and not finding.adverse:
        why = "the new deployment has no persistent cache"
        return replace(finding, met=dict.fromkeys(finding.obligations, why), may_be=None)
    if "separate" not in finding.obligations or finding.may_be is not None:
        return finding
    how = met(finding.change, boundary, sides)
    if how is not None:
        return replace(finding, met={**finding.met, "separate": how})
    if boundary.no_way_out:
        obligations: tuple[Obligation, ...] = ("separate", "delete")
        return replace(
            finding, obligations=obligations, why=f"{finding.why} This connector offers no way to keep them apart."
        )
    return replace(finding, may_be="clear" if boundary.may_be_clear else None)


def _discharge(
    condition: Discharge,
    change: Change,
    sides: Sides,
    proved: Sequence[Evidence],
    tokens_proved: bool,
    against: set[Any],
) -> str | None:
    """Return why a condition holds, or ``None``; every part that is asked for must hold."""
    reasons = []
    covers = (sides.old_cover, sides.new_cover)
    if condition.evidence is not None:
        if not any(item.kind == condition.evidence for item in proved):
            return None
        reasons.append(f"{condition.evidence} is proved")
    if condition.key is not None:
        if sides.same("cache.connector") is not True or any(
            cover.cell(change.dimension).key != condition.key for cover in covers
        ):
            return None
        reasons.append("the key holds it")
    if condition.token_keyed:
        if sides.same("cache.connector") is not True or not all(cover.token_keyed for cover in covers):
            return None
        reasons.append("keys are made of token ids")
    if condition.harmless_cell:
        if sides.same("cache.connector") is not True or not all(_harmless(cover, change) for cover in covers):
            return None
        reasons.append("the format makes it harmless for this model")
    if condition.upgrade:
        row = _upgrade(change, sides)
        if row is None or not tokens_proved or "kv-equivalence" in against:
            return None
        reasons.append(f"a sourced row covers this step ({row})")
    return "; ".join(reasons)


def _harmless(cover: Coverer, change: Change) -> bool:
    return cover.cell(change.dimension).harmless_when == "mla" and uses_mla(cover.manifest) is True


def _upgrade(change: Change, sides: Sides) -> str | None:
    profile = sides.new_cover.profile
    if profile is None or sides.old_cover.profile is None or sides.old_cover.profile.id != profile.id:
        return None
    old, new = (side.value(change.path) for side in (sides.old, sides.new))
    if old is None or new is None:
        return None
    for row in profile.upgrades:
        if row.path != change.path or row.keys != "kept" or row.kv != "same":
            continue
        text_only = all(side.value("request_features") == [] for side in (sides.old, sides.new))
        if row.scope == "text" and not text_only:
            continue
        if version_in(old, row.from_) and version_in(new, row.to):
            return row.source
    return None


def _tokens_proved(changes: Sequence[Change], proved: Sequence[Evidence]) -> bool:
    """Whether tokens are equal by digest or by evidence: nothing of theirs differs that counts."""
    inert = {"inert", "text", "clock"}
    differing = [change for change in changes if change.dimension in _TOKEN_DIMENSIONS and change.kind not in inert]
    return not differing or any(item.kind == "token-identity" for item in proved)


def _adverse(case: Case, sides: Sides | None, index: int | None) -> list[Finding]:
    old = sides.old if sides is not None else None
    answered = superseded(list(case.evidence), old, case.new)
    new = sides.new if sides is not None else case.new
    findings = []
    for item in case.evidence:
        rule = case.pack.adverse_rule(item.kind)
        if rule is None or item.digest in answered or not item.speaks_against(old, new):
            continue
        shown = redacted(item)
        change = Change(
            rule.about, "adverse", f"evidence.{item.kind}", UNKNOWN, Known(shown.reason), shown.scope, shown.reason
        )
        findings.append(
            Finding(
                rule=rule.id,
                title=rule.title,
                change=change,
                baseline=index,
                obligations=tuple(rule.obligations),
                kv_valid=rule.kv_valid,
                tokens_equal=rule.tokens_equal,
                keys_separate="unknown",
                why=rule.why,
                adverse=True,
                evidence=(item.digest,),
                links=tuple(rule.links),
            )
        )
    return findings


# ---- waivers, declarations, verdict ----


def _waive(findings: list[Finding], case: Case) -> tuple[list[Finding], list[tuple[Waiver, str]]]:
    used: set[int] = set()
    result = []
    for finding in findings:
        for number, waiver in enumerate(case.waivers):
            if _may_be_waived(finding) and _covers(waiver, finding) and not waiver.expired(case.options.as_of):
                used.add(number)
                finding = replace(
                    finding, obligations=(), waived=f"{waiver.owner} until {waiver.expires}: {waiver.reason}"
                )
        result.append(finding)
    unused = [
        (
            waiver,
            f"expired {waiver.expires}"
            if waiver.expired(case.options.as_of)
            else "no finding has its rule, dimension and values",
        )
        for number, waiver in enumerate(case.waivers)
        if number not in used
    ]
    return result, unused


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
        and waiver.covers(finding.rule, finding.change.dimension, old.value, new.value)
    )


def _declared(finding: Finding, options: Options) -> Finding:
    """Apply ``--declare clear``: it deletes, and it separates only where old workers are drained first."""
    if not options.declare_clear or finding.self_fault or finding.baseline is None:
        return finding
    meets = dict(finding.met)
    if "delete" in finding.obligations:
        meets.setdefault("delete", "declared: the old entries are deleted")
    if "separate" in finding.obligations and options.strategy == "recreate" and not about_the_target(finding.change):
        meets.setdefault(
            "separate", "declared: old workers are drained and their entries deleted before new ones start"
        )
    return replace(finding, met=meets)


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
