"""Which lines of two templates make one conversation render differently."""

from __future__ import annotations

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.explanation import Explainer, TemplateCause
from kvgate.corpora.divergence.beginning import common

from .examples import CHATML, HEADERS, ONE_LINE
from .rendering import chat, covered, render_all


def _explained(old: str, new: str, conversation: Conversation, *others: Conversation) -> tuple[TemplateCause, ...]:
    before, after = render_all(old, [conversation, *others]), render_all(new, [conversation, *others])
    one, other = before[0][0], after[0][0]
    assert isinstance(one, str)
    assert isinstance(other, str)
    return Explainer(before[1], after[1]).explain(one, other, common(one, other))


_TOOLS = chat(tools=({"type": "function", "function": {"name": "f"}},))


def test_the_only_change_that_ran_is_why() -> None:
    new = ONE_LINE.replace("{{ '<|Assistant|>' }}{% endif %}", "{{ '<|Assistant|><think>\\n' }}{% endif %}")
    (cause,) = _explained(ONE_LINE, new, chat())
    assert cause.only
    assert str(cause) == "line 1 of the template: '<think>\\n' is new"


def test_a_changed_expression_is_why_though_no_text_shows_it() -> None:
    new = CHATML.replace("'\\n' + message.content + '<|im_end|>", "'\\n' + message.content | upper + '<|im_end|>")
    (cause,) = _explained(CHATML, new, chat())
    assert (cause.new_line, cause.only) == (16, True)
    assert cause.change == "`message.content|upper` instead of `message.content`"


def test_of_several_changes_the_one_whose_text_stands_where_the_texts_part() -> None:
    new = CHATML.replace("# Tools\\n", "# Functions\\n").replace("assistant\\n' }}{% endif %}", "bot\\n' }}{% endif %}")
    both, prompt = _explained(CHATML, new, _TOOLS, chat()), _explained(CHATML, new, chat(), _TOOLS)
    assert both[0].new_line == 6
    assert "# Functions" in both[0].change
    assert [(cause.new_line, cause.only) for cause in prompt] == [(32, False)]


def test_a_change_that_ran_in_no_conversation_is_not_why() -> None:
    new = HEADERS.replace("'ipython'", "'tool'").replace("'Today Date: '", "'Date: '")
    assert [cause.change for cause in _explained(HEADERS, new, chat())] == [
        "`turn('system', 'Date: ' ~ date_string ~ '\\n\\n' ~ system_message)` instead of "
        "`turn('system', 'Today Date: ' ~ date_string ~ '\\n\\n' ~ system_message)`"
    ]


def test_a_text_that_went_away_and_one_that_came() -> None:
    (gone,) = _explained("a{% if messages %}b{% endif %}c", "ac", chat())
    assert str(gone) == "line 1 of the template: `if messages` is gone"
    (new,) = _explained(
        "a{{ messages[0].role }}", "a{% for m in messages %}x{% endfor %}{{ messages[0].role }}", chat()
    )
    assert new.change == "`for m in messages` is new"


def test_no_change_explains_nothing() -> None:
    for new in (CHATML, CHATML.replace("message.role", "message['role']")):
        explainer = Explainer(covered(CHATML), covered(new))
        assert explainer.explain("one text", "another", 0) == ()
    unknown = Coverage({"default": None, "rag": covered("a").templates["default"]})
    assert Explainer(unknown, covered("b")).explain("a", "b", 0) == ()


def test_no_more_than_a_reader_needs() -> None:
    old = "".join(f"{{{{ a{number} }}}}{{% set b = {number} %}}" for number in range(9))
    new = old.replace("{{ a", "{{ c")
    assert len(Explainer(covered(old), covered(new)).explain("x", "y", 0)) == 3
