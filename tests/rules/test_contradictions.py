"""Two manifests of which both cannot be true: refused, since no verdict about them would mean anything."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.errors import InputError
from tests.rules.clean import FORGET, digest
from tests.rules.deciding import NAMESPACE, REUSE, decided

KV, TREE = "weights.checkpoint.kv_digest", "chat_template.tree"


@pytest.mark.parametrize(("whole", "part"), [("weights.checkpoint.digest", KV), ("chat_template.digest", TREE)])
def test_equal_wholes_have_equal_parts(whole: str, part: str) -> None:
    other = {part: digest("9")}
    for old, new in (({}, other), (other, {})):
        with pytest.raises(InputError, match=f"equal {whole}, unequal {part.rpartition('.')[2]}"):
            decided(old, new)
        assert decided(old, {**new, whole: digest("9")}).exit_code in (0, 10)
    assert decided(other, other).verdict == REUSE
    assert decided({}, {part: FORGET}).verdict == REUSE  # the whole answers for it


def test_what_one_pool_alone_says_contradicts_too() -> None:
    template = {"chat_template.digest": digest("2"), TREE: digest("9")}
    edited = {"roles": [{"name": "a", "set": template}], "provenance.roles": "computed"}
    with pytest.raises(InputError, match=r"equal chat_template\.digest, unequal tree"):
        decided({}, edited)


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        ({"weights.checkpoint.kv_rule": "2", KV: digest("9")}, REUSE),  # another list of tensors
        ({"chat_template.digest": digest("9")}, REUSE),  # a comment
        ({"chat_template.reads": ["bos_token", "messages", "tools"]}, REUSE),  # another release sees more
        ({"chat_template": None}, NAMESPACE),
    ],
)
def test_what_may_be_true_of_both_is_no_contradiction(new: dict[str, Any], verdict: str) -> None:
    assert decided({}, new).verdict == verdict
