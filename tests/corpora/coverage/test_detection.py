"""What engines read off a template before they render: where it differs, equal output proves nothing."""

from __future__ import annotations

import pytest

from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.detection import same_detection

from .rendering import covered

_TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _coverage(*texts: str) -> tuple[Coverage, ...]:
    return tuple(covered(text) for text in texts)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (_TEXT, True),
        ("{% for m in messages %}{{ m['content'] ~ '' }}{% endfor %}", True),
        (_TEXT + "{% if false %}{% for p in content %}{% endfor %}{% endif %}", False),
        (_TEXT + "{% if false %}{% set content = 1 %}{% endif %}", False),
        (_TEXT + "{% if false %}{{ f(messages) }}{% endif %}", False),
        (_TEXT.replace("messages", "messages[1:]"), False),
        ("{# \"developer\" #}" + _TEXT, False),
        ("{# revision 8 #}" + _TEXT, False),
    ],
)  # fmt: skip
def test_what_is_read(other: str, *, same: bool) -> None:
    assert same_detection(*_coverage(_TEXT, other)) is same
    assert same_detection(*_coverage(other, _TEXT)) is same


def test_a_template_that_one_side_lacks() -> None:
    one = covered(_TEXT)
    assert not same_detection(one, Coverage({**one.templates, "tool_use": one.templates["default"]}))
    assert not same_detection(one, Coverage({"default": None}))
