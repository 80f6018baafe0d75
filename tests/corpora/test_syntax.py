"""What a chat template is, apart from its layout; and that finding out does not run any of it."""

from __future__ import annotations

import tracemalloc
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.corpora.templates.syntax import parse_template
from kvgate.rules.errors import InputError

from .conftest import CHATML, tree_of

_LOOP = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_LOOP, "{# what it does #}" + _LOOP),
        (_LOOP, "{% for m in messages %}{# in the middle #}{{ m.content }}{% endfor %}"),
        ("a b", "a{# between #} b"),
        (_LOOP, "{%for m in messages%}{{m.content}}{%endfor%}"),
        (_LOOP, "{%- for m in messages -%}\n  {{- m.content -}}\n  {%- endfor -%}"),
        (_LOOP, "{% for m in messages %}\n{{ m.content }}{% endfor %}"),
        (_LOOP, _LOOP + "\n"),
        ("{{ 'a' }}", '{{ "a" }}'),
        ("a\r\nb", "a\nb"),
        ("{% if a %}x{% endif %}", "{% if a %}x{% else %}{% endif %}"),
    ],
)
def test_layout_and_comments_leave_the_tree_alone(one: str, other: str) -> None:
    assert tree_of(one) == tree_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_LOOP, "{% for m in messages %} {{ m.content }}{% endfor %}"),
        (_LOOP, "{# as a 'developer' #}" + _LOOP),  # vLLM looks for the quoted word, in comments too
        (_LOOP, "{# revision 8 #}" + _LOOP),  # SGLang looks for "vision"
        (_LOOP, "{% for m in messages %}{{ m.role }}{% endfor %}"),
        (_LOOP, "{% for m in messages[1:] %}{{ m.content }}{% endfor %}"),
        ("{{ 1 }}", "{{ true }}"),
        ("{{ 1 }}", "{{ 1.0 }}"),
        ("{{ 1 }}", "{{ '1' }}"),
        ("{{ none }}", "{{ 'none' }}"),
        ("{{ x|trim }}", "{{ x }}"),
        ("{{ x|tojson }}", "{{ x|tojson(indent=4) }}"),
        ("{% if a and b %}x{% endif %}", "{% if a or b %}x{% endif %}"),
        ("{% if a %}x{% endif %}", "{% if not a %}x{% endif %}"),
        ("{% set x = 1 %}{{ x }}", "{% set x = 1 %}{{ y }}"),
        ("é", "e\u0301"),
        ("{% generation %}x{% endgeneration %}", "x"),
    ],
)
def test_what_can_change_the_output_changes_the_tree(one: str, other: str) -> None:
    assert tree_of(one) != tree_of(other)


@given(st.integers(0, len(CHATML) - 1), st.sampled_from("xyz0'{}% \n"))
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_one_character_changes_the_tree_or_the_output_stays(place: int, character: str) -> None:
    from jinja2 import Environment

    edited = CHATML[:place] + character + CHATML[place + 1 :]
    try:
        same = tree_of(edited) == tree_of(CHATML)
    except InputError:
        return
    if same:
        environment = Environment(trim_blocks=True, lstrip_blocks=True)
        values = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True}
        assert environment.from_string(edited).render(values) == environment.from_string(CHATML).render(values)


def test_reads_what_nothing_in_it_sets() -> None:
    text = (
        "{% set own = bos_token %}{% macro m(a) %}{{ a }}{{ tools }}{% endmacro %}"
        "{% for x in messages %}{{ m(x) }}{{ loop.index }}{% endfor %}{{ own }}"
        "{% set ns = namespace(y=1) %}{{ raise_exception('no') if eos_token is defined }}"
        "{{ strange_value|a_filter_of_tomorrow }}"
    )
    assert parse_template(text, "t").reads == {
        "bos_token", "tools", "messages", "eos_token", "strange_value",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "clock", "chance"),
    [
        (CHATML, False, False),
        ("{{ strftime_now('%Y') }}", True, False),
        ("{% if false %}{{ strftime_now('%Y') }}{% endif %}", True, False),
        ("{% if strftime_now is defined %}x{% endif %}", True, False),
        ("strftime_now", False, False),
        ("{{ [1, 2]|random }}", False, True),
        ("{{ lipsum() }}", False, True),
    ],
)
def test_clock_and_chance(text: str, clock: bool, chance: bool) -> None:
    syntax = parse_template(text, "t")
    assert (syntax.reads_clock, syntax.reads_chance) == (clock, chance)


