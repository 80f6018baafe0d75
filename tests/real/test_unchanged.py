"""A revision of a real tokenizer against itself: proved, and nothing left out."""

from __future__ import annotations

import pytest

import kvgate
from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.snapshots.comparison import compare_snapshots
from kvgate.rules.discharge import TOKEN_DIMENSIONS
from tests.real.models import MODELS, Releases


@pytest.mark.parametrize("name", MODELS)
def test_a_revision_against_itself(name: str, releases: Releases) -> None:
    folder = releases.folder(name)
    manifest = releases.captured(folder)
    checked = kvgate.check(manifest, manifest)
    assert checked.verdict == "verified-compatible-reuse"
    assert checked.decision.exit_code == 0
    (found,) = (one for one in checked.record["predicate"]["evidence"] if one["kind"] == "token-identity")
    assert (found["state"], found["coverage"]["missing"]) == ("proved", {})
    assert set(found["coverage"]["examined"]) >= set(TOKEN_DIMENSIONS)
    compared = compare_snapshots(releases.tokens(folder), releases.tokens(folder), block_size=16)
    assert compared.divergent == 0
    assert compared.examined + compared.unexamined.count >= load_corpus("diagnostic").count
