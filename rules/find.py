"""Finding: everything that demands something, or that a reader must see, before anybody declares or accepts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvgate.rules.alone import judge_alone
from kvgate.rules.boundary import (
    IN_WORKER,
    Boundary,
    about_the_target,
    ends_with_worker,
    find_boundary,
    keys_answer,
    met,
    target_shown,
)
from kvgate.rules.case import Case
from kvgate.rules.catalogue import dimension, owner_of
from kvgate.rules.change import PROFILE, UNCLASSIFIED, UNVERIFIED, Change, same
from kvgate.rules.compare.plain import compare_roles
from kvgate.rules.compare.sides import Sides
from kvgate.rules.diff import compare
from kvgate.rules.discharge import TOKEN_DIMENSIONS, discharge, tokens_proved
from kvgate.rules.evidence import Evidence, failed_answers, refutations
from kvgate.rules.finding import Finding
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import AdverseRule, Discharge, Obligation, Rule
from kvgate.rules.pools import Pool, crossing, facing, overlap, pools
from kvgate.rules.privacy import redacted
from kvgate.rules.profile import cover
from kvgate.rules.settling import waive
from kvgate.rules.values import UNKNOWN, Known
from kvgate.rules.waivers import Waiver


@dataclass(frozen=True)
class Between:
    """The boundary between one old deployment and the new one, or between one pool of each.

    Attributes:
        baseline: index of the old deployment.
        pool: which pools, where there are several; else ``None``.
        boundary: what keeps them apart.
        old: the old deployment, or its pool.
    """

    baseline: int
    pool: str | None
    boundary: Boundary
    old: Manifest


@dataclass(frozen=True)
class Found:
    """What a case holds before anybody declares or accepts anything."""

    findings: tuple[Finding, ...]
    boundaries: tuple[Between, ...]
    unused_waivers: tuple[tuple[Waiver, str], ...]


def find(case: Case) -> Found:
    """Judge the new deployment alone, then against every old one, pool by pool.

    Raises:
        InputError: where manifests contradict each other.
    """
    news = pools(case.new)
    findings: list[Finding] = []
    for pool in news:
        findings += _new(findings, [_in_pool(found, pool.name) for found in _alone(case, pool.manifest)])
    findings += _new(findings, _pools(case, news))
    boundaries: list[Between] = []
    for index, old in enumerate(case.old):
        olds = pools(old)
        paired = [_face(case, pair, index) for pair in facing(olds, news)]
        if any(pair.findings for pair in paired):
            at = {pool.name: pool.manifest.get(_PLACE) for pool in olds}
            paired += [
                _across(_face(case, pair, index, stays=same(at[pair[1].name], pair[1].manifest.get(_PLACE)) is True))
                for pair in crossing(olds, news)
            ]
        boundaries += [Between(index, pair.name, pair.boundary, pair.sides.old) for pair in paired]
        for pair in paired:
            findings += _new(findings, [_in_pool(one, pair.name) for one in pair.findings])
        findings += _new(findings, _pools_changed(case, old, index, paired))
    if not case.old:
        findings += _first(case, news)
    waived, unused = waive(findings, case)
    return Found(tuple(waived), tuple(boundaries), tuple(unused))


@dataclass(frozen=True)
class _Faced:
    """An old pool and a new one (``None`` for a deployment that has none), and what was found between them."""

    name: str | None
    sides: Sides
    boundary: Boundary
    findings: Sequence[Finding]


_PLACE = "cache.location"


def _face(case: Case, pair: tuple[Pool, Pool], index: int, *, stays: bool = False) -> _Faced:
    """Find everything between two pools; ``stays``: the new one looks where the old one of its name did."""
    mine, other = pair
    sides = _sides(case, mine.manifest, other.manifest, case.new)
    found, boundary = _pair(case, sides, index, filed_apart=stays)
    name = None if mine.name == other.name is None else f"{mine.name or 'old'} -> {other.name or 'new'}"
    # A pool has no pools: their lists are compared once, for the whole deployment.
    return _Faced(name, sides, boundary, [one for one in found if one.change.dimension != "roles"])


def _across(pair: _Faced) -> _Faced:
    """Leave out what lies where the new pool looks: that is said where it faces the old pool of its own name."""
    kept = [one for one in pair.findings if one.adverse or not about_the_target(one.change)]
    return replace(pair, findings=kept)


def _new(known: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that do not stand there already: pools share what they do not differ in."""
    shown = [_without_pool(one) for one in known]
    return [one for one in found if _without_pool(one) not in shown]


_POOL = "pool "


