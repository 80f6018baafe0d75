"""Real tokenizers and templates that part: rendered, saved, compared."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.snapshots.comparison import SnapshotComparison, compare_snapshots
from kvgate.corpora.snapshots.snapshot import SnapshotFile

from .conftest import CHATML, MakeFolder, Take, corpus_of

_HELLO = {"role": "user", "content": "Name a prime number."}
_SEVEN = {"role": "assistant", "content": "Seven."}
_MORE = {"role": "user", "content": "Another."}

# As published: the block of reasoning of past turns goes, and stays on the last one (incident I09).
_DROPS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.last %}{{ '<think>\\n</think>\\n' }}{% endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n</think>\\n' }}{% endif %}"""
_KEEPS = _DROPS.replace(" and loop.last", "")


@pytest.fixture
def chats() -> Corpus:
    return corpus_of(
        Conversation("one", messages=(_HELLO,)),
        Conversation("three", tags=("multi-turn",), messages=(_HELLO, _SEVEN, _MORE)),
        Conversation("raw", prompt="A tide is <think> "),
    )


_PLAIN: list[SnapshotFile] = []  # the side that most tests have in common, rendered once


@pytest.fixture
def compare(make_folder: MakeFolder, take: Take, chats: Corpus) -> Any:
    def compare(old: dict[str, Any] | None, new: dict[str, Any], **arguments: Any) -> SnapshotComparison:
        if old is None and not _PLAIN:
            _PLAIN.append(take(make_folder(), chats))
        left = _PLAIN[0] if old is None else take(make_folder(**old), chats)
        return compare_snapshots(left, take(make_folder(**new), chats), **arguments)

    return compare


def test_a_generation_prompt_that_says_more(compare: Any) -> None:
    # Incident I07: the old ids are the beginning of the new, so all blocks of the history are still reached.
    new = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
    assert new != CHATML
    found = compare(None, {"template": new}, block_size=4)
    (one, three) = found.divergences.first
    assert (found.examined, found.by_template) == (3, 2)
    assert {one.begins, three.begins} == {"old"}
    assert one.token == one.old_tokens
    assert one.character == len("<|im_start|>user\nName a prime number.<|im_end|>\n<|im_start|>assistant\n")
    assert [row.new.text for row in one.window.rows if row.old is None and row.new is not None] == ["<think>", "\n"]
    assert "line 4 of the template" in one.cause.words
    assert found.coverage is not None
    assert sum(arm.executed for arm in found.coverage.new.arms)
    assert found.blocks.share == 1
    assert [(group.count, group.names) for group in found.kinds] == [(2, ("one", "three"))]


def test_reasoning_that_past_turns_keep(compare: Any) -> None:
    found = compare({"template": _DROPS}, {"template": _KEEPS})
    # Incident I09: equal in the first turn, divergent from the second on; and only the new side is stable.
    assert [one.id for one in found.divergences.first] == ["three"]
    assert (found.turns.old.held, found.turns.new.held) == (0, found.turns.new.measured)
    assert found.turns.mended.first == ("three",)
    assert not found.turns.broken.count


def test_a_bos_rule_moves_no_chat_and_every_raw_completion(compare: Any) -> None:
    def prefixed(backend: dict[str, Any]) -> None:
        backend["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }

    found = compare(None, {"edit": prefixed}, block_size=4)
    (raw,) = found.divergences.first
    assert (raw.id, raw.token, raw.character, raw.cause.kind) == ("raw", 0, 0, "front")
    assert "on the new side" in raw.cause.words
    assert found.by_tokenizer == 1


def test_an_added_token_swallows_white_space(compare: Any) -> None:
    # Incident I11: only where white space follows.
    def stripping(backend: dict[str, Any]) -> None:
        (token,) = (one for one in backend["added_tokens"] if one["content"] == "<think>")
        token["rstrip"] = True

    found = compare(None, {"edit": stripping})
    (raw,) = found.divergences.first
    assert (raw.id, raw.same_text, raw.character) == ("raw", True, len("A tide is <think>"))
