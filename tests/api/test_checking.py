"""What ``kvgate.check`` refuses of plain Python data."""

from __future__ import annotations

import pytest

import kvgate
from kvgate.rules.evidence import Evidence, subject_of
from tests.rules.clean import clean


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
