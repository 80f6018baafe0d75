"""What counts as proved is equal: the proofs are tried on every value that templates can tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateSyntaxError, Undefined
from transformers.utils import chat_template_utils

from kvgate.corpora.coverage.changes import uncovered_changes
from kvgate.corpora.coverage.equivalence import Effort, equivalent
from kvgate.corpora.coverage.items import Item, items_of

from .rendering import covered

PROVED = [
    ("a{{ b }}c", "{{ 'a' + b + 'c' }}"),
    ("{{ 'a' ~ b ~ 1 }}", "a{{ b }}1"),
    ("{{ m['role'] }}{{ m.x['y'] }}", "{{ m.role }}{{ m['x'].y }}"),
    ("{% if a %}x{{ b }}\n{% else %}y\n{% endif %}", "{{ 'x' ~ b if a else 'y' }}{{ '\\n' }}"),
    ("{% if a %}x{% elif b %}y{% else %}z{% endif %}",
     "{% if not a %}{% if not b %}z{% else %}y{% endif %}{% else %}x{% endif %}"),
    ("{% if a and b %}x{% endif %}", "{% if a %}{% if b %}x{% endif %}{% endif %}"),
    ("{% if not (a and b) %}x{% endif %}", "{% if not a or not b %}x{% endif %}"),
    ("{{ a or '' }}", "{% if a %}{{ a }}{% endif %}"),
    ("{{ a and b }}", "{{ b if a else a }}"),
    ("{{ 'x' + (a or '') }}", "x{{ a if a else '' }}"),
    ("{% if a %}x{% endif %}", "{% if a is defined and a %}x{% endif %}"),
    ("{% if a %}x{% endif %}", "{% if a is not none and a|length > 0 %}x{% endif %}"),
    ("{% if a is none %}x{% endif %}", "{% if a is none and not a %}x{% endif %}"),
    ("{% if a == 'u' %}U{% elif a == 'v' %}V{% endif %}", "{% if a == 'v' %}V{% endif %}{% if a == 'u' %}U{% endif %}"),
    ("{% if a in ['u', 'v'] %}x{% endif %}", "{% if a == 'u' or a == 'v' %}x{% endif %}"),
    ("{% if a == 'u' %}u!{% else %}{{ a }}!{% endif %}", "{{ a ~ '!' }}"),
    ("{% if a is true %}x{% endif %}", "{% if a is boolean and a %}x{% endif %}"),
    ("{% if a %}{{ raise_exception('no') }}{% endif %}b", "{{ raise_exception('never ' ~ a) if a }}b"),
    ("{% if false %}x{% endif %}a", "a"),
    ("{% for m in l %}x{{ m }}{% endfor %}", "{% for m in l %}{{ 'x' ~ m }}{% endfor %}"),
    ("{% macro f(a) %}{{ a }}x{% endmacro %}{{ f(1) }}", "{% macro f(a) %}{{ a ~ 'x' }}{% endmacro %}{{ f(1) }}"),
    ("{% set x %}a{{ b }}{% endset %}{{ x }}", "{% set x %}{{ 'a' ~ b }}{% endset %}{{ x }}"),
    ("{% if a %}x{% set b = 1 %}y{% endif %}", "{% if a %}{{ 'x' }}{% set b = 1 %}{{ 'y' }}{% endif %}"),
    ("{% if a.strip() %}x{{ a.strip() }}{% endif %}", "{{ 'x' ~ a.strip() if a.strip() }}"),
    ("{% for m in l|map(attribute='x') %}{% if loop.first %}x{% endif %}{{ m }}{% endfor %}",
     "{% for m in l|map(attribute='x') %}{{ 'x' if loop.first }}{{ m }}{% endfor %}"),
    ("{% for m in l|selectattr('role', 'in', [a, 'u']) %}x{{ m }}{% endfor %}",
     "{% for m in l|selectattr('role', 'in', [a, 'u']) %}{{ 'x' ~ m }}{% endfor %}"),
    ("{% set g = l|map('string')|list %}{{ g|first or '' }}",
     "{% set g = l|map('string')|list %}{{ g|first if g|first }}"),
    ("{% generation %}a{{ b }}{% endgeneration %}", "a{{ b }}"),
    ("{% for m in l %}{% generation %}{{ m }}{{ loop.index }}{% endgeneration %}{% endfor %}",
     "{% for m in l %}{{ m ~ loop.index }}{% endfor %}"),
    ("x{% for m in l %}{% set c = m %}{{ c }}{% endfor %}",
     "{% if a %}{% generation %}x{% for m in l %}{% set c = m %}{{ c }}{% endfor %}{% endgeneration %}"
     "{% else %}{{ 'x' }}{% for m in l %}{% set c = m %}{{ c }}{% endfor %}{% endif %}"),
    ("{% macro m() %}{% endmacro %}{% set ns = namespace(count=0) %}{{ 'a' ~ ns.count }}",
     "{% macro m() %}{% endmacro %}{% set ns = namespace(count=0) %}a{{ ns.count }}"),
    ("{% for m in l|selectattr('x') %}x{{ m }}{% endfor %}",
     "{% for m in l|selectattr('x') %}{{ 'x' ~ m }}{% endfor %}"),
]  # fmt: skip

NOT_PROVED = [
    ("a", "b"),
    ("{{ a }}", "{{ b }}"),
    ("{{ a }}", "{{ a|trim }}"),
    ("{{ a|tojson }}", "{{ a|tojson(indent=1) }}"),
    ("{{ a + b }}", "{{ a ~ b }}"),
    ("{{ a }}{{ b }}", "{{ a + b }}"),
    ("{{ m['items'] }}", "{{ m.items }}"),
    ("{{ m['get'] }}", "{{ m.get }}"),
    ("{% if a %}x{% endif %}", "{% if a is defined %}x{% endif %}"),
    ("{% if a %}x{% endif %}", "{% if a is not none %}x{% endif %}"),
    ("{% if a == 1 %}x{% endif %}", "{% if a is true or a == 1 and a is integer %}x{% endif %}"),
    ("{% if a is false %}x{% endif %}", "{% if not a %}x{% endif %}"),
    ("{% if a == 'u' %}x{% endif %}", "{% if a in 'u' %}x{% endif %}"),
    ("{% if a is number %}x{% endif %}", "{% if a is integer or a is float %}x{% endif %}"),
    ("{% if a|length > 1 %}x{% endif %}", "{% if a %}x{% endif %}"),
    ("{% if a %}p{% endif %}{% if b %}1q{% endif %}", "{% if a %}p1{% endif %}{% if b %}q{% endif %}"),
    ("{% if a %}x{% endif %}", "{% if a %}{{ raise_exception('no') }}{% endif %}"),
    ("{{ f() }}{{ f() }}", "{{ f() }}"),
    ("{% if f() %}x{% endif %}", "{{ 'x' if f() }}{% if f() %}{% endif %}"),
    ("{{ l|random }}", "{{ l|random or '' }}"),
    ("2026", "{{ strftime_now('%Y') }}"),
    ("{% for m in l %}{{ m }}{% endfor %}", "{% for m in l[1:] %}{{ m }}{% endfor %}"),
    ("{% for m in l %}{{ m }}x{% endfor %}", "{% for m in l %}x{{ m }}{% endfor %}"),
    ("{% for m in l %}x{% endfor %}", "{% for m in l recursive %}x{% endfor %}"),
    ("{% for m in l %}x{% endfor %}", "{% for m in l %}x{% else %}y{% endfor %}"),
    ("{{ a|safe ~ '<b>' }}", "{{ a|safe + '<b>' }}"),
    ("{% set x = a|safe %}{{ x ~ '<b>' }}", "{% set x = a|safe %}{{ x + '<b>' }}"),
    ("{% set g = l|map('string') %}{{ g|first or '' }}",
     "{% set g = l|map('string') %}{{ g|first if g|first else '' }}"),
    ("{% macro f(g) %}{{ g|first or '' }}{% endmacro %}{{ f(l|select) }}",
     "{% macro f(g) %}{{ g|first if g|first else '' }}{% endmacro %}{{ f(l|select) }}"),
    ("{% for r in l|map('escape') %}{{ r + '&' + a }}{% endfor %}",
     "{% for r in l|map('escape') %}{{ r ~ '&' ~ a }}{% endfor %}"),
    ("{% for r in l|map(f) %}{{ r + '&' + a }}{% endfor %}", "{% for r in l|map(f) %}{{ r ~ '&' ~ a }}{% endfor %}"),
    ("{% for r in l|map('reverse') %}{% if r|first == a %}x{% endif %}{% if r|first == a %}y{% endif %}{% endfor %}",
     "{% for r in l|map('reverse') %}{% if r|first == a %}xy{% endif %}{% endfor %}"),
    ("{% for m in l %}{% if loop.last %}p{% endif %}{% for b in (loop if a else []) %}{% endfor %}"
     "{% if loop.last %}q{% endif %}{% endfor %}",
     "{% for m in l %}{% if loop.last %}p{% for b in (loop if a else []) %}{% endfor %}q"
     "{% else %}{% for b in (loop if a else []) %}{% endfor %}{% endif %}{% endfor %}"),
    ("{% macro t() %}{% set ns.n = 1 %}{% endmacro %}{% set d = {'ti' ~ 'tle': t} %}{{ d.title() }}",
     "{% macro t() %}{% set ns.n = 1 %}{% endmacro %}{% set d = {'ti' ~ 'tle': t} %}{{ d.title() or '' }}"),
    ("{% block title %}{% set ns.n = 1 %}{% endblock %}{{ self.title() }}",
     "{% block title %}{% set ns.n = 1 %}{% endblock %}{{ self.title() or '' }}"),
    ("{% set ns = namespace(get=cycler(1, 2).next) %}{{ ns.get() }}",
     "{% set ns = namespace(get=cycler(1, 2).next) %}{{ ns.get() or '' }}"),
    ("{% set x = 1 %}{{ x }}", "{% set x = 2 %}{{ x }}"),
    ("{% set x = 1 %}{{ a }}", "{{ a }}"),
    ("{% set raise_exception = 1 %}{{ raise_exception('a') if b }}",
     "{% set raise_exception = 1 %}{{ raise_exception('c') if b }}"),
    ("{% macro strip() %}{% set ns.n = 1 %}{% endmacro %}{% set o = {'strip': strip} %}{{ o.strip() }}",
     "{% macro strip() %}{% set ns.n = 1 %}{% endmacro %}{% set o = {'strip': strip} %}{{ o.strip() or '' }}"),
    ("{% generation %}{% set b = 1 %}a{% endgeneration %}{{ b }}", "{% set b = 1 %}a{{ b }}"),
    ("{% macro f() %}{% generation %}{{ caller }}{% endgeneration %}{% endmacro %}{% call f() %}x{% endcall %}",
     "{% macro f() %}{{ caller }}{% endmacro %}{% call f() %}x{% endcall %}"),
    ("{% for m in l %}{% set ns.n = 1 %}{{ m }}{% endfor %}{{ ns.n }}",
     "{% if a %}{% for m in l %}{% set ns.n = 1 %}{{ m }}{% endfor %}{{ ns.n }}"
     "{% else %}{{ ns.n }}{% for m in l %}{% set ns.n = 1 %}{{ m }}{% endfor %}{% endif %}"),
    ("{% for m in l %}{{ f(m) }}{% endfor %}", "{% if a %}{% endif %}{% for m in l %}{{ f(m) }}x{% endfor %}"),
    ("{% if a %}{% for m in l %}{{ m }}{% endfor %}{% endif %}",
     "{% for m in l %}{% if a %}{{ m }}{% endif %}{% endfor %}"),
    ("{% macro m() %}{% endmacro %}{{ namespace(get=m).get() }}",
     "{% macro m() %}{% endmacro %}{{ namespace(get=m).get() or '' }}"),
    ("{% import 'a' as b %}{{ 'x' ~ c }}", "{% import 'a' as b %}x{{ c }}"),
    ("{% filter upper %}a{{ b }}{% endfilter %}", "{% filter lower %}a{{ b }}{% endfilter %}"),
    ("{% if 'a' %}x{% endif %}", "{% if '' %}x{% endif %}"),
    ("{{ 1 }}", "{{ 1.0 }}"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), PROVED)
def test_two_ways_to_write_one_thing(old: str, new: str) -> None:
    for one, other in ((old, new), (new, old)):
        assert uncovered_changes(covered(one), covered(other)) == ()


@pytest.mark.parametrize(("old", "new"), NOT_PROVED)
def test_what_may_differ_is_named(old: str, new: str) -> None:
    for one, other in ((old, new), (new, old)):
        assert uncovered_changes(covered(one), covered(other))


VALUES: list[Any] = [
    Undefined(), None, True, False, 0, 1, 2, 0.0, 1.0, 2.5, "", "u", "v", "w", " u", [], ["u"], [[]], {}, {"u": 1}, (),
    {"x": "u", "items": 1}, range(0), range(2),
]  # fmt: skip

_WORDS = ["u", "v", "", "1", "None", " "]
_NAMES = ["a", "b", "c", "m", "ns.n", "a.x", "a['x']", "a.items", "a['items']"]
_BEFORE = "{% set ns = namespace(n=0) %}"
_SORTS = "defined undefined none string mapping true false boolean number integer float".split()  # noqa: SIM905
_CONSTANTS = ["'u'", "'v'", "''", "0", "1", "2", "true", "false", "none"]


class _Writer:
    """Writes a template at random."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def _one(self, choices: list[Any]) -> Any:
        return self._draw(st.sampled_from(choices))

    def condition(self, depth: int = 2) -> str:
        kinds = ["name", "sort", "equal", "among", "length", "constant"] + ["not", "both", "chosen"] * (depth > 0)
        kind, name, constant = self._one(kinds), self._one(_NAMES), self._one(_CONSTANTS)
        if kind == "sort":
            return f"{name} is {self._one(['', 'not '])}{self._one(_SORTS)}"
        if kind == "equal":
            return f"{name} {self._one(['==', '!='])} {constant}"
        if kind == "among":
            return f"{name} {self._one(['in', 'not in'])} [{constant}, {self._one(_CONSTANTS)}]"
        if kind == "length":
            return f"{name}|length {self._one(['>', '!=', '==', '>=', '<'])} {self._one(['0', '1'])}"
        if kind == "not":
            return f"not ({self.condition(depth - 1)})"
        if kind == "both":
            return f"({self.condition(depth - 1)} {self._one(['and', 'or'])} {self.condition(depth - 1)})"
        if kind == "chosen":
            return f"({self.condition(depth - 1)} if {self.condition(depth - 1)} else {self.condition(depth - 1)})"
        return str(name if kind == "name" else constant)

    def expression(self, depth: int = 2) -> str:
        kind = self._one(["name", "constant"] + ["joined", "chosen", "perhaps", "filtered", "default"] * (depth > 0))
        if kind == "joined":
            return f"({self.expression(depth - 1)} {self._one(['~', '+', 'or', 'and'])} {self.expression(depth - 1)})"
        if kind == "chosen":
            return f"({self.expression(depth - 1)} if {self.condition(1)} else {self.expression(depth - 1)})"
        if kind == "perhaps":
            return f"({self.expression(depth - 1)} if {self.condition(1)})"
        if kind == "filtered":
            return f"({self.expression(depth - 1)})|trim"
        if kind == "default":
            return f"({self.expression(depth - 1)})|default({self.expression(0)})"
        return str(self._one(_NAMES if kind == "name" else _CONSTANTS))

    def piece(self, depth: int = 2) -> str:
        kind = self._one(["word", "value"] + ["two", "two", "if", "else", "elif", "for", "set", "tag"] * (depth > 0))
        if kind == "for":
            iterated = self._one(["[a, 'v']", "[b]", "[]", "l", "l if m", "l recursive"])
            return f"{{% for {self._one(['m', 'a'])} in {iterated} %}}{self.piece(depth - 1)}{{% endfor %}}"
        if kind == "set":
            target = self._one(["b", "c", "ns.n", "ns.m"])
            return f"{{% set {target} = {self.expression(1)} %}}{self.piece(depth - 1)}"
        if kind == "tag":
            return f"{{% generation %}}{self.piece(depth - 1)}{{% endgeneration %}}"
        if kind == "word":
            return str(self._one(_WORDS))
        if kind == "value":
            return f"{{{{ {self.expression()} }}}}"
        if kind == "two":
            return self.piece(depth - 1) + self.piece(depth - 1)
        text = f"{{% if {self.condition()} %}}{self.piece(depth - 1)}"
        if kind == "elif":
            text += f"{{% elif {self.condition()} %}}{self.piece(depth - 1)}"
        return text + (f"{{% else %}}{self.piece(depth - 1)}" if kind == "else" else "") + "{% endif %}"


