"""Recording changes nothing about what is rendered, and finds out which branches ran."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.coverage.covered import Coverage, coverage_from
from kvgate.corpora.coverage.installed import recording
from kvgate.rules.errors import InputError

from .examples import TEMPLATES
from .rendering import chat, covered, render, render_all

_TWO = chat(messages=({"role": "system", "content": " s "}, {"role": "user", "content": ""}), tools=({"a": "é"},))

# One template for each construct of the language that decides what runs, and the branches that one chat leaves out.
PROBES: dict[str, tuple[str, set[str]]] = {
    "if": ("{% if tools %}a{% endif %}b", {"`if tools`"}),
    "if-else": ("{% if tools %}a{% else %}b{% endif %}", {"`if tools`"}),
    "if-empty": ("{% if not tools %}{% endif %}x", {"else of `if not tools`"}),
    "elif": (
        "{% if tools %}a{% elif messages %}b{% elif documents %}c{% else %}d{% endif %}",
        {"`if tools`", "else of `if messages`", "`if documents`", "else of `if documents`"},
    ),
    "elif-set": (
        "{% if tools %}{% set x = 1 %}{% elif messages %}{% set x = 2 %}{% endif %}{{ x }}",
        {"`if tools`", "else of `if messages`"},
    ),
    "for": ("{% for m in messages %}{{ loop.index }}{{ m.role }}{% endfor %}", {"no iteration of `for m in messages`"}),
    "for-none": ("{% for t in [] %}{{ t }}{% else %}none{% endfor %}", {"body of `for t in []`"}),
    "for-filter": (
        "{% for m in messages if m.role == 'x' %}{{ m.role }}{% endfor %}",
        {"body of `for m in messages if m.role == 'x'`"},
    ),
    "for-nested": (
        "{% for m in messages %}{% for n in [1, 2] %}{{ loop.index }}{{ n }}{% endfor %}{% endfor %}",
        {"no iteration of `for m in messages`", "no iteration of `for n in [1, 2]`"},
    ),
    "for-recursive": (
        "{% for m in [[1], []] recursive %}{{ loop.depth }}{{ loop(m) if m is sequence else m }}{% endfor %}",
        {"no iteration of `for m in [[1], []]`"},
    ),
    "loop-controls": (
        "{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{% if n == 3 %}{% break %}{% endif %}{{ n }}"
        "{% else %}z{% endfor %}",
        {"no iteration of `for n in [1, 2, 3]`"},
    ),
    "break-at-once": (
        "{% for n in [1] %}{% break %}{% else %}an else all the same{% endfor %}",
        {"no iteration of `for n in [1]`"},
    ),
    "conditional": ("{{ 'a' if tools else 'b' }}", {"then of `'a' if tools else 'b'`"}),
    "conditional-without-else": ("{{ ('a' if tools) is defined }}{{ 'a' if tools }}", {"then of `'a' if tools`"}),
    "conditional-undefined-used": ("{{ ('a' if tools) + 'b' }}", {"then of `'a' if tools`"}),
    "conditional-filtered": ("{{ ('a' if messages)|upper }}", {"else of `'a' if messages`"}),
    "conditional-in-set": ("{% set x = 1 if messages else 2 %}{{ x + 1 }}", {"else of `1 if messages else 2`"}),
    "conditional-in-call": (
        "{{ dict(a=(1 if messages else 2), **{'b': (3 if tools)}) }}",
        {"else of `1 if messages else 2`", "then of `3 if tools`"},
    ),
    "conditional-constant": ("{{ 'a' if true else 'b' }}c", {"else of `'a' if true else 'b'`"}),
    "and": ("{{ tools and messages }}{% if messages and messages[0] %}x{% endif %}", {
        "right side of `tools and messages`", "else of `if messages and messages[0]`",
    }),
    "or": ("{{ tools or 'none' }}{{ 0 or '' or [] }}{{ messages[0].role or tools }}", {
        "right side of `messages[0].role or tools`",
    }),
    "and-or": ("{% if tools and messages or not messages %}x{% endif %}", {
        "right side of `tools and messages`", "`if (tools and messages) or not messages`",
    }),
    "macro": (
        "{% macro used(a, b='d' if tools else 'e') %}{{ a }}{{ b }}{% endmacro %}{% macro unused() %}z{% endmacro %}"
        "{{ used(1) }}{{ used(b=2) }}",
        {"then of `'d' if tools else 'e'`", "body of `macro unused()`"},
    ),
    "macro-recursive": (
        "{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(2) }}", set()
    ),
    "macro-loop": (
        "{% macro m(l) %}{% for x in l %}{{ x }}{% endfor %}{% endmacro %}{{ m([1]) }}{{ m([]) }}", set()
    ),
    "call": (
        "{% macro box() %}[{{ caller() if caller is defined }}]{% endmacro %}"
        "{% call box() %}{{ tools or 1 }}{% endcall %}",
        {"else of `caller() if caller is defined`"},
    ),
    "call-unused": ("{% macro box() %}{% if caller %}b{% endif %}{% endmacro %}{% call box() %}c{% endcall %}", {
        "body of `call box()`", "else of `if caller`",
    }),
    "set-block": ("{% set x %}a{% if tools %}b{% endif %}{% endset %}{{ x }}", {"`if tools`"}),
    "set-block-filter": ("{% set x | upper %}a{{ 'c' if tools }}{% endset %}{{ x }}", {"then of `'c' if tools`"}),
    "filter-block": ("{% filter upper %}a{% if tools %}b{% else %}c{% endif %}{% endfilter %}", {"`if tools`"}),
    "with": ("{% with x = tools or 1 %}{{ x }}{% endwith %}", set()),
    "block": ("{% block b %}{% if tools %}a{% else %}c{% endif %}{% endblock %}", {"`if tools`"}),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        {"no iteration of `for m in messages`"},
    ),
    "generation": ("{% generation %}a{% if tools %}b{% endif %}{% endgeneration %}c", {"`if tools`"}),
    "refusal": ("{% if tools %}x{% endif %}{{ raise_exception('no ' ~ messages|length) }}", {"`if tools`"}),
    "error-in-test": ("a{% if nothing.at_all %}x{% else %}y{% endif %}", {
        "`if nothing.at_all`", "else of `if nothing.at_all`",
    }),
    "names-like-ours": ("{% set environment = 1 %}{% set kvgate_ran_0 = 2 %}{{ environment }}{{ kvgate_ran_0 or 1 }}", {
        "right side of `kvgate_ran_0 or 1`",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_the_branches_that_did_not_run_are_named_and_nothing_else_changes(name: str) -> None:
    text, missing = PROBES[name]
    rendered, coverage = render_all(text, [chat()])
    assert {arm.condition for arm in coverage.unexecuted} == missing
    assert rendered == render_all(text, [chat()], recorded=False)[0]


@pytest.mark.parametrize("name", PROBES)
def test_probes_render_the_same_for_other_chats(name: str) -> None:
    chats = [_TWO, chat(messages=()), chat(add_generation_prompt=False, documents=({"title": "t", "text": "x"},))]
    text = PROBES[name][0]
    assert render_all(text, chats)[0] == render_all(text, chats, recorded=False)[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_whole_templates_render_the_same_on_the_diagnostic_corpus(name: str, diagnostic: Corpus) -> None:
    text = TEMPLATES[name]
    rendered, coverage = render_all(text, diagnostic.conversations())
    assert rendered == render_all(text, diagnostic.conversations(), recorded=False)[0]
    assert any(isinstance(each, str) for each in rendered)
    # What stays open is a branch that no conversation can run: a loop over what is known to hold something.
    assert len(coverage.unexecuted) <= 2, coverage.unexecuted


def test_each_template_has_its_own_record_and_a_line_for_each_branch() -> None:
    texts = {
        "default": "a\n\n{% if tools %}b{% endif %}",
        "tool_use": "{{ 'x'\n if tools }}",
        "rag": "{{ tools or 1 }}",
    }
    with recording(texts) as recorder:
        for name in ("default", "tool_use"):
            render(texts[name], chat())
    assert recorder is not None
    coverage = recorder.coverage()
    assert [(str(arm), arm.executed) for arm in coverage.arms] == [
        ("line 3: `if tools`", False),
        ("line 3: else of `if tools`", True),
        ("template 'rag', line 1: right side of `tools or 1`", False),
        ("template 'tool_use', line 1: then of `'x' if tools`", False),
        ("template 'tool_use', line 1: else of `'x' if tools`", True),
    ]


def test_outside_nothing_is_recorded_and_two_names_of_one_text_are_one_template() -> None:
    text = "{% if tools %}a{% endif %}"
    render(text, chat())
    with recording({"default": text, "again": text}) as recorder:
        pass
    render(text, chat())
    assert recorder is not None
    assert {arm.executed for arm in recorder.coverage().arms} == {False}
    with recording({"default": text, "again": text}) as recorder:
        render(text, chat())
    assert recorder is not None
    assert [arm.executed for arm in recorder.coverage().arms] == [False, True, False, True]


def test_another_release_of_transformers_that_makes_templates_otherwise_records_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    with recording({"default": "a"}) as recorder:
        pass
    assert recorder is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_coverage_survives_being_saved(name: str) -> None:
    coverage = render_all(TEMPLATES[name], [chat()])[1]
    data = json.loads(json.dumps(coverage.as_data()))
    assert coverage_from(data, "s") == coverage
    assert coverage_from(data, "s").arms == coverage.arms
    # A snapshot carries it: it must not outgrow what it describes.
    assert len(json.dumps(data, separators=(",", ":"))) < 15 * len(TEMPLATES[name])


def test_a_template_that_cannot_be_told_apart_renders_all_the_same() -> None:
    text = "{{ messages[0].role }}\ud800"
    rendered, coverage = render_all(text, [chat()])
    assert rendered == ["user\ud800"]
    assert coverage.templates == {"default": None}
    assert coverage_from(coverage.as_data(), "s") == coverage


def _edited(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data: Any = covered("{% if tools %}a{% endif %}").as_data()
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize(
    "data",
    [
        [],
        {str(number): None for number in range(65)},
        {"default": {"tree": []}},
        _edited(("default", "marks"), "developer"),
        _edited(("default", "marks"), [1]),
        _edited(("default", "executed"), "all"),
        _edited(("default", "executed"), [2]),
        _edited(("default", "executed"), [-1]),
        _edited(("default", "executed"), [True]),
        _edited(("default", "tree"), None),
        _edited(("default", "tree", 0), "Output"),
        _edited(("default", "tree", 0), "Nonsense"),
        _edited(("default", "tree", 1), "1"),
        _edited(("default", "tree", 2), [0]),
        _edited(("default", "tree", 3), "text"),
        _edited(("default", "tree", 3), []),
        _edited(("default", "tree", 3, 1, 2), [0, 0]),
        _edited(("default", "tree", 3, 1, 2), [0]),
        _edited(("default", "tree", 3, 1, 2), [1, 2]),
        _edited(("default", "tree", 3, 1, 3), None),
        _edited(("default", "tree", 3, 1, 4), ["", "text"]),
        _edited(("default", "tree", 3, 1), 1.5),
    ],
)
def test_malformed_coverage_is_refused(data: Any) -> None:
    with pytest.raises(InputError) as caught:
        coverage_from(data, "old.jsonl:9")
    assert str(caught.value.where).startswith("old.jsonl:9")


def test_coverage_nested_too_deeply_is_refused() -> None:
    data: Any = ["Name", 1, [], "a", "load"]
    for _ in range(100_000):
        data = ["Not", 1, [], data]
    with pytest.raises(InputError, match="nested too deeply"):
        coverage_from({"default": {"tree": data, "executed": [], "marks": []}}, "s")


def test_no_coverage_is_no_coverage() -> None:
    assert coverage_from({}, "s") == Coverage({})
    assert Coverage({}).arms == ()
