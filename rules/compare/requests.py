"""What varies between requests, and who may share state: pairwise. Self-faults are judged in ``kvgate.rules.alone``."""

from __future__ import annotations

from typing import cast

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change
from kvgate.rules.compare.sides import Sides
from kvgate.rules.profile import Feature
from kvgate.rules.values import Known

SEPARATING = ("separates", "token-ids")
_NARROWNESS = ("shared", "organization", "tenant", "user", "session")


def compare_features(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare request features (kinds: ``introduced``, ``dropped``, ``dropped-unseparated``, ``unverified``).

    A feature that the old key did not separate leaves entries behind that nobody can tell apart.
    """
    path = dimension.paths[0]
    old, new = sides.old.get(path), sides.new.get(path)
    if sides.judged_alone(path):
        return []
    if not isinstance(old, Known) or not isinstance(new, Known):
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    changes = []
    for feature in sorted(set(old.value or ()) - set(new.value or ())):
        # Adapters that could be loaded were asked for; where lora is listed beside it, that is said there.
        asked = "lora" if feature == "lora_hot_load" else feature
        said = asked != feature and asked in (old.value or ())
        separated = said or sides.old_cover.request(cast("Feature", asked)).key in SEPARATING
        kind = "dropped" if separated or sides.old_cover.absent else "dropped-unseparated"
        changes.append(sides.change(dimension, kind, path, detail=f"requests no longer carry {feature}"))
    return changes + [
        sides.change(dimension, "introduced", path, detail=f"requests may now carry {feature}")
        for feature in sorted(set(new.value or ()) - set(old.value or ()))
    ]


def compare_tenancy(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare who may share (kinds: ``narrowed``, ``widened``, ``carrier``, ``unverified``); ``null`` is shared.

    Where the old deployment filed nothing there is nothing private that a wider boundary exposes: ``carrier``.
    """
    path = dimension.paths[0]
    old, new = sides.old.get(path), sides.new.get(path)
    if sides.judged_alone(path):
        return []
    if not isinstance(old, Known) or not isinstance(new, Known):
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    before, after = (field.value or {"boundary": "shared", "carried_by": None} for field in (old, new))
    ranks = [_NARROWNESS.index(side["boundary"]) for side in (before, after)]
    if sides.old_cover.absent and before != after and ranks[1] <= ranks[0]:
        return [sides.change(dimension, "carrier", path, detail="another boundary, and no old entries to be exposed")]
    if ranks[1] < ranks[0]:
        return [
            sides.change(
                dimension,
                "widened",
                path,
                detail=f"{before['boundary']} entries become readable beyond their {before['boundary']}",
            )
        ]
    if ranks[1] > ranks[0]:
        return [
            sides.change(dimension, "narrowed", path, detail=f"old entries were shared beyond one {after['boundary']}")
        ]
    if before["carried_by"] == after["carried_by"]:
        return []
    if after["carried_by"] is None:
        return [sides.change(dimension, "widened", path, detail="nothing carries the boundary any more")]
    return [sides.change(dimension, "carrier", path, detail="the boundary is carried by something else")]
