"""What is left to do for a decision, in words that every readable format shares."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kvgate.cli.formats.report import Report, Shown

_Value = TypeVar("_Value")

_FEW = 5
_NOT_KNOWN_ON = "not known on"
_REHEARSED = "evidence.isolation"
_NO_SETTING = "no setting settles it: nothing is known of what the connector's key covers"

# What is not known only because something else is not (rules/compare/sides.py, rules/profile.py).
_BECAUSE = re.compile(
    r"unset on both sides, and what sets the default is not known to be equal \(([a-z_.]+)\)$"
    r"|([a-z_.]+) is not known; the profile"
)

_MIXED = (
    "Then check again: that says what becomes of the old entries. Entries that a deployment wrote while it was like "
    "this are anybody's: delete those."
)

CAPTURE = "kvgate capture MODEL --from LAUNCH_FILE -o DIR"


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        what: one sentence.
        commands: lines to copy and run, each in one piece.
        exact: what to set, and what a command reaches.
        notes: what else to know.

    """

    what: str
    commands: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """Paths that could not be compared.

    Attributes:
        paths: manifest paths.
        rules: the rules that ask for them.
        instead: another way to settle them than the group's; ``None`` where there is none.
        notes: where it differs from what holds for most.

    """

    paths: tuple[str, ...]
    rules: tuple[str, ...]
    instead: str | None
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """The paths, and what else settles them."""
        if self.instead is None:
            return ", ".join(self.paths)
        if len(self.paths) == 1 and self.paths[0] in self.instead:
            return self.instead
        return f"{', '.join(self.paths)}: {self.instead}"


@dataclass(frozen=True)
class Unknown:
    """What settles something unknown, and all that it settles."""

    settle: str
    members: tuple[Member, ...]

    @property
    def named(self) -> Member | None:
        """The only thing that it settles, where its own words name it already."""
        if len(self.members) != 1 or len(self.members[0].paths) != 1 or self.members[0].instead is not None:
            return None
        return self.members[0] if self.members[0].paths[0] in self.settle else None


@dataclass(frozen=True)
class Unknowns:
    """Everything that is not known.

    Attributes:
        intro: what holds for most of it, a sentence each.
        groups: the most useful first.

    """

    intro: tuple[str, ...]
    groups: tuple[Unknown, ...]


def steps(report: Report) -> list[Step]:
    """Return what is left to do, in the order in which to do it."""
    found: list[Step] = []
    faults = report.group("fault")
    if faults:
        fixes = dict.fromkeys(f"{one.detail}: {one.fix or one.settle or one.why}" for one in faults)
        leaks = any("delete" in one.open for one in faults)
        found.append(
            Step(
                "Change the new deployment: it is unsafe by itself, whatever the old one was",
                exact=tuple(fixes),
                notes=(_MIXED,) if leaks else (),
            )
        )
    elif not report.accepted:
        found += [*_silences(report), *_clearings(report), *_settings(report), *_answers(report)]
    elif report.declared_clear:
        found += _clearings(report)
    if any(_settle(finding) != _NO_SETTING for finding in report.group("unverified")):
        found.append(_learn(report))
    return found


def _settle(finding: Shown) -> str:
    if finding.settle is None and finding.key_unknown is not None:
        return _NO_SETTING
    return finding.settle or finding.fix or finding.why


def no_id(report: Report) -> str:
    """Say why no id can be derived: what is missing, or how much where that is more than a line holds."""
    names = [name for name, _ in report.missing]
    what = ", ".join(names) if len(names) <= _FEW else f"{len(names)} parts of the identity"
    return f"no id can be derived until this is known: {what}"


