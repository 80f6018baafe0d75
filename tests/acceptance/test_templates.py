"""When a changed chat template alone is proved to change no token id, and what leaves it open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.conftest import Answer, Capture, Check, Edit
from tests.acceptance.releases import TEMPLATE, Checkpoints

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
PROMPT = "{%- if add_generation_prompt %}\n    {{- '<|role|>assistant\\n' }}\n{%- endif %}"


def _changed(old: str, new: str) -> str:
    assert old in TEMPLATE
    return TEMPLATE.replace(old, new)


def _evidence(answer: Answer) -> dict[str, Any]:
    (found,) = (one for one in answer.predicate["evidence"] if one["kind"] == "token-identity")
    return dict(found)


ALIKE = {
    "a branch split in two": _changed(
        PROMPT,
        "{%- if not add_generation_prompt %}{%- else %}\n    {{- '<|role|>' }}{{- 'assistant\\n' }}\n{%- endif %}",
    ),
    "text joined otherwise": _changed("'<|role|>' + message['role'] + '\\n'", "'<|role|>' ~ message['role'] ~ '\\n'"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_another_way_of_writing_the_same_is_reuse(
    name: str, check: Check, capture: Capture, checkpoints: Checkpoints
) -> None:
    old = capture(checkpoints("base"))
    new = capture(checkpoints(f"alike-{sorted(ALIKE).index(name)}", template=ALIKE[name]))
    answer = check(old, new)
    assert (_evidence(answer)["state"], answer.verdict, answer.code) == ("proved", REUSE, 0), _evidence(answer)


OPEN = {
    # No conversation has a role of this name.
    "equal on this corpus": (
        _changed("message['role'] +", "message['role'] | replace('narrator', 'system') +"),
        "narrator",
    ),
    "a branch that no conversation runs": (
        _changed(PROMPT, PROMPT + "{%- if kvgate_never %}{{ 'x' }}{%- endif %}"),
        "kvgate_never",
    ),
    # Engines read the form of message content off such loops, whatever they print.
    "a loop over content that prints nothing": (
        _changed(
            "{%- endfor %}", "{%- if false %}{%- for part in message.content %}{%- endfor %}{%- endif %}{%- endfor %}"
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_the_corpus_leaves_open_is_not_proved(
    name: str, check: Check, capture: Capture, checkpoints: Checkpoints
) -> None:
    template, named = OPEN[name]
    old = capture(checkpoints("base"))
    new = capture(checkpoints(f"open-{sorted(OPEN).index(name)}", template=template))
    answer = check(old, new)
    found = _evidence(answer)
    assert (found["state"], answer.verdict) == ("inconclusive", NEW)
    assert named in found["reason"]


def test_a_proof_needs_the_libraries_that_serve(
    check: Check, capture: Capture, checkpoints: Checkpoints, edit: Edit
) -> None:
    """Left to the image on both sides: what rendered the snapshots may not be what serves."""
    new = checkpoints("alike-0", template=ALIKE[sorted(ALIKE)[0]])
    left = {"tokenizer.renderer.transformers": None, "tokenizer.renderer.tokenizers": None}
    answer = check(*(edit(capture(one), one.name, left) for one in (checkpoints("base"), new)))
    found = _evidence(answer)
    assert (found["state"], answer.verdict) == ("inconclusive", NEW)
    assert "not rendered by the libraries" in found["reason"]
