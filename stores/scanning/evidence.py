"""What a reading of a store proves about the deployment that will look there: evidence of kind ``inventory``."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.evidence import Coverage, Evidence, State, subject_of
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import derive
from kvgate.stores.keys.schemes import STORED
from kvgate.stores.scanning.inventory import Inventory, Row
from kvgate.stores.scanning.locate import same_place

_PLACE = "cache.location"


def inventory_evidence(
    found: Inventory,
    new: Manifest,
    old: Manifest | None = None,
    *,
    called: str | None = None,
    tools: Mapping[str, str] | None = None,
    command: str | None = None,
) -> Evidence:
    """Return what lies where a deployment will look, as evidence.

    Proved only where everything that lies there was read and is of a known scheme, the store is the one that the
    manifest names, and what a reader of this deployment could reach is nothing, or lies under the id that is derived
    from it. Entries of another model, as names spell it, are not reachable: they are counted, and prove nothing.

    Args:
        found: what was read, of every connector's names.
        new: the deployment that will look there.
        old: the deployment before it, where the evidence is about the two alone.
        called: what the manifest calls this place, where it is read under another name (a mount elsewhere).
        tools: names and versions of what read it.
        command: what reads it again.

    """
    derived = derive(new).id
    reachable = [row for row in found.rows if not _of_another_model(row, new)]
    entries = sum(row.entries for row in reachable) + found.beyond.entries
    others = sum(row.entries for row in found.rows) + found.beyond.entries - entries
    own = derived is not None and not found.beyond.entries and all(row.namespace == derived for row in reachable)
    missing = dict(_missing(found, new, called))
    state: State = "inconclusive" if missing or (entries and not own) else "proved"
    if missing:
        reason = "; ".join(f"{what}: {why}" for what, why in missing.items())
    elif not entries:
        what = "nothing lies there" if not others else "nothing lies there but entries of other models"
        reason = f"{what}, as seen from where it was read"  # a folder that is not mounted is empty, too
    elif own:
        reason = "all that lies there is under the id derived from this deployment"
    else:
        what = "1 entry lies" if entries == 1 else f"{entries:,} entries lie"
        reason = f"{what} there, and nothing shows that this deployment wrote them"
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="inventory",
        state=state,
        old=None if old is None else subject_of(old, "inventory"),
        new=subject_of(new, "inventory"),
        coverage=Coverage(
            examined={"entries": entries + others + found.others.entries + found.strangers.entries},
            missing=missing,
        ),
        tools=dict(tools or {}),
        # Other namespaces may be tenants: they are nobody's to read.
        figures={
            "entries": entries,
            "of other models": others,
            **({"namespaces": [derived]} if entries and own else {}),
        },
        reason=reason,
        command=command,
    )


def _of_another_model(row: Row, new: Manifest) -> bool:
    """Whether the deployment's own connector would never ask for these names, because they hold another model."""
    return row.connectors == (new.value("cache.connector"),) and row.of_the_model(new) is False


def _missing(found: Inventory, new: Manifest, called: str | None) -> list[tuple[str, str]]:
    """Return what was not examined, and why."""
    missing: list[tuple[str, str]] = []
    if found.unread:
        missing.append(("unread", f"{found.unread:,} things could not be read"))
    if found.others.entries:
        missing.append(("others", f"{found.others.entries:,} entries are of another connector than the one asked for"))
    if found.strangers.entries:
        missing.append(("strangers", f"{found.strangers.entries:,} entries are of no known scheme"))
    missing += [("not all", why) for why in found.partial]
    location, connector = new.value(_PLACE), new.value("cache.connector")
    place = found.location if called is None else called
    if not isinstance(location, str):
        missing.append(("the store", f"{_PLACE} is not known"))
    elif called != location and not same_place(place, location):
        missing.append(("the store", f"{place} was read, and {_PLACE} is {location}"))
    if connector not in STORED:
        missing.append(("the connector", "how its entries lie in a folder or a Redis is not known"))
    if not new.unset("roles"):
        missing.append(("pools", "each may look somewhere else"))
    return missing
