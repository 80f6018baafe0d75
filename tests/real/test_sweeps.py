"""Sweeps over real vocabularies: they find what differs, and nothing where nothing does."""

from __future__ import annotations

import pytest

from kvgate.corpora.sweeps.sweep import compare_tokenizers
from tests.real.models import Releases


@pytest.mark.parametrize("name", ["mistral", "claude", "deepseek_v2"])
def test_one_tokenizer_is_equal_to_itself(name: str, releases: Releases) -> None:
    folder = releases.folder(name)
    result = compare_tokenizers(folder, folder)
    assert result.equal
    assert not result.differs


def test_where_the_bos_rule_moved_only_raw_completions_diverge(releases: Releases) -> None:
    result = compare_tokenizers(releases.folder("llama3"), releases.folder("llama3_1"))
    assert [one.part for one in result.parts if one.inert is None] == ["post-processor"]
    assert result.divergent == result.strings > 0
    assert {(one.special_tokens, one.at) for one in result.divergences} == {(True, 0)}
    assert result.meanings == 0


def test_where_two_words_became_tokens_no_other_string_diverges(releases: Releases) -> None:
    """Half a million strings in one vocabulary of 128,000 entries: no false alarm among them."""
    result = compare_tokenizers(releases.folder("deepseek_v3"), releases.folder("deepseek_v3b"))
    assert [one.part for one in result.parts if one.inert is None] == ["added-tokens", "added-tokens"]
    assert {(one.id, one.new) for one in result.other_meanings} == {(128798, "<think>"), (128799, "</think>")}
    assert result.meanings == 2
    diverging = {one.name: one.divergent for one in result.groups if one.divergent}
    assert diverging.keys() == {"added tokens", "beginnings"}
    moved = ("<think>", "</think>", "<｜place▁holder▁no▁798｜>", "<｜place▁holder▁no▁799｜>")
    assert all(any(token in one.text for token in moved) for one in result.divergences)
    assert result.strings > 500_000
