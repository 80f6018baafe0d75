"""The rendering options: what is applied, and what is known not to be."""

from __future__ import annotations

import pytest

from kvgate.corpora.rendering.options import render_options
from kvgate.rules.errors import UsageError


def test_options() -> None:
    applied, unapplied = render_options({"content_format": "auto", "add_generation_prompt": False})
    assert applied == {
        "add_generation_prompt": False,
        "add_special_tokens": True,
        "parse_tool_arguments": True,
        "template_kwargs": {},
    }
    assert unapplied == ("content_format",)
    with pytest.raises(UsageError, match="'template_kwargs' must be an object"):
        render_options({"template_kwargs": []})