# Other ways to write a thing, right and wrong ones: what the proofs must tell apart.
_REWRITES: list[tuple[str, str]] = [
    ("a['x']", "a.x"), ("a['items']", "a.items"), (" and ", " or "), ("==", "!="), ("a", "b"), ("'u'", "'v'"),
    ("not (", "("), ("none", "undefined"), ("a is true", "a"), ("}}", " or ''}}"), ("~", "+"), ("{{ ", "{{ '' ~ "),
    ("'u'", "a"), ("u", "v"), ("{% else %}", "{% elif b %}"), ("{% if a %}", "{% if a is defined and a %}"),
    ("{% if ", "{% if not not "), ("|length > 0", ""), ("|length", ""), ("1", "true"), ("true", "1"), ("''", "none"),
    ("{{ 'u' }}", "u"), ("{% endif %}", "{% endif %}{% if false %}x{% endif %}"), ("a == 'u'", "a in ['u']"),
    ("is boolean", "in [true, false]"), ("is number", "is integer"), ("|trim", ""), ("m", "a"), ("ns.n", "ns.m"),
    ("{% set b", "{% set c"), (" recursive", ""), (" if m", ""), ("[b]", "[b, b]"),
    ("{% generation %}", "{% generation %}x"),
]  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """A template, and another that says the same or nearly so."""
    old = new = _BEFORE + _Writer(draw).piece(draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(1, 3))):
        fitting = [(one, other) for one, other in _REWRITES if one in new]
        if not fitting:
            break
        one, other = draw(st.sampled_from(fitting))
        new = new.replace(one, other) if draw(st.booleans()) else new.replace(one, other, 1)
    if draw(st.booleans()):
        new = new.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    return old, new


