"""Fails a test run for every skip that ``tests/expected-skips.txt`` does not name."""

from __future__ import annotations

from pathlib import Path

import pytest

_EXPECTED = Path(__file__).resolve().parents[1] / "expected-skips.txt"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _unexpected(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips = _unexpected(terminalreporter.config)
    if skips:
        terminalreporter.section("skipped, and not expected to be", red=True)
        for nodeid, reason in skips:
            terminalreporter.write_line(f"{nodeid}: {reason}")


def _unexpected(config: pytest.Config) -> list[tuple[str, str]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(reporter, pytest.TerminalReporter):  # an xdist worker: its controller holds all reports
        return []
    lines = _EXPECTED.read_text(encoding="utf-8").splitlines()
    expected = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    skips = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if report.nodeid not in expected:
            skips.append((report.nodeid, reason))
    return skips
