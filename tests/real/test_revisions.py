"""Two revisions of a real tokenizer: the verdict, and where the first conversation parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvgate
from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.divergence.description import Divergence
from kvgate.corpora.snapshots.comparison import SnapshotComparison, compare_snapshots
from tests.real import revisions
from tests.real.models import Edit, Releases


@dataclass(frozen=True)
class Synthetic:
    """An edit, and what it does to the first conversation that it reaches.

    Attributes:
        name: of the tokenizer.
        tokenizer: the edit of tokenizer.json.
        settings: of tokenizer_config.json.
        conversation: the first that diverges.
        old: the token at which it does.
        new: what stands there instead.
        cause: the kind of cause that is given.

    """

    name: str
    conversation: str
    old: str | None
    new: str | None
    cause: str
    tokenizer: Edit | None = None
    settings: Edit | None = None


SYNTHETIC: Mapping[str, Synthetic] = {
    "a-merge-gone": Synthetic("qwen3", "plain-user", " tide", " t", "one-piece", tokenizer=revisions.without_tide),
    "two-merges-exchanged": Synthetic(
        "deepseek_v2", "blank-user", "    ", "   ", "one-piece", tokenizer=revisions.first_merge_last
    ),
    "two-ids-exchanged": Synthetic(
        "gptoss", "plain-user", " tide", " tide", "vocabulary", tokenizer=revisions.exchanged_ids
    ),
    "a-flag-of-an-added-token": Synthetic(
        "gemma3",
        "marks-spaced",
        "  ",
        None,
        "segmentation",
        tokenizer=revisions.end_of_turn_eats_space,
        settings=revisions.end_of_turn_eats_space_too,
    ),
    "no-dummy-prefix": Synthetic(
        "mistral", "plain-user", " ", None, "segmentation", tokenizer=revisions.no_dummy_prefix
    ),
    "a-prefix-space": Synthetic("gpt4o", "plain-user", "<", " <", "segmentation", settings=revisions.prefix_space),
    "another-normal-form": Synthetic(
        "claude", "thai", "\\xe0\\xb9", "\\xe0\\xb8", "segmentation", tokenizer=revisions.canonical_forms_only
    ),
    "another-pre-tokenizer": Synthetic(
        "deepseek_v4", "system-long", "103", "10", "segmentation", tokenizer=revisions.digits_in_pairs
    ),
}


@pytest.mark.parametrize("variant", SYNTHETIC)
def test_an_edit_of_a_real_tokenizer(variant: str, releases: Releases) -> None:
    edit = SYNTHETIC[variant]
    new = releases.folder(edit.name, variant, tokenizer=edit.tokenizer, settings=edit.settings)
    checked, compared = judged(releases, releases.folder(edit.name), new)
    assert checked.verdict == "new-namespace"
    assert token_evidence(checked)["state"] == "refuted"
    first = compared.divergences.first[0]
    assert (first.id, *parting(first), first.cause.kind) == (edit.conversation, edit.old, edit.new, edit.cause)


def test_ids_that_mean_another_word_are_named(releases: Releases) -> None:
    edit = SYNTHETIC["two-ids-exchanged"]
    new = releases.folder(edit.name, "two-ids-exchanged", tokenizer=edit.tokenizer)
    _, compared = judged(releases, releases.folder(edit.name), new)
    assert {(one.old, one.new) for one in compared.redefined.first} == {("Ġtide", "Ġprime"), ("Ġprime", "Ġtide")}


def test_a_setting_that_the_class_does_not_read_is_inert(releases: Releases) -> None:
    """Two files that differ, and one tokenizer that is built of them."""
    old, new = releases.folder("mistral"), releases.folder("mistral", "unread", settings=revisions.prefix_space)
    checked, compared = judged(releases, old, new)
    assert checked.verdict == "verified-compatible-reuse"
    assert compared.divergent == 0
    assert [finding["rule"] for finding in checked.record["predicate"]["findings"]] == ["tokenizer-inert"]


def test_a_revision_that_no_conversation_shows_is_found_by_a_sweep(releases: Releases) -> None:
    """Two rare words exchange their ids: nobody says them in the corpus."""
    old, new = releases.folder("mistral"), releases.folder("mistral", "rare", tokenizer=revisions.exchanged_rare_ids)
    checked, compared = judged(releases, old, new)
    assert compared.divergent == 0
    assert checked.verdict == "new-namespace"
    evidence = token_evidence(checked)
    assert evidence["state"] == "refuted"
    assert evidence["figures"]["sweep"]["otherMeanings"] == 2


def test_llama_3_whose_bos_rule_moved(releases: Releases) -> None:
    """No chat with an opening diverges; every raw completion does, from its first token on."""
    checked, compared = judged(releases, releases.folder("llama3"), releases.folder("llama3_1"))
    assert checked.verdict == "new-namespace"
    assert token_evidence(checked)["state"] == "refuted"
    corpus = {one.id: one for one in load_corpus("diagnostic").conversations()}
    diverging = {one.id: one for one in compared.divergences.first}
    assert compared.divergent == len(diverging)
    raw = {name for name, one in corpus.items() if one.prompt is not None}
    assert raw <= diverging.keys()
    assert {(diverging[name].token, diverging[name].cause.kind) for name in raw} <= {(0, "front"), (0, "end")}
    assert parting(diverging["raw-plain"]) == (None, "<|begin_of_text|>")
    # The later template opens an answer only where one is asked for.
    assert all(corpus[name].add_generation_prompt is False for name in diverging.keys() - raw)
    assert {diverging[name].begins for name in diverging.keys() - raw} == {"new"}


def test_deepseek_v3_whose_think_marks_became_tokens(releases: Releases) -> None:
    checked, compared = judged(releases, releases.folder("deepseek_v3"), releases.folder("deepseek_v3b"))
    assert checked.verdict == "new-namespace"
    assert token_evidence(checked)["state"] == "refuted"
    diverging = {one.id: one for one in compared.divergences.first}
    marks = diverging["marks-thinking"]
    assert parting(marks) == ("<", "<think>")
    assert (marks.token, marks.same_text) == (2, True)  # behind BOS and the user's mark
    # An ordinary chat says nothing of it.
    assert not {"plain-user", "plain-three-turns", "system-long", "long-text"} & diverging.keys()


def judged(releases: Releases, old: Path, new: Path) -> tuple[kvgate.Checked, SnapshotComparison]:
    checked = kvgate.check(releases.captured(old), releases.captured(new))
    return checked, compare_snapshots(releases.tokens(old), releases.tokens(new), block_size=16)


def token_evidence(checked: kvgate.Checked) -> dict[str, Any]:
    (found,) = [one for one in checked.record["predicate"]["evidence"] if one["kind"] == "token-identity"]
    return dict(found)


def parting(divergence: Divergence) -> tuple[str | None, str | None]:
    """What stands on both sides where they part."""
    row = divergence.window.rows[divergence.window.first]
    old, new = (None if token is None else token.text for token in (row.old, row.new))
    return old, new