def _in_pool(finding: Finding, pool: str | None) -> Finding:
    if pool is None:
        return finding
    detail = f"{_POOL}{pool}: {finding.change.detail}".rstrip(": ")
    return replace(finding, change=replace(finding.change, detail=detail))


def _without_pool(finding: Finding) -> Finding:
    detail = finding.change.detail
    if not detail.startswith(_POOL):
        return finding
    return replace(finding, change=replace(finding.change, detail=detail.partition(": ")[2]))


def _sides(case: Case, old: Manifest, new: Manifest, whole: Manifest | None) -> Sides:
    return Sides(old, new, cover(old, case.profiles), cover(new, case.profiles), whole)


def _alone(case: Case, new: Manifest) -> list[Finding]:
    coverer = cover(new, case.profiles)
    return [
        replace(
            _finding(case.pack.rule_for(change.dimension, change.kind), change, None),
            keys_separate="unknown" if coverer.profile is None else "no",
        )
        for change in judge_alone(new, coverer)
    ]


def _pools(case: Case, news: Sequence[Pool]) -> list[Finding]:
    """Judge the pools of the new deployment against each other, both ways: they share the store while they run."""
    rule, unknown = (case.pack.rule_for("roles", kind) for kind in ("fault", UNVERIFIED))
    own = case.new.get("roles")
    sharing = [pool for pool in news if not cover(pool.manifest, case.profiles).absent]
    common = _unknown_of_all(case) if len(sharing) > 1 else frozenset()
    findings: list[Finding] = []
    for first, second in itertools.permutations(sharing, 2):
        sides = _sides(case, first.manifest, second.manifest, None)
        between = " and ".join(sorted(str(pool.name) for pool in (first, second)))
        for finding in _pair(case, sides, None, filed_apart=True)[0]:
            path = finding.change.path
            if finding.unverified:
                # What is unknown of the whole deployment is said once, where it is judged alone.
                if path not in common or any(overlap(path, one) for one in (*first.overrides, *second.overrides)):
                    detail = f"{between} differ in {path}, which is not known of both"
                    change = Change("roles", UNVERIFIED, "roles", UNKNOWN, own, detail=detail)
                    findings += _new(findings, [_finding(unknown, change, None)])
            elif finding.open and not _about_the_store(finding):
                detail = f"{between} differ in {path} and share keys"
                fault = _finding(rule, Change("roles", "fault", "roles", UNKNOWN, own, detail=detail), None)
                findings += _new(findings, [replace(fault, keys_separate=finding.keys_separate)])
    return findings


def _unknown_of_all(case: Case) -> frozenset[str]:
    """Return the paths that are not known of the deployment that all its pools have in common."""
    found = _pair(case, _sides(case, case.new, case.new, None), None, filed_apart=True)[0]
    return frozenset(one.change.path for one in found if one.unverified)


def _about_the_store(finding: Finding) -> bool:
    """Whether a finding is about what lies in the store; pools that are filed apart share nothing."""
    return finding.adverse or finding.change.kind == "producer" or about_the_target(finding.change)


def _pools_changed(case: Case, old: Manifest, index: int, paired: Sequence[_Faced]) -> list[Finding]:
    """Compare the lists of pools themselves; what each pool is, is compared pool by pool.

    An old pool of which nothing is known may be what the new deployment is in every setting, so nothing meets that it
    is not known but reading no store at all.
    """
    found = [
        _finding(case.pack.rule_for(change.dimension, change.kind), change, index)
        for change in compare_roles(dimension("roles"), _sides(case, old, case.new, case.new))
    ]
    if all(one.boundary.detached for one in paired):
        return [_met_by(one, paired[0].boundary, paired[0].sides) for one in found]
    return found


def _first(case: Case, news: Sequence[Pool]) -> list[Finding]:
    path = "cache.connector"
    shown = [item for item in case.evidence if item.kind == "inventory" and item.supports(None, case.new)]
    against = refutations(case.evidence, None, case.new)
    refuted = any(item.kind == "inventory" for item in against)
    findings: list[Finding] = []
    for pool in news:
        coverer = cover(pool.manifest, case.profiles)
        if coverer.absent:
            continue
        change = Change(path, "first", path, UNKNOWN, pool.manifest.get(path), "all", "no old deployment was given")
        finding = replace(_finding(case.pack.rule_for(path, "first"), change, None), unverified=True)
        how = None if refuted else target_shown(pool.manifest, coverer, case.new, shown)
        one = _in_pool(replace(finding, met={"separate": how} if how else {}), pool.name)
        findings += _new(findings, [one])
    return [*findings, *_adverse(case, against, None)] if findings else []


