"""Where two tokenizers differ: the part, how many, and examples that a person can read."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.corpora.tokenizers.effective import written_out
from kvgate.corpora.tokenizers.structure import structural_difference

from .trained import KINDS, Backend, byte_level, edited, loaded, unigram, wordpiece


def _parts(backend: Backend) -> dict[str, Any]:
    parts = written_out(loaded(backend))
    assert isinstance(parts, dict)
    return parts


def _token(backend: Backend, content: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in backend["added_tokens"] if one["content"] == content)
    return found


def _many(backend: Backend) -> None:
    merges = backend["model"]["merges"]
    merges[10], merges[12] = merges[12], merges[10]
    backend["model"]["fuse_unk"] = True
    backend["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    backend["pre_tokenizer"]["add_prefix_space"] = True
    _token(backend, "<|im_end|>").update(rstrip=True, lstrip=True)
    backend["decoder"] = None


def test_every_part_is_told_apart_in_the_order_a_text_takes() -> None:
    old, new = _parts(byte_level()), _parts(edited(byte_level(), _many))
    found = structural_difference(old, new)
    assert [(one.part, one.what, one.count) for one in found] == [
        ("added-tokens", "tokens with another lstrip", 1),
        ("added-tokens", "tokens with another rstrip", 1),
        ("normalizer", "settings", 1),
        ("pre-tokenizer", "settings", 1),
        ("model", "settings", 1),
        ("merges", "in another order", 2),
        ("decoder", found[-1].what, 1),
    ]
    assert [one.inert for one in found] == [None] * 6 + ["decoder"]
    examples = [one.examples for one in found]
    assert examples[0] == ('"<|im_end|>": false -> true',)
    assert examples[3] == ("add_prefix_space: false -> true",)
    assert examples[4] == ("fuse_unk: false -> true",)
    assert [example.rpartition(": ")[2] for example in examples[5]] == ["rank 10 -> 12", "rank 12 -> 10"]
    (normalizer,) = examples[2]
    assert normalizer.startswith('{"type": "NFC"} -> {"type": "Sequence"')


def test_the_other_way_round_is_the_same_with_sides_exchanged() -> None:
    old, new = _parts(byte_level()), _parts(edited(byte_level(), _many))
    there, back = structural_difference(old, new), structural_difference(new, old)
    assert [(one.part, one.what, one.count, one.inert) for one in there] == [
        (one.part, one.what, one.count, one.inert) for one in back
    ]


def test_entries_that_came_and_went() -> None:
    found = structural_difference(_parts(wordpiece()), _parts(edited(wordpiece(), _rename)))
    assert [(one.what, one.count) for one in found] == [("entries only old", 1), ("entries only new", 1)]
    assert found[1].examples[0].startswith('"zzz": ')


def _rename(backend: Backend) -> None:
    vocabulary = backend["model"]["vocab"]
    vocabulary["zzz"] = vocabulary.pop("the")


def test_a_score_is_part_of_a_unigram() -> None:
    new = edited(unigram(), lambda backend: backend["model"]["vocab"][7].__setitem__(1, -99.5))
    (found,) = structural_difference(_parts(unigram()), _parts(new))
    assert (found.part, found.what, found.count) == ("vocabulary", "entries with another score", 1)
    assert found.examples[0].endswith(" -> -99.5")


def test_another_kind_of_model_is_no_error() -> None:
    found = structural_difference(_parts(unigram()), _parts(byte_level()))
    assert {"model", "vocabulary", "merges", "pre-tokenizer"} <= {one.part for one in found}
    assert all(len(one.examples) <= 5 and one.count >= len(one.examples) for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_listed_counts(kind: str) -> None:
    parts = _parts(KINDS[kind]())
    (found,) = structural_difference(parts, parts | {"invented": True})
    assert (found.part, found.inert) == ("other", None)
    later = {**parts, "added_tokens": [{**one, "invented": 1} for one in parts["added_tokens"]]}
    (found,) = structural_difference(parts, later)
    assert (found.part, found.inert) == ("other", None)