def _renderer(text: str) -> Callable[[dict[str, Any]], str | None]:
    template = chat_template_utils._cached_compile_jinja_template(text)

    def render(values: dict[str, Any]) -> str | None:
        try:
            return str(template.render(values))
        except Exception:
            return None

    return render


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_what_is_proved_renders_alike_whatever_the_values(pair: tuple[str, str]) -> None:
    old, new = pair
    try:
        before, after = _renderer(old), _renderer(new)
    except (TemplateSyntaxError, SyntaxError):
        return
    proved = not uncovered_changes(covered(old), covered(new))
    event(f"proved: {proved}, edited: {old != new}")
    if proved and old != new:
        for a, b in itertools.product(VALUES, VALUES):
            values = {"a": a, "b": b, "l": ["u", a]}
            one, other = before(values), after(values)
            assert one == other or None in (one, other), (a, b)


def _items(text: str) -> tuple[Item, ...]:
    found = covered(text).templates["default"]
    assert found is not None
    return items_of(found.tree.many(0), settled=True)


def test_proofs_that_would_take_too_long_are_given_up() -> None:
    many = range(40)
    old = _items("".join(f"{{% if v{number} %}}{number}{{% endif %}}" for number in many))
    new = _items("".join(f"{{{{ '{number}' if v{number} }}}}" for number in many))
    effort = Effort()
    assert not equivalent(old, new, effort)
    assert equivalent(old[:3], new[:3], effort)
    # A hundred such changes take no longer than ten.
    assert not any(equivalent(old, new, effort) for _ in range(9))
    assert not equivalent(old[:3], new[:3], effort)
    assert equivalent(old[:3], new[:3], Effort())
