"""Prefix stability of turns, generated answers, and the epoch marker."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.divergence.epoch import Reached, check_epoch
from kvgate.corpora.divergence.generated import Answer, answers_as_data, answers_from, measure_answers
from kvgate.corpora.divergence.stability import MOST, Turn, measure_turns, turn_ends, turns_as_data, turns_from
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotFile
from kvgate.rules.errors import InputError

from .conftest import saved

_ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}
_BLOCK = [100, 101]  # an empty block of reasoning


def _chat(*roles: str) -> dict[str, Any]:
    return {
        "messages": [{"role": role, "content": index} for index, role in enumerate(roles)],
        "prompt": None,
        "add_generation_prompt": None,
        "continue_final_message": False,
    }


def _renderer(*, keeps: bool) -> Any:
    """A template that opens answers with an empty block, and keeps it in past turns, or not (incident I09)."""

    def render(conversation: Mapping[str, Any]) -> list[int] | None:
        messages = conversation["messages"]
        if not messages or messages[0]["role"] == "assistant":
            return None
        ids = []
        for index, message in enumerate(messages):
            last = index == len(messages) - 1
            block = _BLOCK if message["role"] == "assistant" and (keeps or last) else []
            ids += [_ROLES[message["role"]], *block, 10 + message["content"]]
        return ids + ([3, *_BLOCK] if conversation["add_generation_prompt"] else [])

    return render


def test_turns_end_where_an_answer_begins_or_ends() -> None:
    assert turn_ends(_chat("user")["messages"]) == []
    assert turn_ends(_chat("system", "user", "assistant", "user")["messages"]) == [(2, True), (3, False)]
    assert turn_ends(_chat("user", "user", "assistant", "tool", "tool", "assistant")["messages"]) == [
        (2, True), (3, False), (5, True),
    ]  # fmt: skip
    assert turn_ends([{}, {"role": "assistant"}]) == [(1, True)]


def test_long_chats_are_measured_at_a_few_turns_from_first_to_last() -> None:
    messages = _chat(*["user", "assistant"] * 100)["messages"]
    ends = turn_ends(messages)
    assert len(ends) == len(set(ends)) == MOST
    assert (ends[0], ends[-1]) == ((1, True), (199, True))
    assert ends == sorted(ends)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_template_that_drops_past_reasoning_is_not_stable(keeps: bool) -> None:
    chat = _chat("user", "assistant", "user")
    render = _renderer(keeps=keeps)
    turns = measure_turns(chat, render({**chat, "add_generation_prompt": True}), render)
    assert [turn.stable for turn in turns] == [keeps, keeps]
    assert turns[0] == Turn(1, prompt=True, tokens=5, shared=5 if keeps else 3)


def test_what_does_not_render_alone_is_not_measured() -> None:
    chat = _chat("assistant", "user")
    assert measure_turns(chat, [1, 2, 3], _renderer(keeps=True)) == [Turn(1, prompt=False, tokens=None, shared=None)]
    assert Turn(1, prompt=False, tokens=None, shared=None).stable is None
    assert measure_turns({"messages": None, "prompt": "x"}, [1], _renderer(keeps=True)) == []


def test_generated_ids_are_looked_for_where_they_have_to_stand() -> None:
    chat = _chat("user", "assistant", "user")
    for keeps in (True, False):
        render = _renderer(keeps=keeps)
        whole = render({**chat, "add_generation_prompt": True})
        # The opening of the answer is part of the prompt; what was generated is its content.
        (answer,) = measure_answers(chat, {1: [11]}, whole, render)
        assert answer == (Answer(1, 1, 5, 1) if keeps else Answer(1, 1, None, 0))
        assert answer.same == keeps
    render = _renderer(keeps=True)
    whole = render({**chat, "add_generation_prompt": True})
    assert measure_answers(chat, {1: [11, 2, 99]}, whole, render) == [Answer(1, 3, 5, 2)]
    assert measure_answers(_chat("assistant"), {0: [1]}, [1], render) == [Answer(0, 1, None, 0)]


def test_what_a_snapshot_holds_is_read_back() -> None:
    turns = [Turn(1, prompt=True, tokens=5, shared=3), Turn(2, prompt=False, tokens=None, shared=None)]
    answers = [Answer(1, 3, 5, 2), Answer(3, 1, None, 0)]
    assert turns_from(json.loads(json.dumps(turns_as_data(turns))), "here") == tuple(turns)
    assert answers_from(json.loads(json.dumps(answers_as_data(answers))), "here") == tuple(answers)


@pytest.mark.parametrize(
    "change",
    [
        {"end": -1},
        {"end": True},
        {"prompt": 1},
        {"tokens": None},
        {"shared": 9},
        {"shared": "1"},
        {"more": 1},
        {"end": None},
    ],
)
def test_malformed_turns_are_refused(change: dict[str, Any]) -> None:
    good = {"end": 1, "prompt": True, "tokens": 5, "shared": 3}
    with pytest.raises(InputError, match="turn"):
        turns_from([{**good, **change}], "here")


@pytest.mark.parametrize("change", [{"message": -1}, {"tokens": True}, {"place": "x"}, {"shared": 9}, {"more": 1}])
def test_malformed_answers_are_refused(change: dict[str, Any]) -> None:
    good = {"message": 1, "tokens": 5, "place": 3, "shared": 3}
    with pytest.raises(InputError, match="answer"):
        answers_from([{**good, **change}], "here")


# ---- the epoch marker ----

_COUNT = itertools.count()


def _file(folder: Path, **conversations: list[int] | None) -> SnapshotFile:
    """Write a snapshot in which every input differs, as it does where the prompt carries the epoch."""
    count = next(_COUNT)
    entries = [
        SnapshotEntry(
            name,
            f"{name} {count}",
            (Rendered("", array("I", ids)) if ids is not None else Rendered(None, array("I"), ("E", "")),),
        )
        for name, ids in conversations.items()
    ]
    return saved(folder / f"{count}.jsonl", *entries)


def test_a_marker_has_to_change_the_first_block(tmp_path: Path) -> None:
    old = _file(tmp_path, first=[14, 1, 2, 3, 4], later=[1, 2, 3, 4, 14], edge=[1, 2, 3, 14], none=[1, 2, 3, 4, 5])
    new = _file(tmp_path, first=[15, 1, 2, 3, 4], later=[1, 2, 3, 4, 15], edge=[1, 2, 3, 15], none=[1, 2, 3, 4, 5])
    found = check_epoch(old, new, 4)
    assert (found.examined, found.unexamined.count) == (4, 0)
    assert found.reached.first == (Reached("later", 4, 5), Reached("none", 5, 5))
    assert check_epoch(old, new, 3).reached.first[1] == Reached("edge", 3, 4)


def test_a_conversation_that_ends_before_it_differs_is_not_protected(tmp_path: Path) -> None:
    # The block is not full yet: whatever follows on the shorter side may make it the other's.
    old, new = _file(tmp_path, a=[1, 2], b=[1, 2]), _file(tmp_path, a=[1, 2, 15], b=[1, 2])
    assert check_epoch(old, new, 16).reached.count == 2
    assert check_epoch(_file(tmp_path, a=[]), _file(tmp_path, a=[1]), 16).reached.count == 1


def test_what_a_side_lacks_or_could_not_render_is_not_examined(tmp_path: Path) -> None:
    old, new = _file(tmp_path, a=[1], b=[1], c=None), _file(tmp_path, a=[2], d=[1], c=[2])
    found = check_epoch(old, new, 4)
    assert (found.examined, found.reached.count) == (1, 0)
    assert set(found.unexamined.first) == {"b", "c", "d"}
    with pytest.raises(ValueError, match="at least one token"):
        check_epoch(old, new, 0)
