"""The report for a person at a terminal or in a CI log; its last line is the verdict, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.cli.formats.page import Page
from kvgate.cli.formats.report import Group, Report, Shown, read_report
from kvgate.cli.formats.todo import Member, Step, no_id, steps, unknowns
from kvgate.cli.formats.tokens import show_tokens

_HEADINGS: Mapping[Group, str] = {
    "fault": "UNSAFE BY ITSELF",
    "delete": "OLD ENTRIES MUST BE DELETED",
    "separate": "OLD ENTRIES MUST BE KEPT OUT OF REACH",
    "unverified": "NOT KNOWN",
    "met": "DEMANDED, AND MET",
    "harmless": "HARMLESS",
}
_STYLES: Mapping[Group, str] = {"fault": "bold red", "delete": "bold red", "separate": "bold yellow"}
_REUSE = "verified-compatible-reuse"
_VERDICT_STYLES = {_REUSE: "bold green", "new-namespace": "bold yellow", "clear": "bold red"}


def render_text(record: Mapping[str, Any], *, width: int, color: bool) -> str:
    """Render a decision record.

    Args:
        record: a decision record.
        width: columns of the page; at least 40 are used.
        color: whether to colour it; colour never carries meaning.

    """
    report = read_report(record)
    page = Page(width, color=color)
    _head(page, report)
    _to_do(page, report)
    for name in ("fault", "delete", "separate"):
        _open(page, report, name)
    _unknown(page, report)
    _settled(page, report, "met")
    _settled(page, report, "harmless")
    _boundary(page, report)
    _evidence(page, report)
    _waivers(page, report)
    page.heading(f"{report.outcome} (exit {report.exit_code}): {report.because}")
    page.say(report.verdict, style=_VERDICT_STYLES.get(report.verdict, "bold"))
    return page.text()


def _head(page: Page, report: Report) -> None:
    for number, old in enumerate(report.baselines, 1):
        word = f"old {number}" if len(report.baselines) > 1 else "old"
        page.say(f"{word}: {old.name}" + (f"  ({old.label})" if old.label else ""), hang=5)
    page.say(f"new: {report.new}", hang=5)
    asked = [
        f"rules {report.pack}",
        report.strategy if report.baselines else "first deployment",
        f"as of {report.as_of}",
    ]
    if report.accept:
        asked.append(f"accepting {', '.join(report.accept)}")
    if report.declared_clear:
        asked.append("clear is declared")
    page.say("; ".join(asked))


def _to_do(page: Page, report: Report) -> None:
    found = steps(report)
    if not found:
        return
    page.heading("WHAT TO DO")
    for number, step in enumerate(found, 1):
        page.say(f"{number}. {step.what}", indent=2, hang=3)
        _step(page, step)


def _step(page: Page, step: Step) -> None:
    for command in step.commands:
        page.whole(command, indent=7)
    for line in step.exact:
        page.say(line, indent=7, hang=2)
    for note in step.notes:
        page.say(note, indent=5, hang=0)


def _open(page: Page, report: Report, group: Group) -> None:
    findings = report.group(group)
    if not findings:
        return
    page.heading(f"{_HEADINGS[group]} ({len(findings)})")
    for finding in findings:
        page.parts([(finding.rule, _STYLES.get(group, "bold")), (f"  {finding.title}", "")], indent=2, hang=2)
        _where(page, report, finding)
        page.say(f"{_answers(finding)} | demands: {_demands(finding)}", indent=4, hang=2)
        _reached(page, report, finding, indent=4)
        page.say(f"why: {finding.why}", indent=4, hang=5)
        if finding.fix:
            page.say(f"fix: {finding.fix}", indent=4, hang=5)
        if finding.settle:
            page.say(f"fix: {finding.settle}", indent=4, hang=5)
        if finding.may_be:
            page.say(f"may turn out to be {finding.may_be}: no --accept settles it", indent=4, hang=2)


def _where(page: Page, report: Report, finding: Shown) -> None:
    about = report.old(finding.baseline)
    notes = [text for text in (about, "" if finding.scope == "all" else f"scope {finding.scope}") if text]
    page.say(f"{finding.path}: {finding.change}" + (f"  [{'; '.join(notes)}]" if notes else ""), indent=4, hang=2)


def _answers(finding: Shown) -> str:
    valid, tokens, keys = finding.answers
    return f"KV still valid: {valid} | tokens equal: {tokens} | keys separate: {keys}"


def _reached(page: Page, report: Report, finding: Shown, indent: int) -> None:
    if (reached := report.reached(finding)) is not None:
        page.say(reached, indent=indent, hang=2)


def _demands(finding: Shown) -> str:
    met = dict(finding.met)
    words = [*finding.open, *(f"{name} (met: {how})" for name, how in met.items())]
    return ", ".join(words) or "no boundary settles it"


def _unknown(page: Page, report: Report) -> None:
    findings = report.group("unverified")
    if not findings:
        return
    page.heading(f"{_HEADINGS['unverified']} ({len(findings)}), most useful first")
    found = unknowns(report)
    for line in found.intro:
        page.say(line, indent=2)
    for number, unknown in enumerate(found.groups, 1):
        named = unknown.named
        page.say(f"{number:>2}. {unknown.settle}" + (f"  {_rule(named)}" if named else ""), indent=1, hang=4)
        for member in () if named else unknown.members:
            page.say(f"{member.words}  {_rule(member)}", indent=7, hang=2)


def _rule(member: Member) -> str:
    return f"[{'; '.join((', '.join(member.rules), *member.notes))}]"


def _settled(page: Page, report: Report, group: Group) -> None:
    findings = report.group(group)
    if not findings:
        return
    page.heading(f"{_HEADINGS[group]} ({len(findings)})")
    for finding in findings:
        page.parts([(finding.rule, "bold"), (f"  {finding.path}: {finding.change}", "")], indent=2, hang=4)
        for name, how in finding.met:
            page.say(f"{name} is met: {how}", indent=6, hang=2)
        if finding.met:
            page.say(_answers(finding), indent=6, hang=2)
            _reached(page, report, finding, indent=6)
        else:
            page.say(finding.settled or finding.why, indent=6, hang=2)
        if (about := report.old(finding.baseline)) != "":
            page.say(about, indent=6, hang=2)


def _boundary(page: Page, report: Report) -> None:
    if not report.findings:
        page.heading("NOTHING DIFFERS")
    page.heading("BOUNDARY")
    for old in report.baselines:
        several = f"{old.name}: " if len(report.baselines) > 1 else ""
        page.say(
            f"{several}old entries: connector {old.connector}, location {old.location}, namespace {old.namespace}",
            indent=2,
            hang=2,
        )
        for line in old.notes:
            page.say(line, indent=4, hang=2)
    page.say(f"new namespace setting: {report.namespace}", indent=2, hang=2)
    if report.derived is not None:
        page.say(f"id derived from the new identity: {report.derived}", indent=2, hang=2)
    else:
        page.say(no_id(report), indent=2, hang=2)


def _evidence(page: Page, report: Report) -> None:
    page.heading("EVIDENCE")
    if not report.evidence:
        page.say("none was given or gathered", indent=2)
    for item in report.evidence:
        reason = f" ({item.reason})" if item.reason else ""
        page.say(f"{item.kind}: {item.state}{reason}; {item.decided}", indent=2, hang=2)
        if item.examined:
            page.say("examined: " + ", ".join(f"{count} {what}" for what, count in item.examined), indent=4, hang=2)
        for what, why in item.missing:
            page.say(f"not examined: {what}: {why}", indent=4, hang=2)
        for name, value in item.figures:
            page.say(f"{name}: {value}", indent=4, hang=2)
        for line in item.swept:
            page.say(line, indent=4, hang=2)
        if item.command is not None:
            page.say(f"made by: {item.command}", indent=4, hang=2)
        for found in item.tokens:
            show_tokens(page, found, indent=4)


def _waivers(page: Page, report: Report) -> None:
    if not report.waived and not report.unused_waivers:
        return
    page.heading("WAIVERS")
    for waiver in report.waived:
        page.say(f"used: {waiver}", indent=2, hang=2)
    for waiver in report.unused_waivers:
        page.say(f"not used: {waiver}", indent=2, hang=2)
