"""What a changed template leaves open: nothing that could differ is ever passed over in silence."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateSyntaxError

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.corpora.coverage.changes import uncovered_changes
from kvgate.corpora.coverage.covered import Coverage

from .examples import CHATML, HEADERS, ONE_LINE, TEMPLATES, THINKING
from .rendering import chat, covered, render_all


def _said(old: str, new: str, conversations: list[Conversation]) -> list[str]:
    """What is left open where both templates render these conversations alike."""
    before, after = render_all(old, conversations), render_all(new, conversations)
    assert before[0] == after[0]
    return [str(each) for each in uncovered_changes(before[1], after[1])]


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


_PLAIN = chat()
_TOOLS = chat(tools=({"type": "function", "function": {"name": "f"}},))

# What releases did to templates of this kind (issues of the models' repositories tell of each), as old and new text.
RELEASES = {
    "the generation prompt opens a thought": (
        ONE_LINE, _replaced(ONE_LINE, "{{ '<|Assistant|>' }}{% endif %}", "{{ '<|Assistant|><think>\\n' }}{% endif %}"),
    ),
    "the empty thought is kept in past turns": (
        THINKING, _replaced(THINKING, "loop.index0 > ns.last and (loop.last or thought)", "true"),
    ),
    "the generation prompt is honoured": (
        _replaced(HEADERS, " if add_generation_prompt else ''", ""), HEADERS,
    ),
    "arguments come as JSON": (
        _replaced(CHATML, "{{ call.arguments | tojson }}", "{{ call.arguments }}"), CHATML,
    ),
    "the fixed date becomes the clock": (
        HEADERS, _replaced(HEADERS, "set date_string = '26 Jul 2024'", "set date_string = strftime_now('%d %b %Y')"),
    ),
    "another role is allowed": (
        HEADERS, _replaced(HEADERS, "'tool', 'system']", "'tool', 'system', 'developer']"),
    ),
    "white space is trimmed": (
        CHATML, _replaced(CHATML, "message.content + '<|im_end|>", "message.content | trim + '<|im_end|>"),
    ),
    "a system prompt in the middle is dropped": (
        CHATML, _replaced(CHATML, " or (message.role == 'system' and not loop.first)", ""),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASES)
def test_what_releases_did_to_templates_is_seen_on_the_diagnostic_corpus(name: str, diagnostic: Corpus) -> None:
    old, new = RELEASES[name]
    before, after = (render_all(text, diagnostic.conversations()) for text in (old, new))
    assert before[0] != after[0]
    assert uncovered_changes(before[1], after[1])  # and would be named if no conversation showed it


@pytest.mark.parametrize("name", RELEASES)
def test_and_is_named_where_the_corpus_does_not_show_it(name: str) -> None:
    old, new = RELEASES[name]
    assert uncovered_changes(covered(old), covered(new))
    assert uncovered_changes(covered(old, everything=False), covered(new, everything=False))


def test_a_branch_that_ran_on_neither_side_is_named_with_line_and_condition() -> None:
    new = _replaced(CHATML, "tool | tojson }}", "tool | tojson }};")
    assert _said(CHATML, new, [_PLAIN]) == [
        "new template, line 7: body of `for tool in tools` ran in no conversation (';' is new)",
    ]


def test_a_change_that_ran_without_a_difference_is_no_proof() -> None:
    new = _replaced(CHATML, "message.content + '<|im_end|>", "(message.content | trim) + '<|im_end|>")
    assert _said(CHATML, new, [_PLAIN, _TOOLS, chat(add_generation_prompt=False)]) == [
        "new template, line 16: `message.content|trim` instead of `message.content`: "
        "equal on this corpus, not proved for other values"
    ]


def test_what_is_new_and_what_is_gone() -> None:
    more = "{{ messages[0].content }}{% if documents %}D{% endif %}"
    less = "{{ messages[0].content }}"
    assert _said(less, more, [_PLAIN]) == [
        "new template, line 1: `if documents` ran in no conversation (`if documents` is new)"
    ]
    assert _said(more, less, [_PLAIN]) == [
        "old template, line 1: `if documents` ran in no conversation (`if documents` is gone)"
    ]


def test_a_change_reaches_the_branches_that_read_what_it_sets() -> None:
    old = (
        "{% set ns = namespace(n=1) %}\n{% macro m() %}{% if ns.n == 7 %}seven{% endif %}{% endmacro %}\n"
        "{% set other = ns.n > 5 %}\n{% if other %}far{% endif %}\n{{ m() }}{% if tools %}x{% endif %}"
    )
    said = _said(old, _replaced(old, "n=1", "n=2"), [_PLAIN])
    assert said == [
        "new template, line 1: `set ns = namespace(n=2)` instead of `set ns = namespace(n=1)`: "
        "equal on this corpus, not proved for other values",
        "new template, line 2: `if ns.n == 7` ran in no conversation (it reads what a change sets)",
        "new template, line 4: `if other` ran in no conversation (it reads what a change sets)",
    ]


def test_what_is_set_under_a_changed_condition_is_reached() -> None:
    old = "{% if a == 1 %}{% set x = 1 %}{% endif %}{% set y = x %}{% for m in y or [] %}{{ m }}{% endfor %}"
    said = _said(old, _replaced(old, "a == 1", "a == 2"), [_PLAIN])
    assert (
        "new template, line 1: body of `for m in y or []` ran in no conversation (it reads what a change sets)" in said
    )


def test_a_rewriting_is_accepted_once_all_its_branches_ran() -> None:
    new = _replaced(
        CHATML,
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{{ '<|im_start|>' + 'assistant' + '\\n' if add_generation_prompt is defined and add_generation_prompt }}",
    )
    new = _replaced(new, "message.role", "message['role']")
    both = [_PLAIN, chat(add_generation_prompt=False)]
    assert _said(CHATML, new, both) == []
    assert _said(CHATML, new, both[:1]) == [
        "new template, line 32: else of `'<|im_start|>' + 'assistant' + '\\n' if add_generation_prompt is defin…` "
        "ran in no conversation (`'<|im_start|>' + 'assistant' + '\\n' if add_generation_prompt is defin…` instead of "
        "`if add_generation_prompt`)",
        "old template, line 32: else of `if add_generation_prompt` ran in no conversation "
        "(`'<|im_start|>' + 'assistant' + '\\n' if add_generation_prompt is defin…` instead of "
        "`if add_generation_prompt`)",
    ]


def test_layout_comments_and_equal_templates_leave_nothing_open() -> None:
    for text in TEMPLATES.values():
        for new in (text, "{# a comment -#}\n" + text, text + "\n"):
            assert uncovered_changes(covered(text, everything=False), covered(new, everything=False)) == ()


def test_templates_of_one_side_and_templates_that_were_not_recorded() -> None:
    one, two = covered("a").templates["default"], covered("b").templates["default"]
    said = uncovered_changes(
        Coverage({"default": one, "rag": one, "tool_use": None, "same": None}),
        Coverage({"default": two, "tool_use": one, "new": one, "same": None}),
    )
    assert [(each.reason, each.side, each.template) for each in said] == [
        ("undecided", "new", "default"),
        ("one-sided", "new", "new"),
        ("one-sided", "old", "rag"),
        ("unrecorded", "old", "same"),
        ("unrecorded", "old", "tool_use"),
    ]
    assert str(said[1]) == "new template 'new': the other side has no template of this name"
    assert str(said[3]) == "old template 'same': its branches could not be told apart"


def test_a_template_is_named_where_there_are_several() -> None:
    said = uncovered_changes(
        Coverage({"tool_use": covered("\na").templates["default"]}),
        Coverage({"tool_use": covered("\nb").templates["default"]}),
    )
    assert str(said[0]).startswith("new template 'tool_use', line 1: '\\nb' instead of '\\na'")


def test_templates_nested_as_deep_as_jinja_allows_are_compared() -> None:
    def nested(word: str) -> str:
        return "{% if a %}" * 60 + word + "{% endif %}" * 60

    said = uncovered_changes(covered(nested("x")), covered(nested("y")))
    assert [each.reason for each in said] == ["undecided"]


def test_a_thousand_changes_are_each_named_and_what_cannot_be_aligned_is_one() -> None:
    def many(word: str) -> str:
        return "".join(f"{{% if v{number} %}}{word}{number}{{% endif %}}{{{{ w }}}}" for number in range(1000))

    old, new, longer = covered(many("x")), covered(many("y")), covered("{% set a = 1 %}" + many("y") + "{{ a }}")
    assert len(uncovered_changes(old, new)) == 1000
    assert len(uncovered_changes(old, longer)) == 1


# Conversations that the diagnostic corpus does not hold: what is passed over in silence must be the same here too.
_UNSEEN = [
    chat(
        messages=(
            {"role": role, "content": content, "tool_calls": calls, "reasoning_content": thought},
            {"role": "user", "content": "  x\n"},
            {"role": other, "content": "<think>\n t</think>\n\nq "},
        ),
        tools=tools,
        template_kwargs=kwargs,
        add_generation_prompt=generate,
    )
    for role, other in [("system", "tool"), ("user", "assistant"), ("assistant", "user"), ("tool", "system")]
    for content, thought in [(" a ", None), ("", "t"), ("<think>b</think>c", None), (7, 7)]
    for calls in (None, [], [{"function": {"name": "f", "arguments": {"a": [None, True, "é", 1.0]}}}])
    for tools, kwargs, generate in [
        (None, {}, None),
        ((), {"enable_thinking": False}, False),
        (({"b": 1, "a": "<é>"},), {"date_string": "", "enable_thinking": 0}, True),
    ]
]


_EDITS = st.tuples(
    st.sampled_from(sorted(TEMPLATES)),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(list(" \n'\"{}%-+~|()[].,=<>_01aeimnorst")), st.characters(codec="utf-8")),
    st.sampled_from([(0, 1), (1, 1), (1, 0)]),
)


def _edited(drawn: tuple[str, float, str, tuple[int, int]]) -> tuple[str, str]:
    """A template, and the same with one character exchanged, put in or taken out."""
    name, at, character, (taken, put) = drawn
    old = TEMPLATES[name]
    place = int(at * len(old))
    return old, old[:place] + character * put + old[place + taken :]


@given(_EDITS)
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_one_character_anywhere_is_named_or_renders_the_same(
    drawn: tuple[str, float, str, tuple[int, int]],
) -> None:
    old, new = _edited(drawn)
    try:
        sides = _all_of(old), covered(new)
    except (TemplateSyntaxError, ValueError):
        event("no template")
        return
    if uncovered_changes(*sides):
        event("named")
        assert uncovered_changes(_none_of(old), covered(new, everything=False))
    else:
        event("the same")
        assert render_all(new, _UNSEEN)[0] == _unseen(old)


@cache
def _all_of(text: str) -> Coverage:
    return covered(text)


@cache
def _none_of(text: str) -> Coverage:
    return covered(text, everything=False)


@cache
def _unseen(text: str) -> list[str | tuple[str, str]]:
    return render_all(text, _UNSEEN)[0]


@cache
def _some() -> tuple[Conversation, ...]:
    return tuple(load_corpus("diagnostic").conversations())[::8]


@cache
def _rendered(text: str) -> tuple[list[str | tuple[str, str]], Coverage]:
    return render_all(text, _some())


@given(_EDITS)
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_one_character_anywhere_diverges_or_is_named(drawn: tuple[str, float, str, tuple[int, int]]) -> None:
    old, new = _edited(drawn)
    try:
        covered(new)
    except (TemplateSyntaxError, ValueError):
        return
    before, after = _rendered(old), render_all(new, _some())
    diverges, named = before[0] != after[0], bool(uncovered_changes(before[1], after[1]))
    event(f"diverges: {diverges}, named: {named}")
    assert diverges or named or render_all(new, _UNSEEN)[0] == _unseen(old)
