"""Revisions of published chat templates, and edits of one character in them: shown by a conversation, or named."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.coverage.changes import UncoveredArm, uncovered_changes
from kvgate.corpora.rendering import pipeline
from kvgate.corpora.templates.template import Templates, describe_templates
from kvgate.rules.errors import InputError
from tests.real.models import templates
from tests.real.rendering import quickly

REVISIONS = [
    ("trl/gemma4", "trl/gemma4_v2"),
    ("trl/gemma4_v2", "trl/gemma4_v3"),
    ("trl/gemma4_v3", "trl/gemma4_v4"),
    ("trl/gemma4_v4", "trl/gemma4_v5"),
    ("trl/lfm2", "trl/lfm2_v2"),
    ("trl/lfm2_2_5", "trl/lfm2_2_5_v2"),
    ("own/deepseek_v3", "own/deepseek_v3b"),
]
# Written anew so that training can tell what was generated: other branches, and the same text for every chat.
REWRITTEN = ["trl/lfm2", "trl/lfm2_v2", "trl/qwen2_5", "trl/qwen3_instruct_2507", "trl/qwen3_vl"]
EDITS, PARTS = 32, 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be rendered twice; test_rendering.py has that."""
    monkeypatch.setattr(pipeline, "CHECKED", 0)


def compared(
    tokenizer: Any, conversations: Mapping[str, Conversation], old: str, new: str
) -> tuple[int, tuple[UncoveredArm, ...]]:
    """Of how many conversations the results differ, and what the corpus leaves open of the change."""
    (before, ran_before), (after, ran_after) = (quickly(tokenizer, conversations, text) for text in (old, new))
    results = dict(before)
    return sum(results.get(which) != result for which, result in after), uncovered_changes(ran_before, ran_after)


@pytest.mark.parametrize(("old", "new"), REVISIONS)
def test_what_publishers_changed_is_seen_or_named(
    old: str, new: str, tokenizer: Any, conversations: Mapping[str, Conversation]
) -> None:
    differing, left_open = compared(tokenizer, conversations, templates()[old], templates()[new])
    assert left_open
    assert differing or old == "trl/lfm2_2_5"  # that one reads reasoning under further names, which transformers gives


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_template_written_anew_for_training_is_proved_to_render_the_same(
    name: str, tokenizer: Any, conversations: Mapping[str, Conversation]
) -> None:
    old, new = templates()[name], templates()[f"{name}_training"]
    assert old != new
    assert compared(tokenizer, conversations, old, new) == (0, ())


@pytest.mark.parametrize("part", range(PARTS))
def test_one_character_of_a_published_template(
    part: int, tokenizer: Any, conversations: Mapping[str, Conversation]
) -> None:
    for name, old, new in islice(edits(), part, EDITS, PARTS):
        differing, left_open = compared(tokenizer, conversations, old, new)
        assert differing or left_open, name


def edits() -> Iterator[tuple[str, str, str]]:
    """Yield templates with one character replaced, which still are templates, and others than before."""
    draw = random.Random(2)
    named = list({text: name for name, text in templates().items()}.items())
    while True:
        old, name = draw.choice(named)
        at = draw.randrange(len(old))
        new = old[:at] + draw.choice("x \n-0'_éA=") + old[at + 1 :]
        try:
            if tree(new) != tree(old):
                yield f"{name}, character {at}", old, new
        except InputError:
            continue


def tree(template: str) -> str:
    return describe_templates(Templates({"default": template}, "test", {"default": "test"})).tree
