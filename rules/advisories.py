"""Advisories: producers whose entries stay wrong for every reader (data: ``data/advisories.yaml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from kvgate.rules.carried import carries
from kvgate.rules.catalogue import dimension
from kvgate.rules.change import Change
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest
from kvgate.rules.packaged import DataModel, packaged_bytes, parse_data
from kvgate.rules.profile import version_in
from kvgate.rules.values import UNKNOWN, Known

_CONNECTOR = "cache.connector"


class _Advisory(DataModel):
    id: str
    connectors: list[str]
    engine: str | None = None
    path: str
    range: str
    requests: str
    scope: str
    title: str
    source: str


class _Advisories(DataModel):
    source: str
    checked: str
    advisories: list[_Advisory]


@cache
def _advisories() -> tuple[_Advisory, ...]:
    return tuple(parse_data(packaged_bytes("data", "advisories.yaml"), "advisories.yaml", _Advisories).advisories)


def producer_changes(sides: Sides) -> list[Change]:
    """Return a change for every advisory that the old deployment's entries fall under, or may fall under.

    Kinds: ``producer``; ``producer-unverified``, one for all, where connector, version or what requests carried is
    not known. Only where the new deployment has a store: else nothing old is read.
    """
    if sides.new_cover.absent:
        return []
    return [
        sides.change(dimension(_CONNECTOR), one.kind, _CONNECTOR, scope=one.scope, detail=one.detail)
        for one in _matches(sides.old, "producer")
    ]


def producers_alone(new: Manifest) -> list[Change]:
    """Return a change for every advisory that the entries of a new deployment will fall under, or may fall under.

    Kinds: ``fault``; ``producer-unverified``, one for all, where version or what requests carry is not known. That the
    connector is not known is said of its key, and what that holds is not known then.
    """
    if not new.knows(_CONNECTOR):
        return []
    return [
        Change(_CONNECTOR, one.kind, _CONNECTOR, UNKNOWN, new.get(_CONNECTOR), one.scope, one.detail)
        for one in _matches(new, "fault")
    ]


@dataclass(frozen=True)
class _Match:
    kind: str
    scope: str
    detail: str


def _matches(manifest: Manifest, kind: str) -> list[_Match]:
    """Return the advisories that apply, each, and those that may apply, as one: one answer settles all of them."""
    groups: list[tuple[str, list[_Advisory]]] = []
    unverified: list[_Advisory] = []
    for advisory in _advisories():
        if applies := _applies(advisory, manifest):
            groups.append((kind, [advisory]))
        elif applies is None:
            unverified.append(advisory)
    groups += [("producer-unverified", unverified)] if unverified else []
    matches = []
    for found, advisories in groups:
        scopes = {advisory.scope for advisory in advisories}
        detail = "; ".join(f"{one.path} {one.range}: {one.title} ({one.source})" for one in advisories)
        matches.append(_Match(found, scopes.pop() if len(scopes) == 1 else "all", detail))
    return matches


def _applies(advisory: _Advisory, manifest: Manifest) -> bool | None:
    """Whether a deployment's entries fall under an advisory: ``None`` where something that decides is not known."""
    # What rules it out comes first, and the cheapest of it: most advisories are about another connector.
    connector, engine = manifest.get(_CONNECTOR), manifest.get("engine.name")
    if isinstance(connector, Known) and connector.value not in advisory.connectors:
        return False
    if advisory.engine is not None and isinstance(engine, Known) and engine.value != advisory.engine:
        return False
    version = manifest.get(advisory.path)
    answers = [
        True if isinstance(connector, Known) else None,
        True if advisory.engine is None or isinstance(engine, Known) else None,
        _lies_in(version.value, advisory.range) if isinstance(version, Known) and version.value is not None else None,
        carries(manifest, advisory.requests),
    ]
    return False if False in answers else None if None in answers else True


_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@lru_cache(maxsize=256)
def _lies_in(version: str, wanted: str) -> bool | None:
    """Whether a version lies in a range; ``None`` for what is no release.

    A candidate, a development version, a local build and a commit hold a mend or not, whatever their number says.
    """
    from packaging.version import InvalidVersion, Version

    if _COMMIT.fullmatch(version):
        return None
    try:
        found = Version(version)
    except InvalidVersion:
        return None
    return None if found.is_prerelease or found.local is not None else version_in(version, wanted)
