"""What the formats look like, on a handful of decisions; and what each must hold whatever it looks like."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from kvgate.cli.formats.github import LIMIT as ANNOTATIONS
from kvgate.cli.formats.github import render_github
from kvgate.cli.formats.markdown import LIMIT as CHARACTERS
from kvgate.cli.formats.markdown import render_markdown
from kvgate.cli.formats.record_json import render_json
from kvgate.cli.formats.report import read_report
from kvgate.cli.formats.text import render_text
from kvgate.cli.formats.todo import steps
from tests.cli.decisions import NAMES, record

DIGEST = re.compile(r"(blake3|sha256):[0-9a-f]{64}|(?<=\"sha256\":\")[0-9a-f]{64}")


def text(name: str, width: int = 120, *, color: bool = False) -> str:
    return render_text(record(name), width=width, color=color)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", NAMES)
def test_text_as_it_was_agreed(name: str, width: int, snapshot: SnapshotAssertion) -> None:
    assert text(name, width) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_markdown_as_it_was_agreed(name: str, snapshot: SnapshotAssertion) -> None:
    assert render_markdown(record(name)) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_github_as_it_was_agreed(name: str, snapshot: SnapshotAssertion) -> None:
    assert render_github(record(name), lambda path: len(path)) == snapshot


def test_json_as_it_was_agreed(snapshot: SnapshotAssertion) -> None:
    shown = json.loads(render_json(record("settings")))
    shown["predicate"]["policies"] = "digests of packs and profiles"
    assert json.dumps(shown, indent=1) == snapshot


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_wider_than_asked_or_ends_in_blanks(name: str, width: int) -> None:
    commands = {command for step in steps(read_report(record(name))) for command in step.commands}
    for line in text(name, width).splitlines():
        assert cell_len(line) <= width or line.strip() in commands
        assert line == line.rstrip()


def test_a_command_to_copy_is_one_line_at_every_width() -> None:
    (command,) = (one["command"] for one in record("clear")["predicate"]["action"]["clear"])
    assert len(command) > 80
    assert command in (line.strip() for line in text("clear", 80).splitlines())
    assert command in (line.strip() for line in render_markdown(record("clear")).splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_last_line_is_the_verdict_and_nothing_else(name: str) -> None:
    assert text(name).splitlines()[-1] == record(name)["predicate"]["verdict"]


@pytest.mark.parametrize("name", NAMES)
def test_colour_carries_no_meaning(name: str) -> None:
    colored = text(name, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_finding_is_shown(name: str) -> None:
    shown = " ".join(text(name, 200).split())
    markdown = html.unescape(render_markdown(record(name)))
    for finding in record(name)["predicate"]["findings"]:
        assert finding["rule"] in shown
        assert finding["path"] in shown
        assert finding["rule"] in markdown
        assert finding["path"] in markdown


def test_what_is_not_known_stands_most_useful_first() -> None:
    shown = text("unverified")
    places = [shown.index(f" {path}") for path in ("weights.checkpoint.digest", "model.config", "tokenizer.effective")]
    assert places == sorted(places)
    assert shown.index("WHAT TO DO") < shown.index("kvgate capture MODEL --from") < shown.index("NOT KNOWN (")
    assert len(shown.splitlines()) < 2 * len(record("unverified")["predicate"]["findings"])


def test_settings_to_put_in_force_are_whole_at_every_width() -> None:
    derived = record("settings")["predicate"]["namespace"]["derived"]
    for width in (80, 200):
        assert f"cache.namespace: {derived}" in text("settings", width)


def test_digests_are_short_for_readers_and_whole_in_the_record() -> None:
    assert DIGEST.search(render_json(record("met")))
    assert not DIGEST.search(text("met", 200))
    assert not DIGEST.search(render_markdown(record("met")))


def test_evidence_that_decided_nothing_is_shown_with_its_gaps() -> None:
    shown = text("met")
    assert "token-identity: inconclusive" in shown
    assert "not examined: 7 conversations: a side could not render them" in shown


def test_waivers_are_shown_used_and_unused() -> None:
    shown = text("waived")
    assert "used: team-serving until 2026-12-24: measured equal" in shown
    assert "not used: compute-dtype-changed on precision.compute" in shown
    assert "expired 2026-01-01" in shown


def test_findings_stand_in_order_of_severity() -> None:
    groups = [finding.group for finding in read_report(record("clear")).findings]
    assert groups == sorted(groups, key=["fault", "delete", "separate", "unverified", "met", "harmless"].index)
    assert {"delete", "separate"} <= set(groups)


def test_annotations_are_capped_and_the_cap_is_said() -> None:
    lines = render_github(record("unverified")).splitlines()
    findings = len(record("unverified")["predicate"]["findings"])
    assert len(lines) == ANNOTATIONS
    assert f"{findings - (ANNOTATIONS - 1)} more findings" in lines[0]


def test_annotations_mark_the_new_manifest() -> None:
    lines = render_github(record("settings"), {"precision.kv_cache": 7}.get).splitlines()
    assert lines[1].startswith("::error file=new.yaml,line=7,title=kvgate%3A kv-dtype-changed::")


def test_an_accepted_decision_annotates_no_error() -> None:
    accepted = {**record("settings"), "predicate": {**record("settings")["predicate"], "accepted": True}}
    assert "::error" in render_github(record("settings"))
    assert "::error" not in render_github(accepted)


def _many(count: int) -> dict[str, Any]:
    base = record("settings")
    finding = next(one for one in base["predicate"]["findings"] if one["path"] == "precision.kv_cache")
    findings = [{**finding, "path": f"precision.kv_cache.{number}"} for number in range(count)]
    return {**base, "predicate": {**base["predicate"], "findings": findings}}


def test_markdown_is_cut_where_a_ticket_would_refuse_it_and_says_so() -> None:
    shown = render_markdown(_many(2000))
    assert len(shown) <= CHARACTERS
    assert "more parts of this report did not fit" in shown
    assert shown.count("<details>") == shown.count("</details>")
    assert "did not fit" not in render_markdown(_many(20))
