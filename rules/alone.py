"""The new deployment alone: whatever varies between requests or replicas must be in the key (design, section 7)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

from kvgate.rules.advisories import producers_alone
from kvgate.rules.carried import carries
from kvgate.rules.catalogue import dimension, dimensions
from kvgate.rules.change import PROFILE, UNVERIFIED, Change
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import Cell, Coverer, Feature
from kvgate.rules.schema import Feature as Carried
from kvgate.rules.values import UNKNOWN, Known

_SEPARATING = ("separates", "token-ids")


def judge_alone(new: Manifest, cover: Coverer) -> list[Change]:
    """Return the self-faults of a deployment (kind ``fault``), and what might be one (``unverified``).

    A deployment known to have no persistent cache has none: nothing outlives its workers.
    """
    if cover.absent:
        return []
    requests = [*_features(new, cover), *_clock(new, cover), *_tenancy(new, cover)]
    return [*requests, *_scales(new, cover), *_mutable(new, cover), *_roles(new), *producers_alone(new)]


def _change(new: Manifest, dimension_id: str, kind: str, detail: str) -> Change:
    path = dimension(dimension_id).paths[0]
    return Change(dimension_id, kind, path, UNKNOWN, new.get(path), "all", detail)


def _verdict(new: Manifest, cover: Coverer, dimension_id: str, cell: Cell, what: str) -> list[Change]:
    if cell.key in _SEPARATING:
        return []
    connector = new.value("cache.connector")
    note = f" ({cell.note})" if cell.note else ""
    if cell.key in ("no", "rejects"):
        return [_change(new, dimension_id, "fault", f"{what}; the key of {connector} does not hold it{note}")]
    detail = f"{what}; whether the key holds it is not known" + (f": {cover.why}" if cover.why else note)
    return [replace(_change(new, dimension_id, UNVERIFIED, detail), lacks=PROFILE)]


def _features(new: Manifest, cover: Coverer) -> list[Change]:
    features = new.get("request_features")
    if not isinstance(features, Known):
        return [_change(new, "request_features", UNVERIFIED, "not known on the new side")]
    carried = {"lora" if feature == "lora_hot_load" else feature for feature in features.value or ()}
    if carries(new, "lora"):
        carried.add("lora")  # adapters that are served are asked for
    changes = [
        change
        for feature in sorted(carried)
        for change in _verdict(
            new, cover, "request_features", cover.request(cast("Feature", feature)), f"requests carry {feature}"
        )
    ]
    if "lora" not in carried and not new.knows("adapters") and cover.request("lora").key not in _SEPARATING:
        detail = "whether adapters are served is not known, and the key is not known to hold them"
        changes.append(replace(_change(new, "request_features", UNVERIFIED, detail), lacks="adapters"))
    return changes


def _clock(new: Manifest, cover: Coverer) -> list[Change]:
    """Judge a template that reads the clock: the same request is another text later, which token ids alone tell."""
    if cover.token_keyed or new.unset("chat_template"):
        return []
    path = "chat_template.reads_clock"
    reads = new.get(path)
    if not isinstance(reads, Known):
        detail = "whether the chat template reads the clock is not known, and the key is not made of token ids"
        return [replace(_change(new, "request_features", UNVERIFIED, detail), lacks=path)]
    if reads.value is not True:
        return []
    what = "the chat template reads the clock, so what a request renders to changes"
    if cover.profile is not None and cover.profile.key_from_fields:
        return [_change(new, "request_features", "fault", f"{what}; the key holds no token ids")]
    detail = f"{what}; whether the key is made of token ids is not known"
    return [replace(_change(new, "request_features", UNVERIFIED, detail), lacks=PROFILE)]


def _tenancy(new: Manifest, cover: Coverer) -> list[Change]:
    tenancy = new.get("cache.tenancy")
    if not isinstance(tenancy, Known):
        return [_change(new, "cache.tenancy", UNVERIFIED, "not known on the new side")]
    if tenancy.value is None or tenancy.value.get("boundary") == "shared":
        return []
    carrier = tenancy.value.get("carried_by")
    boundary = tenancy.value.get("boundary")
    if boundary is None or "carried_by" not in tenancy.value:
        return [_change(new, "cache.tenancy", UNVERIFIED, "boundary and carrier are not both known")]
    if carrier is None:
        return [_change(new, "cache.tenancy", "fault", f"there is a {boundary} boundary and nothing carries it")]
    if (why := _cannot_carry(new, cover, carrier)) is not None:
        return [_change(new, "cache.tenancy", "fault", f"the {boundary} boundary is carried by {carrier}, {why}")]
    return _verdict(
        new, cover, "cache.tenancy", cover.carrier(carrier), f"the {boundary} boundary is carried by {carrier}"
    )


def _cannot_carry(new: Manifest, cover: Coverer, carrier: str) -> str | None:
    """Say why something cannot tell one tenant's requests from another's, or ``None``.

    It must vary between requests and stand in every key of theirs: a media id is in the keys of media
    only, a namespace or revision is one for the whole deployment.
    """
    features = new.get("request_features")
    if carrier in get_args(Carried) and isinstance(features, Known) and carrier not in (features.value or ()):
        return "which requests do not carry"
    if cover.profile is None:
        return None  # what its key holds is not known; that is said
    if cover.profile.key_from_fields:
        constant = carrier == "token_ids" or any(one.owns(carrier) or one.id == carrier for one in dimensions())
        if constant or carrier in ("namespace", "epoch"):
            return "which is one and the same for all of them"
        held = carrier == "cache_salt" or carrier not in get_args(Carried)
        return None if held else "which is not in the key of every request"
    cell = cover.carrier(carrier)
    if cell.key in _SEPARATING and cell.scope != "tenant":
        return "which is not in the key of every request"
    return None


def _scales(new: Manifest, cover: Coverer) -> list[Change]:
    if not new.knows("precision.kv_scales"):
        return [_change(new, "precision.kv_scales", UNVERIFIED, "not known on the new side")]
    if new.value("precision.kv_scales") != "dynamic":
        return []
    return _verdict(
        new, cover, "precision.kv_scales", cover.request("kv_scales"), "KV scales are calibrated while running"
    )


def _mutable(new: Manifest, cover: Coverer) -> list[Change]:
    mutable = new.get("weights.mutable")
    if not isinstance(mutable, Known):
        return [_change(new, "weights.mutable", UNVERIFIED, "not known on the new side")]
    if mutable.value is True:
        return _verdict(new, cover, "weights.mutable", cover.request("weights"), "weights are updated while serving")
    return []


def _roles(new: Manifest) -> list[Change]:
    if new.knows("roles"):
        return []  # known pools are judged against each other (kvgate.rules.decide)
    return [_change(new, "roles", UNVERIFIED, "not known on the new side")]
