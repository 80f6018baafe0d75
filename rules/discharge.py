"""What settles a finding as harmless: conditions of a rule, held against profiles and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgate.rules.attention import uses_mla
from kvgate.rules.carried import text_only
from kvgate.rules.change import Change
from kvgate.rules.compare.sides import Sides
from kvgate.rules.evidence import Evidence
from kvgate.rules.pack import Discharge
from kvgate.rules.profile import Coverer, version_in

TOKEN_DIMENSIONS = ("tokenizer", "tokenizer.renderer", "tokenizer.options", "chat_template")
"""The dimensions that decide which token ids a text becomes."""

_SAME_IDS = frozenset({"inert", "text", "clock"})  # kinds of change in them that leave every id as it is


def discharge(
    condition: Discharge,
    change: Change,
    sides: Sides,
    proved: Sequence[Evidence],
    tokens_are_proved: bool,
    against: set[Any],
) -> str | None:
    """Return why a condition holds, or ``None``; every part that is asked for must hold.

    Args:
        condition: the rule's way of being settled as harmless.
        change: what was found.
        sides: both deployments.
        proved: supporting evidence that is bound to them.
        tokens_are_proved: :func:`tokens_proved` of all changes.
        against: the kinds of evidence that speak against them.
    """
    reasons = []
    covers = (sides.old_cover, sides.new_cover)
    if condition.evidence is not None:
        if not any(item.kind == condition.evidence for item in proved):
            return None
        reasons.append(f"{condition.evidence} is proved")
    if condition.key is not None:
        if sides.same("cache.connector") is not True or any(
            cover.cell(change.dimension).key != condition.key for cover in covers
        ):
            return None
        reasons.append("the key holds it")
    if condition.token_keyed:
        if sides.same("cache.connector") is not True or not all(cover.token_keyed for cover in covers):
            return None
        reasons.append("keys are made of token ids")
    if condition.harmless_cell:
        conditions = {cover.cell(change.dimension).harmless_when for cover in covers}
        if sides.same("cache.connector") is not True or not all(_harmless(cover, change) for cover in covers):
            return None
        reasons.append(_HARMLESS["mla" if "mla" in conditions else "converted"])
    if condition.upgrade:
        row = _upgrade(change, sides)
        if row is None or not tokens_are_proved or "kv-equivalence" in against:
            return None
        reasons.append(f"a sourced row covers this step ({row})")
    return "; ".join(reasons)


_HARMLESS = {
    "mla": "the format makes it harmless for this model",
    "converted": "the connector converts between the two when it reads, or refuses",
}


def _harmless(cover: Coverer, change: Change) -> bool:
    condition = cover.cell(change.dimension).harmless_when
    return condition == "converted" or (condition == "mla" and uses_mla(cover.manifest) is True)


def _upgrade(change: Change, sides: Sides) -> str | None:
    profile = sides.new_cover.profile
    if profile is None or sides.old_cover.profile is None or sides.old_cover.profile.id != profile.id:
        return None
    old, new = (side.value(change.path) for side in (sides.old, sides.new))
    if old is None or new is None:
        return None
    for row in profile.upgrades:
        if row.path != change.path or row.keys != "kept" or row.kv != "same":
            continue
        if row.scope == "text" and not (text_only(sides.old) and text_only(sides.new)):
            continue
        # Both ways: in a rolling update old workers read what new ones write.
        if all(version_in(a, row.from_) and version_in(b, row.to) for a, b in ((old, new), (new, old))):
            return row.source
    return None


def token_changes(changes: Sequence[Change]) -> list[Change]:
    """Return those changes that may give the same text other token ids, the unverified ones included."""
    return [one for one in changes if one.dimension in TOKEN_DIMENSIONS and one.kind not in _SAME_IDS]


def tokens_proved(changes: Sequence[Change], proved: Sequence[Evidence]) -> bool:
    """Whether tokens are equal by digest or by evidence: nothing of theirs differs that counts."""
    return not token_changes(changes) or any(item.kind == "token-identity" for item in proved)