def _pair(case: Case, sides: Sides, index: int | None, *, filed_apart: bool) -> tuple[list[Finding], Boundary]:
    """Find everything between an old and a new side. Evidence is about whole deployments, so it binds to those."""
    old, new = (case.old[index], case.new) if index is not None else (case.new, case.new)
    speaking = refutations(case.evidence, old, new)
    of_old = [item for item in speaking if item.about_old_alone(old, new)]
    refuted = [item for item in speaking if item not in of_old]
    if index is not None:
        of_old += _of_old_pairs(case, index, speaking)
    against = {item.kind for item in refuted}
    proved = [item for item in case.evidence if item.kind not in against and _supports(item, (old, new), sides)]
    inventory = [item for item in proved if item.kind == "inventory"]
    boundary = find_boundary(sides, inventory, filed_apart=filed_apart)
    if "inventory" in against:
        why = "an inventory shows entries of another identity at the target"
        boundary = replace(boundary, knob=None, why_knob=why, target=None)
    findings = []
    changes = compare(sides)
    tokens = tokens_proved(changes, proved)
    bound = [item for item in case.evidence if item.bound(old, new)]
    for change in changes:
        rule = case.pack.rule_for(change.dimension, change.kind)
        told = _told(change, bound)
        finding = replace(_finding(rule, told, index), keys_separate=keys_answer(change, boundary, sides))
        findings.append(_settled(finding, rule.discharged_by, sides, boundary, proved, tokens, against))
    for finding in _adverse(case, refuted, index, sides):
        answering = case.pack.adverse_rule_by_id(finding.rule)
        if answering.stands:
            findings.append(replace(_cannot_be_kept_apart(finding, boundary), keys_separate="no"))
            continue
        settled = _settled(finding, answering.discharged_by, sides, boundary, proved, tokens, against)
        _merge(findings, replace(settled, keys_separate=keys_answer(finding.change, boundary, sides)))
    stays = any(change.kind == "replaced-in-place" for change in changes)
    for finding in _adverse(case, of_old, index):
        theirs = _of_the_old_one(finding, case.pack.adverse_rule_by_id(finding.rule))
        kept = _kept_from(theirs, sides, boundary, stays=stays)
        findings.append(replace(kept, keys_separate=keys_answer(finding.change, boundary, sides)))
    return findings, boundary


def _of_old_pairs(case: Case, index: int, speaking: Sequence[Evidence]) -> list[Evidence]:
    """Return refutations of an old deployment and one that followed it, old by now as well.

    What was found of its entries is true of them in front of the new deployment too, wherever that differs from the one
    that followed in something that does no harm.
    """
    old, found = case.old[index], list(speaking)
    for after in case.old[:index] + case.old[index + 1 :]:
        found += [one for one in refutations(case.evidence, old, after) if one.old is not None and one not in found]
    return found[len(speaking) :]


def _of_the_old_one(finding: Finding, rule: AdverseRule) -> Finding:
    """Say that what was found is no fault of the new deployment, nor of its boundary: it must not read old entries."""
    detail = f"found of the old deployment: {finding.change.detail}".rstrip(": ")
    untrusted = "What the old deployment left is not to be trusted, and is read on unless it is kept apart."
    why = untrusted if rule.stands else rule.why
    change = replace(finding.change, old=finding.change.new, new=UNKNOWN, detail=detail)
    return replace(finding, change=change, why=why, fix=None, self_fault=False)


def _kept_from(finding: Finding, sides: Sides, boundary: Boundary, *, stays: bool) -> Finding:
    """Note what keeps the new deployment from what the old one left; ``stays``: the worker, with its memory."""
    why = None
    if sides.old_cover.absent:
        why = "the old deployment had no persistent cache"
    elif boundary.detached:
        why = "the new deployment has no persistent cache"
    elif not stays and (sides.old_cover.in_worker or sides.new_cover.in_worker):
        why = IN_WORKER
    if why is not None:
        return replace(finding, met=dict.fromkeys(finding.obligations, why))
    return _met_by(finding, boundary, sides)


def _supports(item: Evidence, whole: tuple[Manifest, Manifest], sides: Sides) -> bool:
    """Whether evidence about whole deployments speaks for these pools of theirs.

    It does where they set nothing of what it binds to: what was computed, rendered or compared was the whole's. An
    inventory looks at stores, and is told what lies in any of them.
    """
    return item.supports(*whole) and (item.kind == "inventory" or item.binds_pools(sides.old, sides.new))


def _told(change: Change, bound: Sequence[Evidence]) -> Change:
    """Add what a comparison tensor by tensor saw to a harmless difference of the weights."""
    if change.kind != "tail-only":
        return change
    seen = [item.reason for item in bound if item.kind == "weights-identity" and item.state == "inconclusive"]
    return replace(change, detail="; ".join([change.detail, *seen]))


