"""Files of a tokenizer that differ: harmless only where the serving libraries built the tokenizer that was compared."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.identity import identity
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import NAMESPACE, REUSE, decided

OTHER = {"tokenizer.files": {"tokenizer.json": digest("d"), "tokenizer_config.json": digest("9")}}
FORGOTTEN = {"tokenizer.files": FORGET}
UNSURE: list[dict[str, Any]] = [
    {"tokenizer.built_by": FORGET},
    {"tokenizer.built_by": {"transformers": "5.24.0", "tokenizers": "0.23.3"}},
    {"tokenizer.built_by": {"transformers": "5.23.0"}},
    {"tokenizer.renderer.transformers": None, "tokenizer.renderer.tokenizers": None},
]


def test_what_the_serving_libraries_build_decides() -> None:
    assert (*_said({}, OTHER),) == (REUSE, 0, ["tokenizer-inert"])
    assert (*_said(FORGOTTEN, {}),) == (REUSE, 0, [])


@pytest.mark.parametrize("unsure", UNSURE, ids=["unknown", "another release", "half known", "left to the image"])
def test_where_others_serve_the_files_must_be_equal(unsure: dict[str, Any]) -> None:
    """huggingface/transformers#45488: equal files, another release, another tokenizer; and the other way round."""
    assert (*_said(unsure, unsure),) == (REUSE, 0, [])
    for old, new in ((unsure, {**unsure, **OTHER}), (unsure, {**unsure, **FORGOTTEN}), ({**unsure, **FORGOTTEN},) * 2):
        # Exit 0: other tokens are other keys there.
        assert (*_said(old, new),) == (NAMESPACE, 0, ["tokenizer-changed"])


def test_where_others_serve_the_files_are_part_of_what_a_deployment_is() -> None:
    unsure = UNSURE[1]
    assert "tokenizer.files" in identity(clean(unsure))
    assert "tokenizer.files" not in identity(clean())


def _said(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, int, list[str]]:
    decision = decided(old, new)
    return decision.verdict, decision.exit_code, [finding.rule for finding in decision.findings]
