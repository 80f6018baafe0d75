"""Long corpora: what is in memory at one time stays small, and an end in the middle leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgate.corpora.child.feeding import batches
from kvgate.corpora.child.limits import Limits
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.corpora.examine import take_snapshot
from kvgate.rules.errors import InputError

from .conftest import MakeFolder, Take, corpus_of

_MANY = 6000


def _saying(count: int, size: int = 0) -> Iterator[Conversation]:
    return (Conversation(str(n), messages=({"role": "user", "content": f"{n}" + " x" * size},)) for n in range(count))


def test_conversations_are_asked_for_as_they_are_needed(make_folder: MakeFolder, tmp_path: Path) -> None:
    asked = 0
    ahead: list[int] = []

    def read() -> Iterator[Conversation]:
        nonlocal asked
        for asked, one in enumerate(_saying(_MANY, 100), 1):  # noqa: B007 - counted for whoever looks
            yield one

    taken = take_snapshot(
        make_folder(),
        Corpus("test", "sha256:0", _MANY, read),
        tmp_path / "s",
        progress=lambda stage, done, total, unit: ahead.append(asked - done),  # noqa: ARG005
    )
    assert [entry.id for entry in taken.entries()] == [str(n) for n in range(_MANY)]
    assert max(ahead) < 2500  # what is rendered, encoded and in the pipes, at whatever pace


def test_a_batch_is_bounded_in_number_and_size() -> None:
    few = list(batches(_saying(20, 200_000)))
    assert {len(batch.names) for batch in few} == {2}
    assert all(len(batch.line) < 2 << 20 for batch in few)
    many = list(batches(_saying(600)))
    assert [len(batch.names) for batch in many] == [256, 256, 88]
    assert [name for batch in many for name in batch.names] == [str(n) for n in range(600)]
    assert list(batches(())) == []


def test_what_is_nested_too_deeply_is_named() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    deep = Conversation("deep", messages=({"role": "user", "content": nested},))
    with pytest.raises(InputError, match="conversation 'deep': nested too deeply"):
        list(batches([deep]))


def test_a_corpus_that_changes_while_it_is_rendered_gives_nothing(make_folder: MakeFolder, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(50)))
    corpus = load_corpus(path)
    path.write_text(path.read_text().replace("number 49", "number 94"))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="was changed while it was being read"):
        take_snapshot(make_folder(), corpus, tmp_path / "out" / "s")
    assert not list((tmp_path / "out").iterdir())


def test_an_interrupt_in_the_middle_leaves_nothing_behind(make_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    seen: list[list[str]] = []

    def interrupt(stage: str, done: int, total: int | None, unit: str) -> None:  # noqa: ARG001
        seen.append([path.name for path in (tmp_path / "out").iterdir()])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_snapshot(make_folder(), corpus_of(*_saying(2000)), tmp_path / "out" / "s", progress=interrupt)
    assert len(seen[0]) == 1  # it was on its way
    assert not list((tmp_path / "out").iterdir())


def test_a_limit_names_the_conversation_wherever_it_is(make_folder: MakeFolder, take: Take) -> None:
    for_ever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    slow = f"{{% if messages[0].content == '1234' %}}{for_ever}{{% endif %}}"
    corpus = corpus_of(*_saying(2000))
    with pytest.raises(InputError, match="rendering the chat template on conversation '1234' did not finish within"):
        take(make_folder(template=slow), corpus, limits=Limits(render_seconds=2))


def test_encoding_is_bounded_too(make_folder: MakeFolder, take: Take) -> None:
    long = _saying(1, 400_000)
    with pytest.raises(InputError, match=r"encoding the conversations up to '\d' did not finish within 0\.05 s"):
        take(make_folder(), corpus_of(*long), limits=Limits(encode_seconds=0.05, render_seconds=60))


def test_output_is_bounded_by_what_went_in(
    make_folder: MakeFolder, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvgate.corpora.child.bounded._PER_CONVERSATION", 256)
    template = "{{ 'some text ' * 3000 }}"
    with pytest.raises(InputError, match="gives more output than can be handled"):
        take(make_folder(template=template), corpus_of(*_saying(9)), limits=Limits(output_bytes=1 << 16))
