"""What lies beside each manifest is compared as its own, whatever the manifests are called."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvgate
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotWriter
from kvgate.inputs import hash_file
from kvgate.rules.manifest import manifest_from
from tests.corpora.conftest import HEADER
from tests.rules.clean import data, digest

_HEADER = replace(HEADER, clocks=("2026-02-03T04:05:06",))


def _beside(name: str, *ids: int, **changes: Any) -> dict[str, Any]:
    """Plain data of a manifest without a name, whose snapshot in this folder holds these tokens of one conversation."""
    with SnapshotWriter(Path(name), _HEADER) as writer:
        writer.entry(SnapshotEntry("hello", "1", (Rendered("", array("I", ids)),)))
        writer.finish(None, {})
    named = {"file": name, "sha256": hash_file(Path(name)), "corpus": _HEADER.corpus}
    return data({"tokenizer.snapshot": named, **changes})


def test_manifests_without_names_have_snapshots_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal tokenizers that make other tokens: one of the snapshots was exchanged, and both must be read to see it."""
    monkeypatch.chdir(tmp_path)
    one, same, other = _beside("1.jsonl", 1, 2, 3), _beside("2.jsonl", 1, 2, 3), _beside("3.jsonl", 1, 2, 4)
    assert manifest_from(one).source == manifest_from(other).source
    assert kvgate.check(one, same).decision.exit_code == 0
    for olds, new in ((one, other), ([one, other], same), ([other, one], same)):
        with pytest.raises(kvgate.InputError, match="exchanged or edited"):
            kvgate.check(olds, new)


def test_what_diverges_is_refuted_of_the_old_one_it_is_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another template on each side; of two old ones without names, the second alone renders what the new one does."""
    monkeypatch.chdir(tmp_path)

    far, near, new = (
        _beside(
            f"{letter}.jsonl", 1, 2, last, **{f"chat_template.{part}": digest(letter) for part in ("digest", "tree")}
        )
        for letter, last in (("7", 3), ("8", 4), ("9", 4))
    )
    found = [item for item in kvgate.check([far, near], new).decision.case.evidence if item.kind == "token-identity"]
    assert [item.state for item in found] == ["refuted", "inconclusive"]