def _merge(findings: list[Finding], adverse: Finding) -> None:
    """Add a refutation to the finding that it explains, or as one of its own.

    It only ever adds: the finding keeps its obligations, and gains the answers and the evidence.
    """
    group = TOKEN_DIMENSIONS if adverse.change.dimension in TOKEN_DIMENSIONS else (adverse.change.dimension,)
    for number, finding in enumerate(findings):
        explains = finding.change.dimension in group and not finding.unverified
        # What old entries are deleted for is not what the new deployment did in a place of its own.
        if explains and finding.baseline == adverse.baseline and set(adverse.obligations) <= set(finding.obligations):
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
        settle=_what_settles(change) if unverified else None,
        fix=rule.fix,
        links=tuple(rule.links),
    )


def _what_settles(change: Change) -> str | None:
    if change.dimension == UNCLASSIFIED or change.lacks == PROFILE:
        return None  # a declaration of what is known already would be a false one
    asked = owner_of(change.lacks) if change.lacks else dimension(change.dimension)
    return None if asked is None else asked.settle


def _settled(
    finding: Finding,
    ways: Sequence[Discharge],
    sides: Sides,
    boundary: Boundary,
    proved: Sequence[Evidence],
    tokens: bool,
    against: set[Any],
) -> Finding:
    for condition in ways:
        reason = discharge(condition, finding.change, sides, proved, tokens, against)
        if reason is not None:
            used = tuple(item.digest for item in proved if item.kind == condition.evidence)
            return replace(finding, obligations=(), discharged=reason, evidence=used, may_be=None)
    return _met_by(finding, boundary, sides)


def _met_by(finding: Finding, boundary: Boundary, sides: Sides) -> Finding:
    """Note what meets the obligations, and turn a separation that nothing can ever provide into a deletion."""
    if boundary.detached and not finding.adverse:
        why = "the new deployment has no persistent cache"
        return replace(finding, met=dict.fromkeys(finding.obligations, why), may_be=None)
    if finding.may_be is None and finding.obligations == ("delete",) and ends_with_worker(finding.change, sides):
        return replace(finding, met={"delete": IN_WORKER})
    if "separate" not in finding.obligations or finding.may_be is not None:
        return finding
    how = met(finding.change, boundary, sides)
    if how is not None:
        return replace(finding, met={**finding.met, "separate": how})
    return _cannot_be_kept_apart(finding, boundary)


def _cannot_be_kept_apart(finding: Finding, boundary: Boundary) -> Finding:
    """Ask for deletion too where nothing that a connector offers will ever keep entries apart, or may be not."""
    if boundary.no_way_out:
        obligations: tuple[Obligation, ...] = ("separate", "delete")
        return replace(
            finding, obligations=obligations, why=f"{finding.why} This connector offers no way to keep them apart."
        )
    return replace(finding, may_be="clear" if boundary.may_be_clear else None)


def _adverse(case: Case, refuted: Sequence[Evidence], index: int | None, sides: Sides | None = None) -> list[Finding]:
    findings = []
    for item in refuted:
        # What the new deployment did in a place of its own is not undone where the old one filed.
        place = index
        if index is not None and sides is not None and not _left_by_old(item, case.old[index], case.new, sides):
            place = None
        rule = case.pack.adverse_rule(item)
        if rule is None:
            continue
        shown = redacted(item)
        vain = [f"what names it as answered does not answer it: {why}" for why in failed_answers(item, case.evidence)]
        detail = "; ".join(filter(None, [shown.reason, *vain]))
        change = Change(
            rule.about, "adverse", f"evidence.{item.kind}", UNKNOWN, Known(shown.reason), shown.scope, detail
        )
        findings.append(
            Finding(
                rule=rule.id,
                title=rule.title,
                change=change,
                baseline=place,
                obligations=tuple(rule.obligations),
                kv_valid=rule.kv_valid,
                tokens_equal=rule.tokens_equal,
                keys_separate="unknown",
                why=rule.why,
                adverse=True,
                self_fault=rule.self_fault,
                fix=rule.fix,
                evidence=(item.digest,),
                links=tuple(rule.links),
            )
        )
    return findings


def _left_by_old(item: Evidence, old: Manifest, new: Manifest, sides: Sides) -> bool:
    """Whether a refutation is about what the old deployment filed, or where these pools of both file."""
    if item.old is not None or item.about_old_alone(old, new):
        return True
    return sides.new.value(_PLACE) is not None and all(
        same(sides.old.get(path), sides.new.get(path)) is True
        for path in ("cache.connector", _PLACE, "cache.namespace")
    )
