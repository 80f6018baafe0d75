"""One entry of a tokenizer changed: it is another tokenizer, and where a text can show it, one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.sweeps.groups import plan
from kvgate.corpora.sweeps.here import other_meanings
from kvgate.corpora.tokenizers.effective import canonical, written_out
from kvgate.corpora.tokenizers.structure import structural_difference

from .trained import KINDS, Backend, edited, loaded

_ECONOMICAL = settings(max_examples=8, deadline=None)
# A few characters of each script stand for all of them here; test_sweeps.py tries all.
_FEW = [chr(code) for code in range(0x20, 0x250)] + [chr(code) for code in range(0x250, 0x3100, 37)] + ["ﬁ", "①", "中"]

kinds = pytest.mark.parametrize("kind", KINDS)


def _swept(old: Backend, new: Backend, *kinds: str) -> tuple[set[str], str | None, int]:
    """Return the parts that differ, the kind of the first divergent string, and how many ids mean other bytes.

    ``kinds`` are the kinds of strings that are tried: a sweep tries all, which takes seconds.
    """
    tokenizers = [loaded(side) for side in (old, new)]
    parts: list[Any] = [written_out(one) for one in tokenizers]
    assert canonical(parts[0]) != canonical(parts[1])
    differing = structural_difference(*parts)
    assert differing
    assert {one.inert for one in differing} == {None}
    encoders = [Encoder(one, direct=True) for one in tokenizers]
    for group in plan(parts, _FEW).groups:
        if kinds and group.name not in kinds:
            continue
        ids = [one.ids(group.strings, special_tokens=group.special_tokens) for one in encoders]
        if ids[0] != ids[1]:
            return {one.part for one in differing}, group.name, len(other_meanings(*parts))
    return {one.part for one in differing}, None, len(other_meanings(*parts))


@kinds
@given(data=st.data())
@_ECONOMICAL
def test_two_ids_exchanged(kind: str, data: st.DataObject) -> None:
    old = KINDS[kind]()

    def exchange(backend: Backend) -> None:
        vocabulary = backend["model"]["vocab"]
        if isinstance(vocabulary, list):
            places = st.lists(st.integers(1, len(vocabulary) - 1), min_size=2, max_size=2, unique=True)
            one, other = data.draw(places)
            vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
        else:
            # An added token's id is written beside it as well: the library goes by the vocabulary.
            plain = sorted(set(vocabulary) - {token["content"] for token in backend["added_tokens"]})
            one, other = data.draw(st.lists(st.sampled_from(plain), min_size=2, max_size=2, unique=True))
            vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    differing, _, meanings = _swept(old, edited(old, exchange), "vocabulary")
    assert differing == {"vocabulary"}
    # Whether or not a text reaches them: both ids now stand for other bytes.
    assert meanings == 2


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
@given(data=st.data())
@_ECONOMICAL
def test_two_merges_exchanged(kind: str, data: st.DataObject) -> None:
    old = KINDS[kind]()
    merges = old["model"]["merges"]
    # Near neighbours are the hard case: few others stand between them.
    one = data.draw(st.integers(0, len(merges) - 2))
    other = data.draw(st.integers(one + 1, min(one + 12, len(merges) - 1)))

    def exchange(backend: Backend) -> None:
        swapped = backend["model"]["merges"]
        swapped[one], swapped[other] = swapped[other], swapped[one]

    new = edited(old, exchange)
    differing, found, meanings = _swept(old, new, "competing merges", "vocabulary")
    assert (differing, meanings) == ({"merges"}, 0)
    # What shows it is what was made for it; test_merges.py holds these strings against all others.
    assert found in (None, "competing merges")


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback"])
@given(data=st.data())
@_ECONOMICAL
def test_a_merge_removed(kind: str, data: st.DataObject) -> None:
    old = KINDS[kind]()
    place = data.draw(st.integers(0, len(old["model"]["merges"]) - 1))
    differing, found, _ = _swept(
        old, edited(old, lambda backend: backend["model"]["merges"].pop(place)), "competing merges", "vocabulary"
    )
    assert differing == {"merges"}
    # Half a character stands in no text of its own: the entries that hold it show the change.
    assert found in ("competing merges", "vocabulary")


@kinds
@pytest.mark.parametrize("token", ["<|im_end|>", "<think>"])
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized", "special"])
def test_one_flag_of_an_added_token(kind: str, token: str, flag: str) -> None:
    old = KINDS[kind]()

    def turn(backend: Backend) -> None:
        (found,) = (one for one in backend["added_tokens"] if one["content"] == token)
        found[flag] = not found[flag]

    differing, found, meanings = _swept(old, edited(old, turn), "added tokens", "vocabulary")
    assert (differing, meanings) == ({"added-tokens"}, 0)
    if (
        flag == "special"
    ):  # only matters to split_special_tokens and to decoding: nothing shows it, and nothing proves it
        assert found is None
    elif flag == "normalized" and kind == "byte fallback":  # nothing is normalised there
        assert found is None
    elif kind in ("unigram", "wordpiece") and flag in ("lstrip", "rstrip"):  # white space is no token of its own there
        assert found in (None, "added tokens")
    else:
        assert found == "added tokens", (kind, token, flag)


@kinds
def test_a_token_added(kind: str) -> None:
    old = KINDS[kind]()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    new = edited(old, lambda backend: backend["added_tokens"].append({"id": 5000, "content": "<tool_call>", **flags}))
    assert _swept(old, new, "added tokens") == ({"added-tokens"}, "added tokens", 0)


_BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
_NORMALIZERS: dict[str, Any] = {
    "none": None,
    "NFC": {"type": "NFC"},
    "NFD": {"type": "NFD"},
    "NFKC": {"type": "NFKC"},
    "NFKD": {"type": "NFKD"},
    "lower case": {"type": "Lowercase"},
    "no accents": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
    "stripped left": {"type": "Strip", "strip_left": True, "strip_right": False},
    "stripped right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "prepended": {"type": "Prepend", "prepend": "\u2581"},
    "replaced": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    "BERT": _BERT,
    "BERT, no cleaning": _BERT | {"clean_text": False},
    "BERT, Chinese joined": _BERT | {"handle_chinese_chars": False},
    "BERT, accents": _BERT | {"strip_accents": False},
    "BERT, cases": _BERT | {"lowercase": False},
}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_INNER = _BYTES | {"use_regex": False}


def _put(name: str, value: Any) -> Callable[[Backend], object]:
    return lambda backend: backend.update({name: value})


def _split(pattern: str, behavior: str = "Isolated") -> Any:
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, _INNER]}


# Neighbours in each list differ in one option, or one place of a pattern, that public tokenizers differ in.
_SPLITS: dict[str, list[Any]] = {
    "byte-level": [
        _BYTES,
        _BYTES | {"use_regex": False},
        _BYTES | {"add_prefix_space": True, "use_regex": False},
        _BYTES | {"add_prefix_space": True},
        _split(_GPT4),
        _split(_GPT4.replace("{1,3}", "")),  # each digit alone
        _split(_GPT4.replace("{1,3}", "+")),
        _split(_GPT4.replace(r"\s+(?!\S)|", "")),
        _split(_GPT4.replace(r"\p{L}+", r"[\p{L}\p{M}]+")),
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]},
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, _BYTES]},
        {"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Isolated"}, _BYTES]},
        {"type": "Sequence", "pretokenizers": [{"type": "Punctuation", "behavior": "Contiguous"}, _BYTES]},
    ],
    "byte fallback": [
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True},
    ],
}


@pytest.mark.parametrize(("one", "other"), [*zip(_NORMALIZERS, [*_NORMALIZERS][1:], strict=False)])
def test_another_normaliser(one: str, other: str) -> None:
    base = KINDS["byte-level"]()
    old, new = (edited(base, _put("normalizer", _NORMALIZERS[name])) for name in (one, other))
    differing, found, meanings = _swept(old, new)
    assert (differing, meanings) == ({"normalizer"}, 0)
    assert found is not None


@pytest.mark.parametrize(
    ("kind", "place"), [(kind, place) for kind, steps in _SPLITS.items() for place in range(len(steps) - 1)]
)
def test_another_pre_tokenizer(kind: str, place: int) -> None:
    base = KINDS[kind]()
    old, new = (edited(base, _put("pre_tokenizer", step)) for step in _SPLITS[kind][place : place + 2])
    differing, found, _ = _swept(old, new)
    assert differing == {"pre-tokenizer"}
    assert found is not None


@pytest.mark.parametrize("split", [True, False])
def test_a_difference_that_only_some_texts_show_is_found_or_stays_open(split: bool) -> None:
    """Whether Metaspace splits at spaces only matters where a merge reaches across one: none does here."""
    base = KINDS["byte fallback"]()
    new = edited(base, lambda backend: backend["pre_tokenizer"].update(split=split))
    if split:
        assert new == base
    else:
        assert _swept(base, new, "vocabulary in context", "runs") == ({"pre-tokenizer"}, None, 0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("byte fallback", {"byte_fallback": False}),
        ("byte fallback", {"unk_token": None, "byte_fallback": False}),
        ("unigram", {"unk_id": 5}),
        ("unigram", {"byte_fallback": True}),
        ("wordpiece", {"max_input_chars_per_word": 3}),
        ("wordpiece", {"unk_token": "<s>"}),
    ],
)
def test_another_option_of_the_model(kind: str, settings: dict[str, Any]) -> None:
    old = KINDS[kind]()
    differing, found, _ = _swept(old, edited(old, lambda backend: backend["model"].update(settings)))
    assert differing == {"model"}
    # The vocabulary of the unigram holds no bytes to fall back on.
    assert (found is None) == (settings == {"byte_fallback": True})


def test_whole_words_before_merges_show_where_a_word_has_no_merges() -> None:
    """Incident I03: only words that are entries no merge leads to change."""
    base = KINDS["byte-level"]()
    old = edited(base, lambda backend: backend["model"]["vocab"].update({"\u0120Arthropoda": 9999}))
    new = edited(old, lambda backend: backend["model"].update(ignore_merges=True))
    assert _swept(old, new) == ({"model"}, "vocabulary", 0)
    # In the tokenizer as trained every entry is reached by merges, so that nothing shows it.
    plain = edited(base, lambda backend: backend["model"].update(ignore_merges=True))
    assert _swept(base, plain, "vocabulary", "vocabulary in context") == ({"model"}, None, 0)
