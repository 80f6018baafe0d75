"""Sweeps: which strings are made, that they are encoded as transformers does, and what comes out of the child."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.sweeps import groups
from kvgate.corpora.sweeps.added import round_tokens
from kvgate.corpora.sweeps.borders import CLASSES, meetings, runs
from kvgate.corpora.sweeps.characters import assigned, in_context, other_forms
from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.sweeps.groups import plan
from kvgate.corpora.sweeps.here import Side, other_meanings, sweep
from kvgate.corpora.sweeps.result import SweepResult, data_of, result_of
from kvgate.corpora.sweeps.spelling import Meaning, Spelling, readings
from kvgate.corpora.sweeps.sweep import compare_tokenizers
from kvgate.corpora.tokenizers.backend import Folder, build
from kvgate.corpora.tokenizers.effective import written_out
from kvgate.rules.errors import InputError

from .conftest import MakeFolder
from .trained import KINDS, Backend, byte_level, edited, loaded, wordpiece

_FEW = ("a", "é", "中", "\u0301", "\U000f0000")


class _Channel:
    """Takes what a job says, in place of the pipe."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.steps: list[str] = []

    def step(self, name: str, what: str, where: str | None) -> None:
        assert (name, where) == ("sweep", "here")
        self.steps.append(what)

    def item(self, value: Any) -> None:
        self.items.append(value)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sweep in this process with a few characters and borders: all of them take seconds."""
    monkeypatch.setattr(groups, "assigned", lambda: _FEW)
    monkeypatch.setattr(groups, "meetings", lambda: ["a b", "1a"])

    def run(old: Any, new: Any, channel: _Channel | None = None) -> SweepResult:
        channel = channel or _Channel()
        return sweep(Side(old), Side(new), channel, where="here")  # type: ignore[arg-type]

    return run


def _parts(backend: Backend) -> dict[str, Any]:
    parts = written_out(loaded(backend))
    assert isinstance(parts, dict)
    return parts


# ---- what vocabulary strings stand for ----


@pytest.mark.parametrize(
    ("kind", "piece", "meaning", "texts"),
    [
        ("byte-level", "\u0120the", Meaning(b" the", False, False), [" the"]),
        ("byte-level", "\u00e9", Meaning(b"\xe9", False, False), ["\ua002", "\u9000"]),
        ("byte-level", "<think>", Meaning(b"<think>", False, False), ["<think>"]),
        ("byte-level", "中", Meaning("中".encode(), False, False), ["中"]),  # of no alphabet: as it stands
        ("byte fallback", "\u2581the", Meaning(b" the", False, False), [" the", "the"]),
        ("byte fallback", "the", Meaning(b"the", False, False), ["the", "\nthe"]),
        ("byte fallback", "<0x0A>", Meaning(b"\n", False, False), ["\n", "\n\n"]),
        ("byte fallback", "<0x0g>", Meaning(b"<0x0g>", False, False), ["<0x0g>", "\n<0x0g>"]),
        ("unigram", "<0x0A>", Meaning(b"<0x0A>", False, False), ["<0x0A>", "\n<0x0A>"]),
        ("wordpiece", "the", Meaning(b"the", False, False), ["the"]),
    ],
)
def test_what_a_vocabulary_string_stands_for(kind: str, piece: str, meaning: Meaning, texts: list[str]) -> None:
    spelling = Spelling(_parts(KINDS[kind]()))
    assert spelling.meaning(piece) == meaning
    assert spelling.texts(piece)[: len(texts)] == texts or kind == "byte-level"
    assert all(meaning.data in text.encode() for text in spelling.texts(piece) if not piece.startswith("\u2581"))


def test_what_follows_in_a_word_is_tried_behind_letters() -> None:
    spelling = Spelling(_parts(wordpiece()))
    assert spelling.meaning("##at") == Meaning(b"at", True, False)
    assert spelling.meaning("##at") != spelling.meaning("at")
    texts = spelling.texts("##at")
    assert len(texts) > 1
    assert all(len(text) == 3 and text.endswith("at") for text in texts)


def test_what_ends_a_word_is_another_thing() -> None:
    parts = _parts(edited(byte_level(), lambda backend: backend["model"].update(end_of_word_suffix="</w>")))
    spelling = Spelling(parts)
    assert spelling.meaning("at</w>") == Meaning(b"at", False, True)
    assert spelling.meaning("at") == Meaning(b"at", False, False)


_HALVES = [
    *(b"\x80", b"\xa0\xb0", b"\xe4", b"\xe4\xb8", b"\xf0\x9f", b"\xf0", b"\x98\x80", b"\x9f\x98\x80", b"a\xe4"),
    b"\xb8\x80 \xe4\xb8",
]


@pytest.mark.parametrize("data", _HALVES)
def test_half_characters_are_made_whole(data: bytes) -> None:
    found = readings(data)
    assert found
    assert all(data in text.encode() for text in found)


@pytest.mark.parametrize("data", [b"\xff", b"\xc0", b"\x80\x80\x80\x80", b"a\xffb"])
def test_what_no_text_holds_is_not_made_up(data: bytes) -> None:
    assert readings(data) == []


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
def test_every_entry_is_reached_by_a_text_made_for_it(kind: str) -> None:
    """But for parts of characters, which only show in longer entries."""
    parts = _parts(KINDS[kind]())
    encoder = Encoder(loaded(KINDS[kind]()), direct=True)
    spelling = Spelling(parts)
    for piece, token in parts["model"]["vocab"].items():
        texts = spelling.texts(piece)
        ids = encoder.ids(texts, special_tokens=False)
        if not any(token in found for found in ids if found is not None):
            data = spelling.meaning(piece).data
            assert texts != [data.decode("utf-8", "replace")], piece


# ---- characters and borders ----


def test_every_assigned_code_point_that_text_can_hold_is_there() -> None:
    every = assigned()
    assert len(every) == len(set(every)) > 280_000
    assert {"a", "\x00", "\ue000", "\U0010fffd", "中", "\U0001f600"} <= set(every)
    assert not any("\ud800" <= one <= "\udfff" or unicodedata.category(one) == "Cn" for one in every)
    "".join(every).encode()
    framed = set(in_context(every))
    assert "aéa é1" in framed
    assert len(framed) > 150_000


def test_the_other_forms_are_those_that_normalisation_makes() -> None:
    assert set(other_forms(["é", "a", "ﬁ", "한"])) == {"e\u0301a", "fia", "\u1112\u1161\u11aba"}


def test_every_two_and_three_classes_meet() -> None:
    found = set(meetings())
    assert len(found) == len(CLASSES) ** 3
    assert {"a1 ", "1 a", "\u200d😀a"} <= found
    assert {"1" * 3, "123", " " * 16 + "a", "a" + "\n" * 2 + "a", "\r\n" * 4} <= set(runs())


def test_added_tokens_are_tried_with_all_sorts_of_neighbours() -> None:
    found = set(round_tokens(["<a>", "a>b", ""]))
    assert {"<a>", " <a> ", "<a>a", "<a><a>", "<A>", "<a>\u0338", "<a>b", "＜ａ＞"} <= found


def test_only_the_beginnings_are_tried_where_nothing_else_can_part() -> None:
    old = _parts(byte_level())
    new = old | {"post_processor": {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}}
    assert [one.name for one in plan([old, new]).groups] == ["beginnings"]


# ---- encoding ----


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers_own_call(kind: str) -> None:
    tokenizer = loaded(KINDS[kind](), bos_token="<s>", add_bos_token=True)
    planned = plan([_parts(KINDS[kind]())], [chr(code) for code in range(0x20, 0x2000, 17)])
    texts = [text for group in planned.groups for text in group.strings[:: 1 + len(group.strings) // 800]]
    encoder = Encoder(loaded(KINDS[kind](), bos_token="<s>", add_bos_token=True), direct=True)
    for special in (False, True):
        expected = tokenizer(texts, add_special_tokens=special)["input_ids"]
        assert encoder.ids(texts, special_tokens=special) == expected
        assert Encoder(tokenizer, direct=False).ids(texts, special_tokens=special) == expected
        assert (expected[0][:1] == [tokenizer.bos_token_id]) == special


def test_what_one_side_cannot_encode_is_counted_and_compared_with_nothing(swept: Any) -> None:
    def without_unknown(backend: Backend) -> None:
        backend["model"]["unk_token"] = "<missing>"

    result = swept(loaded(wordpiece()), loaded(edited(wordpiece(), without_unknown)))
    points = next(one for one in result.groups if one.name == "code points")
    assert (points.strings, points.failed) == (len(_FEW), 1)
    assert result.strings == sum(one.strings - one.failed for one in result.groups)
    assert result.strings < sum(one.strings for one in result.groups)


# ---- results ----


def test_a_result_says_where_the_two_part(swept: Any) -> None:
    old = byte_level()
    channel = _Channel()
    exchanged = edited(old, lambda backend: backend["model"]["vocab"].update(the=_id(old, "cat"), cat=_id(old, "the")))
    result = swept(loaded(old), loaded(exchanged), channel)
    assert result.differs
    assert not result.equal
    assert result.meanings == 2
    assert {(one.old, one.new) for one in result.other_meanings} == {("the", "cat"), ("cat", "the")}
    (part,) = result.parts
    assert (part.part, part.what, part.count) == ("vocabulary", "entries with another id", 2)
    first = result.divergences[0]
    assert (first.group, first.text, first.at, first.special_tokens) == ("vocabulary", "the", 0, False)
    assert (first.old_ids, first.old_pieces) == ((_id(old, "the"),), ("the",))
    assert (first.new_ids, first.new_pieces) == ((_id(old, "cat"),), ("the",))
    assert all(sum(one.group == name.name for one in result.divergences) <= 10 for name in result.groups)
    assert channel.items[-1] == {"done": channel.items[-1]["total"], "total": sum(one.strings for one in result.groups)}
    assert [one["done"] for one in channel.items] == sorted(one["done"] for one in channel.items)
    assert channel.steps[1] == "encoding vocabulary with both tokenizers"
    assert result_of(json.loads(json.dumps(data_of(result)))) == result


def _id(backend: Backend, piece: str) -> int:
    token: int = backend["model"]["vocab"][piece]
    return token


def test_long_strings_are_shown_up_to_where_they_part(swept: Any) -> None:
    old = byte_level()

    def last_byte(backend: Backend) -> None:
        vocabulary = backend["model"]["vocab"]
        vocabulary["="], vocabulary["~"] = vocabulary["~"], vocabulary["="]

    result = swept(loaded(old), loaded(edited(old, last_byte)))
    assert max(len(one.old_ids) for one in result.divergences) <= 64
    assert all(one.old_ids[: one.at] == one.new_ids[: one.at] for one in result.divergences)
    assert all(one.old_ids[one.at : one.at + 1] != one.new_ids[one.at : one.at + 1] for one in result.divergences)


@pytest.mark.filterwarnings("ignore:This sequence already has")  # ByT5 on a text that ends like one of its own
def test_a_side_that_cannot_be_written_out_is_swept_all_the_same(swept: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    result = swept(build(Folder(tmp_path)), loaded(byte_level()))
    assert (result.old_effective, result.equal, result.meanings, result.parts) == (None, False, None, ())
    assert ("effective", "ByT5Tokenizer has no backend that can be written out") in result.unswept
    assert result.divergent
    same = swept(build(Folder(tmp_path)), build(Folder(tmp_path)))
    assert (same.equal, same.divergent) == (False, 0)
    assert len([what for what, _ in same.unswept if what == "effective"]) == 2


def test_ids_mean_the_same_where_vocabularies_are_only_written_differently() -> None:
    """A byte-level vocabulary and one with bytes to fall back on, with equal entries at equal ids."""
    old: dict[str, Any] = {
        "normalizer": None, "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"\u0120a": 0, "\u010a": 1, "\u00e9": 2}},
    }  # fmt: skip
    new = old | {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"},
        "model": {"type": "BPE", "byte_fallback": True, "vocab": {"\u2581a": 0, "<0x0A>": 1, "<0xE8>": 2}},
    }
    assert [one.id for one in other_meanings(old, new)] == [2]


# ---- the child ----


def test_equal_tokenizers_are_not_swept(make_folder: MakeFolder) -> None:
    result = compare_tokenizers(make_folder(), make_folder(pad_token="<s>"))
    assert (result.equal, result.groups, result.differs, result.meanings) == (True, (), False, 0)
    assert result.old_effective == result.new_effective
    assert [one.inert for one in result.parts] == []


def test_a_moved_bos_rule_shows_in_every_raw_completion(make_folder: MakeFolder) -> None:
    """As between two revisions of Meta-Llama-3: no chat is another, every raw completion is."""
    seen: list[tuple[str, int, int | None, str]] = []

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:
        seen.append((stage, done, total, unit))

    post = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    result = compare_tokenizers(
        make_folder(), make_folder(lambda backend: backend.update(post_processor=post)), progress=progress
    )
    (begun,) = result.groups
    assert (begun.name, begun.divergent) == ("beginnings", begun.strings)
    assert [one.part for one in result.parts if one.inert is None] == ["post-processor"]
    assert result.divergences[0].new_ids == (0,)
    assert seen == [("sweeping tokenizers", begun.strings, begun.strings, "strings")]


def test_one_code_point_out_of_all_is_found(make_folder: MakeFolder) -> None:
    rare = {"type": "Replace", "pattern": {"String": "\U0001f9ff"}, "content": "x"}
    result = compare_tokenizers(
        make_folder(lambda backend: backend.update(normalizer=None)),
        make_folder(lambda backend: backend.update(normalizer=rare)),
    )
    assert {one.name: one.divergent for one in result.groups if one.divergent} == {
        "code points": 1,
        "code points in context": 1,
    }
    assert [one.text for one in result.divergences] == ["\U0001f9ff", "a\U0001f9ffa \U0001f9ff1"]


@pytest.mark.parametrize("side", [0, 1])
def test_broken_files_are_refused_by_name(make_folder: MakeFolder, side: int) -> None:
    folders = [make_folder(), make_folder()]
    (folders[side] / "tokenizer.json").write_bytes(b'{"model": 1}')
    with pytest.raises(InputError) as caught:
        compare_tokenizers(*folders)
    assert str(caught.value.where).startswith(str(folders[side]))


def test_what_is_no_folder_or_holds_no_tokenizer_is_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        compare_tokenizers(make_folder(), tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing can be swept: there is no tokenizer file in the folder"):
        compare_tokenizers(tmp_path / "empty", make_folder())


def _backtracking(backend: dict[str, Any]) -> None:
    pattern = {"Regex": r"(?:a|a|a?a)+(?:b|!)(?:a|a|a?a)+$"}
    backend["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def test_a_pattern_that_never_ends_is_stopped(make_folder: MakeFolder) -> None:
    with pytest.raises(InputError, match=r"encoding .* with both tokenizers did not finish within 2 s"):
        compare_tokenizers(make_folder(), make_folder(_backtracking), limits=Limits(sweep_seconds=2))


def test_a_sweep_is_bounded_in_all(make_folder: MakeFolder) -> None:
    def another(backend: dict[str, Any]) -> None:
        backend["normalizer"] = None

    with pytest.raises(InputError, match=r"took more than 0\.01 s in all"):
        compare_tokenizers(make_folder(), make_folder(another), limits=Limits(sweep_total_seconds=0.01))


def _ids(tokenizer: Any, texts: Sequence[str]) -> Any:
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def test_the_same_files_under_another_model_type_are_another_tokenizer(make_folder: MakeFolder, swept: Any) -> None:
    """Files of one family with ``model_type: qwen2``: transformers takes the class, and its pre-tokenizer, of that."""
    plain, qwen = (make_folder(tokenizer_class=None) for _ in range(2))
    (qwen / "config.json").write_text('{"model_type": "qwen2"}')
    result = swept(build(Folder(plain)), build(Folder(qwen)))
    assert "pre-tokenizer" in {one.part for one in result.parts}
    assert result.divergent
    first = result.divergences[0]
    old, new = (_ids(build(Folder(one)), [first.text])[0] for one in (plain, qwen))
    assert old != new
