"""Evidence as it may be shown: no tenant, salt, key or prompt, wherever in it they stand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.rules.evidence import Evidence
from kvgate.rules.privacy import redacted


def _evidence(**fields: Any) -> Evidence:
    data = {"schema": "kvgate/evidence/v1", "kind": "tenant-canary", "state": "refuted", "new": {"sections": {}}}
    return Evidence.model_validate({**data, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "tenant:acme"},
        {"scope": "user:acme"},
        {"figures": {"tenant": "acme"}},
        {"figures": {"tenants": ["other", "acme"]}},
        {"figures": {"per": {"Salts": {"acme": 3}}}},
        {"figures": {"hits": [{"cache_key": "acme"}]}},
        {"figures": {"prompt": "say acme"}},
    ],
)
def test_what_is_private_is_shown_nowhere(fields: dict[str, Any]) -> None:
    words = "say acme" if "prompt" in fields.get("figures", {}) else "acme"
    evidence = _evidence(
        **fields, reason=f"a marker of {words} was seen", command=f"probe {words}", coverage={"missing": {words: words}}
    )
    shown = redacted(evidence)
    assert "acme" not in json.dumps(shown.as_data())
    assert shown.reason == "a marker of (redacted) was seen"
    assert (shown.kind, shown.state, shown.new) == (evidence.kind, evidence.state, evidence.new)
    assert shown.digest != evidence.digest


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scope": "adapter:billing", "reason": "billing"},
        {"scope": "tenant", "reason": "one tenant's marker"},
        {"figures": {"entries": 3, "keys": 4, "namespaces": ["kvg1-a"]}, "reason": "kvg1-a"},
    ],
)
def test_the_rest_is_shown_as_it_is(fields: dict[str, Any]) -> None:
    evidence = _evidence(**fields)
    assert redacted(evidence) == evidence
