"""Whatever stands in an input is only ever shown: by terminals, by CI logs, by what renders Markdown."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvgate.cli.formats.escaping import block, code, escaped
from kvgate.cli.formats.github import render_github
from kvgate.cli.formats.markdown import render_markdown
from kvgate.cli.formats.page import Page
from kvgate.cli.formats.text import render_text
from kvgate.cli.plain import visible, visible_json
from kvgate.rules.case import Case
from kvgate.rules.decide import decide
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Coverage, Evidence, subject_of
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from kvgate.rules.record import record_of
from tests.rules.clean import clean

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07",
    "a\x9b31mb",
    "abc\u202edcba\u2066x",
    "zero\u200bwidth\ufeff",
    "line\nbreak\r\u2028\u0085",
    "\x00\x7f",
    "::error file=x::forged",
    "x ::set-output name=a::b",
    "##[error]forged ##vso[task.complete]",
    "a | b | c \\| d \\\\| e",
    "`` ` ``` `",
    "</details><script>alert(1)</script><img src=x onerror=y>",
    "[link](http://evil.example) ![i](http://evil.example/i.png) <http://evil.example>",
    "http://evil.example www.evil.example",
    "@everyone #1 GH-1 org/repo#2 a@b.example $x^2$ :tada:",
    "# heading\n- item\n1. one\n> quote\n---",
    "*a* _b_ ~~c~~ __d__",
    "&lt;b&gt; &#60;",
    "%0A::error::x,file=y:z%",
    "{% raw %}",
    "1. one",
    "- item",
    "    indented",
    " ",
    "`",
    "\\",
)
ACTED_ON = {"Cc", "Cf", "Cs", "Zl", "Zp"}
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False}).enable("table")
OURS = ("<details><summary>", "</details>")

FORGED = re.compile(r"\s*::[A-Za-z]")

hostile_text = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=40),
    st.text(alphabet="`|\\<>&[]()*_~#!:@$-+=.1 \n\x1b", max_size=30),
    st.builds(lambda a, b: a + b, st.sampled_from(HOSTILE), st.sampled_from(HOSTILE)),
)


def record_with(text: str) -> dict[str, Any]:
    """Return a record in which a text stands wherever an input can put one."""
    word = text or "x"
    changes = {
        "engine.args/flag": text,
        f"engine.args/{word}": 1,
        "model.id": word,
        "cache.namespace": word,
        "release.name": word,
        "adapters": [{"name": word}],
    }
    olds = (clean({"release.name": word}, word), clean({"engine.args/flag": "x"}, "old.yaml"))
    new = clean(changes, word)
    return record_of(decide(Case(olds, new, PACK, evidence=(_evidence(olds[0], new, text),))), "0.1.0")


def record_with_settings(text: str) -> dict[str, Any]:
    """Return a record whose exact settings hold a text."""
    changes = {"precision.kv_cache": "fp8_e4m3", "cache.location": f"/{text}"}
    try:
        return record_of(decide(Case((clean(),), clean(changes, "new.yaml"), PACK)), "0.1.0")
    except InputError:  # something that looks like a password
        return record_with(text)


def _evidence(old: Manifest, new: Manifest, text: str) -> Evidence:
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="token-identity",
        state="inconclusive",
        old=subject_of(old, "token-identity"),
        new=subject_of(new, "token-identity"),
        coverage=Coverage(examined={text: 1}, missing={text: text}),
        figures={text: text},
        reason=text,
    )


PACK = shipped_pack("default")


def harmless(text: str) -> bool:
    return not any(unicodedata.category(character) in ACTED_ON for character in text.replace("\n", ""))


@given(st.text())
@example("".join(HOSTILE))
def test_visible_text_is_one_line_of_characters_that_are_only_shown(text: str) -> None:
    shown = visible(text)
    assert "\n" not in shown
    assert harmless(shown)
    assert not any(part.lstrip().startswith("::e") for part in shown.split())
    assert "##[" not in shown
    assert "##vso[" not in shown


@given(st.text(alphabet=st.characters(blacklist_categories=["Cc", "Cf", "Cs", "Zl", "Zp"], blacklist_characters=":#")))
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)))
def test_json_on_a_terminal_means_the_same_and_is_harmless(value: Any) -> None:
    shown = visible_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert harmless(shown)
    assert json.loads(shown) == value


@settings(max_examples=40, deadline=None)
@given(hostile_text, st.sampled_from([40, 80, 120]))
@example("\x1b[31m::error::x", 40)
def test_a_terminal_and_a_ci_log_see_only_text(text: str, width: int) -> None:
    for record in (record_with(text), record_with_settings(text)):
        shown = render_text(record, width=width, color=False)
        assert harmless(shown)
        assert not any(FORGED.match(line) for line in shown.splitlines())
        assert "##[" not in shown


@pytest.mark.parametrize("length", range(25, 60))
def test_folding_a_long_word_puts_no_command_at_the_start_of_a_line(length: int) -> None:
    page = Page(40, color=False)
    page.say("a" * length + "::error::forged", indent=2, hang=2)
    page.whole("::error::forged")
    assert not any(FORGED.match(line) for line in page.text().splitlines())


@settings(max_examples=40, deadline=None)
@given(hostile_text)
def test_an_annotation_cannot_be_forged(text: str) -> None:
    for line in render_github(record_with(text)).splitlines():
        command, properties, message = line.removeprefix("::").partition("::")[0], line, line.split("::", 2)[2]
        name, _, given_properties = command.partition(" ")
        assert name in ("error", "warning", "notice")
        keys = [pair.partition("=")[0] for pair in given_properties.split(",")]
        assert keys in (["title"], ["file", "title"])
        assert "%0A" not in message.replace("%250A", "")
        assert harmless(properties)


def tokens(markdown: str) -> list[Token]:
    flat: list[Token] = []
    for token in MARKDOWN.parse(markdown):
        flat += [token, *(token.children or ())]
    return flat


@settings(max_examples=60, deadline=None)
@given(hostile_text)
@example("".join(HOSTILE))
@example("a\\")
@example("|")
@example("`[link](http://evil.example)")
def test_markdown_cannot_be_broken_out_of(text: str) -> None:
    for record in (record_with(text), record_with_settings(text)):
        _holds_together(tokens(render_markdown(record)))


def _holds_together(found: list[Token]) -> None:
    kinds = {token.type for token in found}
    assert not kinds & {"link_open", "image", "html_inline", "blockquote_open", "hr", "s_open", "strong_open"}
    for token in found:
        if token.type == "html_block":
            assert token.content.startswith(OURS)
            assert "script" not in token.content
    headings = [token for token in found if token.type == "heading_open"]
    assert {token.tag for token in headings} <= {"h2", "h3"}
    rows = "".join(
        "|" if token.type == "tr_open" else "c" if token.type in ("td_open", "th_open") else "" for token in found
    )
    assert set(rows.split("|")[1:]) == {"c" * 8}
    assert sum(token.type == "table_open" for token in found) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_what_markdown_makes_live_by_itself_is_code(text: str) -> None:
    for shown in (code(visible(text)), escaped(visible(text))):
        plain = [
            child.content
            for token in MARKDOWN.parse(f"x {shown} y")
            for child in token.children or ()
            if child.type == "text"
        ]
        assert not any(live in part for part in plain for live in ("@", "://", "www.", "#", "$"))


@given(st.text(min_size=1).map(visible).filter(lambda text: "|" not in text and not text.isspace()))
def test_code_shows_what_it_is_given(text: str) -> None:
    (token,) = (token for token in MARKDOWN.parse(f"x {code(text)} y") if token.type == "inline")
    (span,) = (child.content for child in token.children or () if child.type == "code_inline")
    assert span == text


@given(st.lists(st.sampled_from(["```", "````x", "~~~", "   ```", "a"]), min_size=1))
def test_no_line_closes_a_block(lines: list[str]) -> None:
    (found,) = MARKDOWN.parse(block(tuple(lines), ""))
    assert (found.type, found.content.splitlines()) == ("fence", lines)
