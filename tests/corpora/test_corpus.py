"""The diagnostic conversations, and a user's own."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from importlib import resources
from pathlib import Path

import pytest

from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.rules.errors import InputError

_TAGS = {
    "calls", "clock", "code", "continue", "control", "digits", "directions", "documents", "emoji", "empty",
    "json", "kwargs", "long", "multi-turn", "normal-form", "parts", "prompt", "raw", "reasoning", "same-role",
    "scripts", "special", "system", "tools", "turns", "whitespace", "words",
}  # fmt: skip


def test_every_diagnostic_conversation_says_why_it_is_there(diagnostic: Corpus) -> None:
    assert diagnostic.count >= 60
    assert all(one.why and one.tags for one in diagnostic.conversations())
    assert {tag for one in diagnostic.conversations() for tag in one.tags} == _TAGS


def test_no_two_diagnostic_conversations_are_the_same_input(diagnostic: Corpus) -> None:
    assert len({one.input_digest for one in diagnostic.conversations()}) == diagnostic.count


def test_the_id_is_the_digest_of_the_file(diagnostic: Corpus) -> None:
    content = (resources.files("kvgate.corpora.conversations") / "diagnostic.jsonl").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert diagnostic.digest == f"sha256:{digest}"
    assert diagnostic.id == f"diagnostic@{digest[:12]}"


def test_normal_forms_survive_the_file(diagnostic: Corpus) -> None:
    content = {one.id: one.messages[0]["content"] for one in diagnostic.conversations() if one.messages}
    assert content["form-nfc"] != content["form-nfd"]
    assert unicodedata.normalize("NFC", content["form-nfd"]) == content["form-nfc"]


def test_what_humans_cannot_see_is_escaped_in_the_file() -> None:
    text = (resources.files("kvgate.corpora.conversations") / "diagnostic.jsonl").read_text("utf-8")
    hidden = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")} - {"\n"}
    assert not hidden


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    assert next(_load(tmp_path, '\ufeff{"prompt": "x"}').conversations()).prompt == "x"


def test_what_is_yielded_is_read_again_and_must_be_the_same(tmp_path: Path) -> None:
    corpus = _load(tmp_path, '{"prompt": "x"}', "", '{"prompt": "y", "id": "second"}')
    assert corpus.count == 2
    assert (
        [one.id for one in corpus.conversations()] == [one.id for one in corpus.conversations()] == ["line-1", "second"]
    )
    _load(tmp_path, '{"prompt": "x"}', "", '{"prompt": "z", "id": "second"}')
    with pytest.raises(InputError, match="was changed while it was being read"):
        list(corpus.conversations())


def test_progress_is_told_of_large_files(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None, str]] = []
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": f"{n} " * 100_000}) + "\n" for n in range(60)))
    load_corpus(tmp_path / "mine.jsonl", lambda *told: seen.append(told))
    assert len(seen) >= 2
    assert {(stage, total, unit) for stage, _, total, unit in seen} == {
        ("reading the corpus", (tmp_path / "mine.jsonl").stat().st_size, "bytes")
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ('{"messages": "x"}', "'messages' must be a list"),
        ('{"id": "line-1", "prompt": "x"}', "stands twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        _load(tmp_path, '{"prompt": "first"}', line)
    assert str(caught.value.where).startswith(f"{tmp_path / 'mine.jsonl'}:2")


def test_bad_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
    with pytest.raises(InputError, match="not UTF-8") as caught:
        load_corpus(path)
    assert caught.value.where == f"{path}:2"


def test_an_endless_line_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    with path.open("wb") as stream:
        stream.truncate(1 << 36)  # sparse: 64 GiB that take no room
    with pytest.raises(InputError, match="longer than"):
        load_corpus(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, says in {
        "missing": "No such file",
        "": "not a regular file",
        "pipe": "not a regular file",
        "empty": "holds no conversation",
        "nul\0": "cannot be read",
    }.items():
        with pytest.raises(InputError, match=says):
            load_corpus(str(tmp_path / name))


def _load(folder: Path, *lines: str) -> Corpus:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return load_corpus(path)
