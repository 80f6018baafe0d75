"""What ``kvgate.check`` takes and refuses of plain Python data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvgate
from kvgate.rules.evidence import Evidence, subject_of
from tests.rules.clean import clean
from tests.rules.deciding import about


def test_evidence_given_as_data_is_searched_for_credentials_too() -> None:
    one = clean()
    held = Evidence(
        schema="kvgate/evidence/v1",
        kind="inventory",
        state="inconclusive",
        new=subject_of(one, "inventory"),
        command="kvgate stores scan redis://:p/w@h:1",
    )
    with pytest.raises(kvgate.InputError, match="command holds credentials"):
        kvgate.check(one, one, evidence=[held])
    assert kvgate.check(one, one, evidence=[held.model_copy(update={"command": None})]).accepted


def test_one_file_of_evidence_or_one_corpus_is_a_list_of_one(tmp_path: Path) -> None:
    item = about("kv-equivalence", "refuted", {}, {})
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps(item.as_data()))
    one = clean()
    for given in (str(file), file, item):
        assert kvgate.check(one, one, evidence=given).decision.exit_code == 10
        assert kvgate.check(one, one, evidence=[given]).decision.exit_code == 10
    missing = tmp_path / "missing.jsonl"
    with pytest.raises(kvgate.InputError, match=r"missing\.jsonl"):
        kvgate.check(one, one, corpora=str(missing))
