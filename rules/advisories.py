"""Advisories: producers whose entries stay wrong for every reader (data: ``data/advisories.yaml``)."""

from __future__ import annotations

from functools import cache

from kvgate.rules.catalogue import dimension
from kvgate.rules.change import Change
from kvgate.rules.compare.sides import Sides
from kvgate.rules.packaged import DataModel, packaged_bytes, parse_data
from kvgate.rules.profile import version_in
from kvgate.rules.values import Known


class _Advisory(DataModel):
    id: str
    connectors: list[str]
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
    """Return a change (kind ``producer``) for every advisory that the old deployment's entries fall under.

    Only where both deployments read the same store: entries that the new one cannot reach are the cleanup
    list's business.
    """
    connector = sides.old.get("cache.connector")
    if not isinstance(connector, Known) or sides.new_cover.absent:
        return []
    return [
        sides.change(
            dimension("cache.connector"),
            "producer",
            "cache.connector",
            scope=advisory.scope,
            detail=f"{advisory.path} {sides.old.value(advisory.path)}: {advisory.title} ({advisory.source})",
        )
        for advisory in _advisories()
        if connector.value in advisory.connectors
        and advisory.requests in (sides.old.value("request_features") or ())
        and version_in(sides.old.value(advisory.path), advisory.range)
    ]
