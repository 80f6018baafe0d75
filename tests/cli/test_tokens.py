"""How divergent tokens are shown: as agreed, harmless, within the page, and without prompt text unless asked for."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from kvgate.cli.formats.page import Page
from kvgate.cli.formats.tokens import read_tokens, show_tokens, tokens_markdown
from kvgate.cli.plain import harmless, marked
from kvgate.corpora.divergence.figures import TokenFigures, evidence_figures, figures_of
from kvgate.corpora.snapshots.comparison import SnapshotComparison, compare_snapshots
from tests.cli.conftest import MakeManifest, Run
from tests.cli.divergent import NAMES, compared, entry, ok, snapshots, write


def figures(name: str) -> TokenFigures:
    found = figures_of(compared(name), redact=None, named=20, detailed=5)
    return read_tokens(harmless(found.as_data()))


def text(found: TokenFigures, width: int, *, color: bool = False) -> str:
    page = Page(width, color=color)
    show_tokens(page, found)
    return page.text()


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("name", NAMES)
def test_text_as_it_was_agreed(name: str, width: int, snapshot: SnapshotAssertion) -> None:
    assert text(figures(name), width) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_markdown_as_it_was_agreed(name: str, snapshot: SnapshotAssertion) -> None:
    assert tokens_markdown(figures(name)) == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_no_line_is_wider_than_the_page_or_acts_on_a_terminal(name: str) -> None:
    found = figures(name)
    for width in (40, 60, 80, 200):
        for line in text(found, width).splitlines():
            assert cell_len(line) <= width
            assert line == line.rstrip()
            assert line.isprintable()
    assert all(line.isprintable() for line in tokens_markdown(found).splitlines())


def test_ten_thousand_divergent_conversations_fit_on_a_screen() -> None:
    found = figures("many")
    assert (found.divergent, [kind.count for kind in found.kinds]) == (10_000, [9900, 100])
    assert len(text(found, 80).splitlines()) < 24


def test_branches_that_stay_open_are_named() -> None:
    coverage = {
        "old": {"branches": 9, "executed": 7},
        "new": {"branches": 11, "executed": 8},
        "open": {"count": 40, "first": [f"new template, line {line}: else of `if tools`" for line in range(25)]},
    }
    diverging = {**figures("think").as_data(), "coverage": coverage}
    assert diverging["byTemplate"]
    assert "not compared: new template" not in text(read_tokens(diverging), 120)  # where it shows, nothing is open
    found = read_tokens({**diverging, "byTemplate": 0})
    for shown in (text(found, 120), tokens_markdown(found)):
        assert "branches of the chat template that ran: old 7 of 9, new 8 of 11" in shown
        assert "not compared: new template, line 12: else of" in shown
        assert "not compared: 20 more of the changed template" in shown
        assert "was not recorded" not in shown


def test_colour_is_decoration() -> None:
    found = figures("think")
    colored = text(found, 80, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text(found, 80)


def test_white_space_can_be_seen() -> None:
    assert marked(" a\tb\n") == r"·a\tb\n"
    assert marked("·\u00a0\u3000\u200b\ufeff") == r"\xb7\xa0\u3000\u200b\ufeff"
    assert marked("\x1b[31m\u202e") == r"\x1b[31m\u202e"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", [{"redact": True}, {"public": False}])
def test_prompt_text_is_left_out(name: str, how: dict[str, bool]) -> None:
    found = compared(name, public=how.get("public", True))
    data = figures_of(found, redact=how.get("redact"), named=1000, detailed=1000, rows=True).as_data()
    shown = json.dumps(data)
    assert data["redacted"]
    # Every piece that could be read, whatever the case is made of; ids can be read as well.
    for secret in ("think", "there", "secret", "alternate", "undefined", "xxxx", "zzz", "\\u4e16"):
        assert secret not in shown
    assert all(one["rows"] is None for one in data["first"])
    assert all(one["example"]["rows"] is None for one in data["kinds"])


def test_text_is_shown_where_it_is_public_or_asked_for(tmp_path: Path) -> None:
    def shown(found: SnapshotComparison, *, redact: bool | None) -> bool:
        return "<think>" in json.dumps(figures_of(found, redact=redact, named=5, detailed=5).as_data())

    assert shown(compared("think"), redact=None)
    assert shown(compared("think", public=False), redact=False)
    assert not shown(compared("think", public=False), redact=None)
    # One public side is not enough, and a name proves nothing.
    (tmp_path / "own").mkdir()
    mixed = compare_snapshots(snapshots("think", tmp_path)[0], snapshots("think", tmp_path / "own", public=False)[1])
    assert not shown(mixed, redact=None)
    named = dataclasses.replace(mixed, old=dataclasses.replace(mixed.new, corpus=mixed.old.corpus))
    assert not shown(named, redact=None)


def test_figures_of_evidence_are_sums_and_each_corpus() -> None:
    found = evidence_figures([compared("think"), compared("bos", public=False)], redact=None)
    assert (found["conversations"], found["divergent"]) == (3, 3)
    assert found["blocks"] == {"size": 4, "old": 6, "shared": 4}
    assert [one["redacted"] for one in found["corpora"]] == [False, True]
    assert evidence_figures([], redact=None) == {"conversations": 0, "divergent": 0, "corpora": []}


def test_compare_prints_each_format(run: Run, tmp_path: Path) -> None:
    snapshots("think", tmp_path)
    ran = run("corpus", "compare", "old.jsonl", "new.jsonl", "--block-size", "4")
    assert (ran.code, ran.err) == (10, "")
    assert "2 of 2 conversations diverge: 2 by the rendered text" in ran.out
    assert "old blocks still reached: 4 of 4 (100 %), of 4 tokens each" in ran.out
    assert "all 10 old ids are the beginning of the 12 new ones" in ran.out
    assert "inside its own image" in " ".join(ran.out.split())
    data = json.loads(run("corpus", "compare", "old.jsonl", "new.jsonl", "--block-size", "4", "-o", "json").out)
    assert [one["rows"][-2]["new"]["text"] for one in data["first"]] == ["<think>", "<think>"]
    assert "| **>** |" in run("corpus", "compare", "old.jsonl", "new.jsonl", "-o", "markdown").out
    assert "think" not in run("corpus", "compare", "old.jsonl", "new.jsonl", "--redact").out
    assert run("corpus", "compare", "old.jsonl", "new.jsonl", "-o", "github").code == 2


def test_compare_tells_what_was_not_compared(run: Run, tmp_path: Path) -> None:
    snapshots("failing", tmp_path)
    ran = run("corpus", "compare", "old.jsonl", "new.jsonl")
    assert ran.code == 11
    assert "not compared: both: neither side could render it (TemplateError: roles must" in ran.out
    assert "not compared: mended: the old side could not render (UndefinedError" in ran.out
    assert "not compared: only the old side has gone" in ran.out
    assert "secret words" not in run("corpus", "compare", "old.jsonl", "new.jsonl", "--redact").out


def test_an_epoch_marker_is_checked(run: Run, tmp_path: Path) -> None:
    def rendered(name: str, epoch: int) -> None:
        pieces = {epoch: str(epoch), 1: "a"}
        ids = {"first": [epoch, 1, 1, 1], "late\x1b": [1, 1, 1, epoch]}
        entries = [entry(one, ok("", found), input=f"{name} {one}") for one, found in ids.items()]
        write(tmp_path / name, (entries, pieces))

    rendered("14.jsonl", 14)
    rendered("15.jsonl", 15)
    ran = run("corpus", "compare", "14.jsonl", "15.jsonl")
    assert (ran.code, "--epoch-marker" in ran.err) == (3, True)
    ran = run("corpus", "compare", "14.jsonl", "15.jsonl", "--epoch-marker")
    assert (ran.code, "--block-size" in ran.err) == (2, True)
    asked = ("corpus", "compare", "14.jsonl", "15.jsonl", "--epoch-marker", "--block-size")
    ran = run(*asked, "2")
    assert (ran.code, ran.err) == (10, "")
    assert "changes the first block (2 tokens) of 1 of 2 conversations" in ran.out
    assert r"still within reach: late\x1b: the first 3 of 4 old tokens are equal" in ran.out
    assert run(*asked, "4").code == 0
    assert json.loads(run(*asked, "2", "-o", "json").out) == {
        "blockSize": 2,
        "conversations": 2,
        "reached": {"count": 1, "first": [{"conversation": "late\x1b", "sharedTokens": 3, "oldTokens": 4}]},
        "unexamined": {"count": 0, "first": []},
    }
    assert run(*asked, "2", "-o", "markdown").out.startswith("* the epoch marker changes")


def test_manifests_say_size_and_epoch(run: Run, tmp_path: Path, manifest: MakeManifest) -> None:
    for name, epoch in (("old", 14), ("new", 15)):
        file = write(tmp_path / f"{name}.jsonl", ([entry("a", ok("", [epoch, 1]), input=name)], {}))
        named = {"file": file.path.name, "sha256": file.sha256, "corpus": "diagnostic@0", "renderer": {}}
        manifest(f"{name}.yaml", {"tokenizer.snapshot": named, "cache.epoch": epoch, "cache.chunk_size": 2})
    ran = run("corpus", "compare", "old.yaml", "new.yaml", "--epoch-marker")
    assert (ran.code, "(2 tokens) of 1 of 1 conversations" in ran.out) == (0, True)
    ran = run("corpus", "compare", "old.yaml", "old.yaml", "--epoch-marker")
    assert (ran.code, "both manifests have the cache epoch 14" in ran.err) == (2, True)
    # Both manifests say that the renderer which made the snapshots is the one that serves.
    ran = run("corpus", "compare", "old.yaml", "old.yaml")
    assert (ran.code, "one renderer made both sides" in ran.out) == (0, False)
    assert "one renderer made both sides" in run("corpus", "compare", "old.jsonl", "old.jsonl").out