def unknowns(report: Report) -> Unknowns:
    """Group what is not known by what settles it, most useful first."""
    findings = report.group("unverified")  # in catalogue order: groups and members inherit it
    usual_outcome = _usual(finding.may_be for finding in findings)
    # What was seen of one field holds for no other.
    sides = [text for finding in findings if (text := _sides(report, finding)).startswith(_NOT_KNOWN_ON)]
    usual_sides = _usual(sides) if sides else None
    groups: dict[str, dict[tuple[str, str | None, tuple[str, ...]], dict[str, None]]] = {}
    causes = {finding.path: _alternatives(_settle(finding))[0] for finding in findings if not _cause(finding)}
    following: dict[str, list[Shown]] = {}
    for finding in findings:
        if (cause := _cause(finding)) in causes:
            following.setdefault(cause, []).append(finding)
            continue
        settle, instead = _alternatives(_settle(finding))
        notes = []
        if (about := _sides(report, finding)) != usual_sides:
            notes.append(about)
        if finding.may_be != usual_outcome:
            notes.append(_outcome(finding.may_be))
        key = (finding.rule, instead, tuple(notes))
        groups.setdefault(settle, {}).setdefault(key, {})[finding.path] = None
    return Unknowns(
        (
            f"Unless a line says otherwise: {'; '.join(filter(None, (usual_sides, _outcome(usual_outcome))))}.",
            *_unacceptable(findings),
        ),
        tuple(
            Unknown(
                settle,
                (
                    *_members(members),
                    *(
                        member
                        for cause, found in following.items()
                        if causes[cause] == settle
                        for member in _followers(cause, found, usual_outcome)
                    ),
                ),
            )
            for settle, members in groups.items()
        ),
    )


def _cause(finding: Shown) -> str:
    """Return the path that something is not known because of; empty where it is for itself."""
    found = _BECAUSE.search(finding.detail)
    return "" if found is None else found[1] or found[2]


def _followers(cause: str, findings: Iterable[Shown], usual_outcome: str | None) -> Iterator[Member]:
    """Say once what becomes known with something else."""
    members: dict[str | None, tuple[dict[str, None], dict[str, None]]] = {}
    for finding in findings:
        paths, rules = members.setdefault(finding.may_be, ({}, {}))
        paths[finding.path] = rules[finding.rule] = None
    for may_be, (paths, rules) in members.items():
        notes = (f"known once {cause} is", *((_outcome(may_be),) if may_be != usual_outcome else ()))
        yield Member(tuple(paths), tuple(rules), None, notes)


def _usual(values: Iterable[_Value]) -> _Value:
    return Counter(values).most_common(1)[0][0]


def _members(found: Mapping[tuple[str, str | None, tuple[str, ...]], Mapping[str, None]]) -> tuple[Member, ...]:
    """Join the rules that ask for the same paths in the same words."""
    rules: dict[tuple[tuple[str, ...], str | None, tuple[str, ...]], list[str]] = {}
    for (rule, instead, notes), paths in found.items():
        rules.setdefault((tuple(paths), instead, notes), []).append(rule)
    return tuple(Member(paths, tuple(names), instead, notes) for (paths, instead, notes), names in rules.items())


def _silences(report: Report) -> Iterator[Step]:
    keys_matter = any(finding.key_unknown is not None for finding in report.group("unverified"))
    for why in report.silences:
        ways = ["a kvgate release with a profile for it"]
        if why.startswith("the profile "):
            ways.insert(0, "a version in that range")
        if not keys_matter:
            ways.append("evidence for what differs (`kvgate explain RULE-ID` says of which kind)")
        yield Step(
            f"{why[0].upper()}{why[1:]}: nothing is known of what its key covers; no setting changes that",
            notes=(f"What does: {', or '.join(ways)}. Until then, --advisory reports and refuses nothing.",),
        )


def _clearings(report: Report) -> Iterator[Step]:
    if not report.clearings:
        return
    commands = dict.fromkeys(one.command for one in report.clearings)
    reach = dict.fromkeys(
        f"reaches: {one.blast_radius}; owner: {one.owner or '(not known)'}" for one in report.clearings
    )
    order = (
        "In this order: stop the old workers, delete, start the new ones."
        if report.strategy == "recreate"
        else "Old workers that go on writing bring them back: delete them again when the last of those has stopped."
    )
    declared = "and declare it with --declare clear" if report.group("delete") else "as is declared"
    yield Step(f"Delete the old entries, {declared}", tuple(commands), tuple(reach), (order,))


def _standing(report: Report) -> list[Shown]:
    """Return the refutations that no setting answers."""
    open_ = (*report.group("separate"), *report.group("delete"))
    return [finding for finding in open_ if finding.kind == "adverse" and finding.fix is not None]


