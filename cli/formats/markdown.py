"""The report for a change ticket or a step summary: GitHub-flavoured Markdown that inputs cannot break out of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.cli.formats.escaping import block, code, escaped
from kvgate.cli.formats.report import Examined, Report, Shown, read_report
from kvgate.cli.formats.todo import Member, no_id, steps, unknowns
from kvgate.cli.formats.tokens import tokens_markdown

LIMIT = 65_000
"""Characters: a GitHub comment holds 65,536, and Jira's and GitLab's limits are no smaller."""

_CELL = 300
_GROUP_WORDS = {
    "fault": "unsafe by itself",
    "delete": "open: delete",
    "separate": "open: separate",
    "unverified": "not known",
    "met": "met",
    "harmless": "harmless",
}


def render_markdown(record: Mapping[str, Any]) -> str:
    """Render a decision record, at most :data:`LIMIT` characters; what was cut is said at the end."""
    report = read_report(record)
    parts = [_headline(report), *_steps(report), *_findings(report), *_unknowns(report), *_details(report)]
    text = ""
    for number, part in enumerate(parts):
        if len(text) + len(part) > LIMIT - 200:
            left = f"{len(parts) - number} more parts of this report did not fit"
            return f"{text}\n_{left}; the decision record (`-o json`) holds everything._\n"
        text += part
    return text


def _headline(report: Report) -> str:
    olds = ", ".join(code(one.name) for one in report.baselines) or "no old deployment"
    return (
        f"## kvgate: {escaped(report.verdict)}, {escaped(report.outcome)} (exit {report.exit_code})\n\n"
        f"{olds} to {code(report.new)}: {escaped(report.because)}.\n"
    )


def _steps(report: Report) -> Iterator[str]:
    found = steps(report)
    if not found:
        return
    lines = ["\n### What to do\n"]
    for number, step in enumerate(found, 1):
        lines.append(f"{number}. {escaped(step.what)}")
        if lines_to_copy := (*step.commands, *step.exact):
            lines.append(block(lines_to_copy, "   "))
        lines += [f"   {escaped(note)}" for note in step.notes]
    yield "\n".join(lines) + "\n"


def _findings(report: Report) -> Iterator[str]:
    rows = [finding for finding in report.findings if finding.group != "unverified"]
    if not report.findings:
        yield "\nNothing differs.\n"
    if not rows:
        return
    yield (
        f"\n### Findings ({len(rows)})\n\n"
        "| | rule | what | old | new | KV valid | tokens equal | keys separate |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    for finding in rows:
        yield _row(report, finding)


def _row(report: Report, finding: Shown) -> str:
    scope = "" if finding.scope == "all" else f" ({finding.scope})"
    about = f" {report.old(finding.baseline)}" if report.old(finding.baseline) else ""
    cells = [
        escaped(_GROUP_WORDS[finding.group]),
        code(finding.rule),
        " ".join(part for part in (code(_cut(finding.path)), escaped((scope + about).strip())) if part),
        "" if finding.alone else code(_cut(finding.old)) or "not known",
        code(_cut(finding.new)) or ("" if finding.kind == "adverse" else "not known"),
        *(escaped(answer) for answer in finding.answers),
    ]
    return f"| {' | '.join(cells)} |\n"


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _CELL else f"{text[:_CELL]}…"


def _unknowns(report: Report) -> Iterator[str]:
    findings = report.group("unverified")
    if not findings:
        return
    found = unknowns(report)
    yield f"\n### Not known ({len(findings)}), most useful first\n\n" + "".join(
        f"{escaped(line)}\n" for line in found.intro
    )
    head = f"\n<details><summary>What settles it ({len(found.groups)})</summary>\n\n"
    body = []
    for number, unknown in enumerate(found.groups, 1):
        named = unknown.named
        body.append(f"{number}. {escaped(unknown.settle)}" + (f" {_rule(named)}" if named else ""))
        body += [f"    * {escaped(member.words)} {_rule(member)}" for member in unknown.members if member is not named]
    yield head + "\n".join(body) + "\n\n</details>\n"


def _rule(member: Member) -> str:
    return "(" + "; ".join((", ".join(map(code, member.rules)), *(escaped(note) for note in member.notes))) + ")"


def _details(report: Report) -> Iterator[str]:
    rows = [finding for finding in report.findings if finding.group != "unverified"]
    if rows:
        yield from _folded("Why, and what became of each finding", (_why(report, finding) for finding in rows))
    yield from _folded("Boundary and namespace", _boundary(report))
    yield from _folded("Evidence", _evidence(report))
    for item in report.evidence:
        for found in item.tokens:
            yield f"\n<details><summary>Tokens</summary>\n\n{tokens_markdown(found)}\n</details>\n"
    if report.waived or report.unused_waivers:
        yield from _folded(
            "Waivers",
            (
                *(f"used: {escaped(one)}" for one in report.waived),
                *(f"not used: {escaped(one)}" for one in report.unused_waivers),
            ),
        )
    asked = f"rules {report.pack}; {'first deployment' if report.first else report.strategy}; as of {report.as_of}"
    yield f"\n{escaped(report.tool)}; {escaped(asked)}; new manifest {code(f'sha256:{report.new_sha256[:12]}…')}\n"


def _folded(title: str, items: Any) -> Iterator[str]:
    # One block: half of a folded part would swallow what follows it.
    yield f"\n<details><summary>{title}</summary>\n\n" + "".join(f"* {item}\n" for item in items) + "\n</details>\n"


def _why(report: Report, finding: Shown) -> str:
    parts = [f"{code(finding.rule)} {escaped(finding.title)}: {escaped(finding.why)}"]
    if finding.detail:
        parts.append(f"Seen: {escaped(finding.detail)}.")
    if finding.settled:
        parts.append(f"Settled: {escaped(finding.settled)}.")
    if (reached := report.reached(finding)) is not None:
        parts.append(f"{escaped(reached[0].upper() + reached[1:])}.")
    parts += [f"{escaped(name)} is met: {escaped(how)}." for name, how in finding.met]
    if finding.open:
        parts.append(f"Open: {escaped(', '.join(finding.open))}.")
    if finding.fix or finding.settle:
        parts.append(f"Fix: {escaped(finding.fix or finding.settle or '')}.")
    return " ".join(parts)


def _boundary(report: Report) -> Iterator[str]:
    for old in report.baselines:
        place = f"connector {old.connector}, location {old.location}, namespace {old.namespace}"
        yield "; ".join([f"{code(old.name)}: {escaped(place)}", *map(escaped, old.notes)])
    yield f"new namespace setting: {code(report.namespace)}"
    yield (f"id derived from the new identity: {code(report.derived)}" if report.derived else no_id(report))


def _evidence(report: Report) -> Iterator[str]:
    if not report.evidence:
        yield "none was given or gathered"
    for item in report.evidence:
        reason = f" ({item.reason})" if item.reason else ""
        head = f"{item.kind}: {item.state}{reason}; {item.decided}"
        yield "\n    * ".join([escaped(head), *_seen(item)])


def _seen(item: Examined) -> Iterator[str]:
    if item.examined:
        yield escaped("examined: " + ", ".join(f"{count} {what}" for what, count in item.examined))
    for what, why in item.missing:
        yield escaped(f"not examined: {what}: {why}")
    for name, value in item.figures:
        yield escaped(f"{name}: {value}")
    yield from map(escaped, item.swept)
    if item.command is not None:
        yield f"made by {code(item.command)}"
