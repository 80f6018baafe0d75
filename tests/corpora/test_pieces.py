"""Where tokens stand in a text, told by their vocabulary strings: held against what the tokenizer itself says."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.divergence.pieces import NO_PIECES, NO_TEXT, NOT_SPELLED, Pieces

from .conftest import texts_of

_KINDS = ("byte-level", "gemma", "metaspace", "metaspace-bos", "wordpiece")
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=30)
_WORDS = ["<|im_start|>", "<think>", " ", "\n\n", "hello", "世界", "\U0001f469\u200d\U0001f469", "e\u0301"]


@cache
def _tokenizer(kind: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    from kvgate.corpora.conversations.corpus import load_corpus

    texts = [text for text in texts_of(load_corpus("diagnostic")) if len(text) < 2000]
    special = ["<s>", "<|im_start|>", "[UNK]"]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    elif kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="[UNK]"))
        if kind == "gemma":
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if "bos" in kind else "first")
        tokenizer.decoder = decoders.ByteFallback()
        trainer = trainers.BpeTrainer(
            vocab_size=900,
            special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if "bos" in kind:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@cache
def _pieces(kind: str) -> Pieces:
    return Pieces({number: string for string, number in _tokenizer(kind).get_vocab().items()})


@pytest.mark.parametrize("kind", _KINDS)
@given(text=st.lists(_TEXTS | st.sampled_from(_WORDS), max_size=6).map("".join))
def test_a_token_is_found_where_the_tokenizer_says(kind: str, text: str) -> None:
    encoded = _tokenizer(kind).encode(text)
    pieces = _pieces(kind)
    unknown = any(token == _tokenizer(kind).token_to_id("[UNK]") for token in encoded.ids)
    for count, (start, _) in enumerate(encoded.offsets):
        found = pieces.locate(text, encoded.ids, count)
        if found == NOT_SPELLED:
            assert unknown or kind == "wordpiece"
            return
        # A space may be counted to the token before it or after it, where tokens do not spell it.
        assert found == start or (isinstance(found, int) and not text[min(found, start) : max(found, start)].strip())


@pytest.mark.parametrize("kind", ["byte-level", "gemma", "metaspace", "metaspace-bos"])
def test_what_these_tokenizers_make_is_always_spelled(kind: str) -> None:
    text = "The <think>\ttide's\n\n 世界 \U0001f469\u200d\U0001f467 e\u0301 <|im_start|>user"
    ids = _tokenizer(kind).encode(text).ids
    for count in range(len(ids) + 1):
        assert isinstance(_pieces(kind).locate(text, ids, count), int)
    assert _pieces(kind).locate(text, ids, len(ids)) == len(text)


def test_style_is_told_by_the_marks_of_white_space() -> None:
    assert [_pieces(kind).style for kind in _KINDS] == [
        "byte-level", "metaspace", "metaspace", "metaspace", "wordpiece"
    ]  # fmt: skip
    # Special tokens of a byte-level vocabulary may hold the other style's mark.
    assert Pieces({0: "<｜begin▁of▁sentence｜>", 1: "Ġthe"}).style == "byte-level"
    assert Pieces({}).style == "byte-level"


def test_what_a_piece_reads_as() -> None:
    level = Pieces({0: "Ġthe", 1: "Ċ", 2: "ä", 3: "äļ", 4: "<｜User｜>", 5: "ä¸Ń"})
    read = [level.text(token) for token in range(7)]
    assert read == [" the", "\n", r"\xe4", r"\xe4\x9a", "<｜User｜>", "中", None]
    blank = Pieces({0: "▁the", 1: "<0x0A>", 2: "<0xE4>", 3: "▁▁", 4: "x"})
    assert [blank.text(token) for token in range(5)] == [" the", "\n", "\\xe4", "  ", "x"]
    words = Pieces({0: "the", 1: "##re"})
    assert [words.text(token) for token in range(2)] == ["the", "##re"]


def test_what_cannot_be_said_is_said_to_be_unknown() -> None:
    pieces = Pieces({0: "hello", 1: "Ġworld", 2: "<s>"})
    assert pieces.locate(None, [0, 1], 1) == NO_TEXT
    assert pieces.locate("hello world", [0, 9, 1], 2) == NO_PIECES
    assert pieces.locate("Hello World", [0, 1], 1) == NOT_SPELLED  # a normaliser made it lower case
    assert pieces.locate("hello world", [2, 0, 1], 2) == 5
    assert pieces.locate("hello world", [2, 0, 1], 1) == 0
    # Nothing shows that the first token is no text: what follows does not stand at the beginning.
    assert pieces.locate("Hello world", [0, 1], 1) == NOT_SPELLED
    assert pieces.locate("", [], 0) == 0
    assert pieces.locate("x", [5], 0) == 0


def test_a_text_may_begin_with_what_is_put_in_front_of_it() -> None:
    pieces = Pieces({0: "<s>", 1: "a"})
    assert [pieces.locate("<s>a", [0, 0, 1], count) for count in range(4)] == [0, 0, 3, 4]
    assert [pieces.locate("<s><s>a", [0, 0, 1], count) for count in range(4)] == [0, 3, 6, 7]
    assert [pieces.locate("<s>a", [0, 1], count) for count in range(3)] == [0, 3, 4]


def test_a_bar_in_the_text_stands_for_itself() -> None:
    pieces = Pieces({0: "\u2581a", 1: "\u2581"})
    assert [pieces.locate(" a\u2581\u2581a", [0, 1, 0], count) for count in range(4)] == [0, 2, 3, 5]


def test_long_texts_are_compared_in_runs() -> None:
    pieces = Pieces({0: "Ġab", 1: "<s>"})
    ids = [1] + [0] * 200_000
    assert pieces.locate(" ab" * 200_000, ids, 200_001) == 600_000
    assert pieces.locate(" ab" * 199_999 + "x", ids, 200_001) == NOT_SPELLED