def _answers(report: Report) -> Iterator[Step]:
    for finding in _standing(report):
        if finding.path != _REHEARSED:
            yield Step(f"{finding.title}: no setting answers that", exact=(str(finding.fix),))
            continue
        old = report.baselines[finding.baseline or 0].name
        again = shlex.join(["kvgate", "rehearse", old, report.new, "-o", "AGAIN.json", "--supersedes", "EVIDENCE.json"])
        alone = len(report.group("separate")) == 1 and not report.group("delete")
        yield Step(
            "Show that what was rehearsed before does not happen any more"
            if alone
            else "Then rehearse again: a setting alone does not answer what was seen",
            (again,),
            notes=("EVIDENCE.json holds what was refuted; give both to the check (`--evidence`, twice).",),
        )


def _settings(report: Report) -> Iterator[Step]:
    standing = _standing(report)
    if len(report.group("separate")) <= sum(one.group == "separate" for one in standing):
        return
    if report.settings:
        exact = []
        for one in report.settings:
            exact += [f"{one.path}: {one.value}", *(f"  {line}" for line in one.how)]
        one_of = "one of these settings" if len(report.settings) > 1 else "this setting"
        alone = not standing and not any(report.group(name) for name in ("delete", "unverified"))
        then = f"Then capture and check again: the verdict stays {report.verdict}"
        yield Step(
            f"Put the new deployment in a namespace of its own: {one_of}",
            exact=tuple(exact),
            notes=(f"{then}, and the exit code is 0." if alone else f"{then}.",),
        )
    elif report.derived is None:
        yield Step(
            "Make known what the new deployment is: until then no namespace can be derived for it",
            exact=tuple(f"{dimension}: {settle}" for dimension, settle in report.missing),
        )
    elif not report.silences:
        silent = next((f" ({old.silent_because})" for old in report.baselines if old.silent_because), "")
        yield Step(
            f"Keep the old entries out of reach: no known setting of this connector does{silent}",
            notes=(f"What does: {report.isolation}.",) if report.isolation else (),
        )


def _learn(report: Report) -> Step:
    findings = [finding for finding in report.group("unverified") if _settle(finding) != _NO_SETTING]
    captured = sum(_needs_capture(finding) for finding in findings)
    if captured > 1:
        rest = "; declare the rest with --set" if captured < len(findings) else ""
        reach = f"settles up to {captured} of {len(findings)}{rest}"
        # A manifest does not hold why a capture left a field open: that a template's version was not given, say.
        done = "Where that was done, it said what each field that it left open needs: give that, and run it again."
        what = "Make known what is not: capture the deployments with their launch lines"
        return Step(what, (CAPTURE,), (reach,), (done,))
    first = [unknown.settle for unknown in unknowns(report).groups if unknown.settle != _NO_SETTING][:3]
    if findings[0].kind == "first" and report.derived is not None:
        return Step("Show what lies at the target", (f"kvgate namespace {report.new}",), notes=(f"{first[0]}.",))
    return Step("Make known what is not", exact=tuple(first))


def _needs_capture(finding: Shown) -> bool:
    return any(word in (finding.settle or "") for word in ("capture", "--from", "--adapter", "--renderer"))


def _unacceptable(findings: tuple[Shown, ...]) -> tuple[str, ...]:
    if any(finding.may_be for finding in findings):
        return ("What may turn out to be clear or a self-fault must become known: no --accept and no setting will do.",)
    return ()


def _outcome(may_be: str | None) -> str:
    return f"may turn out to be {may_be}" if may_be else "at worst new-namespace"


def _alternatives(settle: str) -> tuple[str, str | None]:
    """Split "capture ..., or --set X" so that everything that one capture settles stands together."""
    first, comma, rest = settle.partition(", or --set ")
    return (first, f"or --set {rest}") if comma and first.startswith("capture") else (settle, None)


def _sides(report: Report, finding: Shown) -> str:
    if finding.key_unknown is not None:
        return finding.seen if finding.key_unknown in report.silences else finding.detail
    sides = []
    if finding.old is None and finding.baseline is not None:
        sides.append(f"old {finding.baseline + 1}" if len(report.baselines) > 1 else "old")
    if finding.new is None:
        sides.append("new")
    return f"{_NOT_KNOWN_ON} {' and '.join(sides)}" if sides else finding.detail or finding.change