@pytest.mark.parametrize(
    ("text", "period"),
    [
        (CHATML, None),
        ("{{ strftime_now('%Y-%m-%d') }}", "day"),
        ("{{ strftime_now('%d %b %Y') }}", "day"),
        ("{{ strftime_now('%-d %B') }}", "day"),
        ("{{ strftime_now(format='%A') }}", "day"),
        ("{{ strftime_now('%B %Y') }}", "month"),
        ("{{ strftime_now('%Y') }}", "year"),
        ("{{ strftime_now('%d.%m. %H h') }}", "hour"),
        ("{{ strftime_now('%I %p') }}", "hour"),
        ("{{ strftime_now('%H:%M') }}", "minute"),
        ("{{ strftime_now('%H:%M:%S') }}", "second"),
        ("{{ strftime_now('%c') }}", "second"),
        ("{{ strftime_now('%Q') }}", "second"),
        ("{{ strftime_now('%Ey') }}", "second"),
        ("{{ strftime_now('100 %%, %n') }}", None),
        ("{{ strftime_now(form) }}", "second"),
        ("{{ strftime_now('%Y' ~ form) }}", "second"),
        ("{{ strftime_now(*forms) }}", "second"),
        ("{{ strftime_now() }}", "second"),
        ("{% set now = strftime_now %}{{ now('%Y') }}", "second"),
        ("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}2024{% endif %}", "year"),
        ("{% if strftime_now is defined %}x{% endif %}", None),
        ("{% if x %}{{ strftime_now('%Y') }}{% else %}{{ strftime_now('%d') }}{% endif %}", "day"),
    ],
)
def test_how_long_what_it_prints_of_the_clock_stays_the_same(text: str, period: str | None) -> None:
    assert parse_template(text, "t").clock == period


@pytest.mark.parametrize("directive", "aAwdbBmyYHIpMSfzZjUWcxX%GuV")
def test_a_period_is_never_longer_than_it_is(directive: str) -> None:
    """Within the period that is named, nothing changes; the directives are those that Python documents."""
    period = parse_template(f"{{{{ strftime_now('%{directive}') }}}}", "t").clock
    if period is None:
        period = "year"
    begins = datetime(2024, 1, 1)  # its last day belongs to a week of 2025
    ends = {
        "second": begins,
        "minute": begins.replace(second=59),
        "hour": begins.replace(minute=59, second=59),
        "day": begins.replace(hour=23, minute=59, second=59),
        "month": begins.replace(day=31, hour=23, minute=59, second=59),
        "year": begins.replace(month=12, day=31, hour=23, minute=59, second=59),
    }
    assert begins.strftime(f"%{directive}") == ends[period].strftime(f"%{directive}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 60000000 }}",
        "{% if false %}{{ 'a' * 60000000 }}{% endif %}",
        "{{ 'a'.ljust(60000000) }}",
        "{% set x = ('a' * 60000000)|length %}",
        "{{ '%60000000d' % 1 }}",
    ],
)
def test_no_constant_is_computed(text: str) -> None:
    parse_template(text, "t")  # what is imported and cached once does not count
    tracemalloc.start()
    parse_template(text, "t")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ x|attr('__globals__') }}",
        "{% if a %}{{ b.__init__ }}{% endif %}",
    ],
)
def test_internals_of_python_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="Python internals"):
        parse_template(text, "t")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("ok\n{% if x %}", "t:2"),
        ("{{ x", "t:1"),
        ("\n\n{% nonsense %}", "t:3"),
        ("{% for %}", "t:1"),
        ("{% if x %}" * 400 + "{% endif %}" * 400, "t"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "t"),
        ("{{ " + "9" * 5000 + " }}", "t"),
    ],
)
def test_what_is_no_template_is_refused_where_it_breaks(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_template(text, "t")
    assert caught.value.where == where
    assert "\n" not in str(caught.value)
