"""Annotations for a GitHub workflow: commands on stdout that mark the lines of the new manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvgate.cli.formats.report import Group, Report, Shown, read_report
from kvgate.cli.formats.todo import steps

LIMIT = 10
"""GitHub shows ten annotations of a kind for one step and drops the rest without a word."""

_SHOWN: tuple[Group, ...] = ("fault", "delete", "separate", "unverified")

Line = Callable[[str], int | None]
"""The line of the new manifest at which a path stands, ``None`` where it does not tell."""


def no_lines(path: str) -> int | None:  # noqa: ARG001 - the shape of a Line
    """Know no line: for a record without its manifest at hand."""
    return None


def render_github(record: Mapping[str, Any], line_of: Line = no_lines) -> str:
    """Render a decision record as workflow commands, the verdict first, at most :data:`LIMIT` in all.

    Args:
        record: a decision record.
        line_of: where a manifest path stands in the new manifest.

    """
    report = read_report(record)
    findings = [finding for name in _SHOWN for finding in report.group(name)]
    shown = findings[: LIMIT - 1]
    left = len(findings) - len(shown)
    message = f"{report.outcome}: {report.because}"
    if found := steps(report):
        message += f". To do: {found[0].what}"
        if report.settings:
            message += f" ({report.settings[0].path}: {report.settings[0].value})"
    if left:
        message += f". {left} more findings are not annotated; the report has all"
    level = "notice" if report.accepted else _refused(report)
    lines = [_command(level, {"title": f"kvgate: {report.verdict} (exit {report.exit_code})"}, message)]
    for finding in shown:
        place: dict[str, str] = {}
        if report.new != "-":
            place["file"] = report.new
            if (line := line_of(finding.path)) is not None:
                place["line"] = str(line)
        lines.append(_command(_level(report, finding), {**place, "title": _title(finding)}, _message(report, finding)))
    return "".join(f"{line}\n" for line in lines)


def _refused(report: Report) -> str:
    return "error" if report.enforced else "warning"


def _level(report: Report, finding: Shown) -> str:
    if report.accepted or finding.group == "unverified":
        return "warning"
    return _refused(report)


def _title(finding: Shown) -> str:
    return f"kvgate: {finding.rule}"


def _message(report: Report, finding: Shown) -> str:
    about = report.old(finding.baseline)
    change = f"{finding.path}: {finding.change}" + (f" [{about}]" if about else "")
    fix = finding.fix or finding.settle
    return f"{finding.title}. {change}" + (f". Fix: {fix}" if fix else "")


def _command(name: str, properties: Mapping[str, str], message: str) -> str:
    """Return one workflow command, escaped as actions/toolkit does (packages/core/src/command.ts)."""
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
