"""Token ids are transformers' own, for every real tokenizer and every real chat template at hand.

The other side of each comparison is ``apply_chat_template`` of transformers itself, called for one conversation after
another in this process: templates as transformers compiles them, no batches, no recording of branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.rendering import pipeline
from kvgate.corpora.rendering.renderer import CLOCKS
from tests.real.models import MODELS, Releases, templates
from tests.real.rendering import directly, load, quickly

PARTS = 8  # tests that the templates are spread over, so that workers share them
# A third of the conversations is rendered twice with each template, another third with the next: it is the slow part.
THIRD = 3
# Of the branches of all templates, the share that the diagnostic corpus runs; the rest ends in an error, which never
# counts, or cannot be reached through transformers and an engine (a loop over an empty list behind a test that it is
# not, arguments left as JSON text).
SHARE = 0.85


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_apply_chat_template(
    name: str, releases: Releases, conversations: Mapping[str, Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = releases.folder(name)
    real = load(folder)
    rendered = 0
    for entry in releases.tokens(folder).entries():
        for render, clock in zip(entry.renders, CLOCKS, strict=False):
            expected = directly(real, conversations[entry.id], None, clock, monkeypatch)
            assert (render.error or list(render.ids)) == expected, entry.id
            rendered += render.ok
    assert rendered > 100


@pytest.mark.parametrize("part", range(PARTS))
def test_the_fast_path_renders_every_template_as_transformers_does(
    part: int, tokenizer: Any, conversations: Mapping[str, Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "CHECKED", 0)  # nothing is rendered a second time, so that this test must do it
    ran = branches = 0
    named = list({text: name for name, text in templates().items()}.items())
    for turn, (template, name) in enumerate(named[part::PARTS]):
        found, coverage = quickly(tokenizer, conversations, template)
        for (identity, clock), result in list(found)[turn % THIRD :: THIRD]:
            expected = directly(tokenizer, conversations[identity], template, clock, monkeypatch)
            assert result == expected, f"{name}: {identity}"
        branches += len(coverage.arms)
        ran += len(coverage.arms) - len(coverage.unexecuted)
    assert ran / branches > SHARE
