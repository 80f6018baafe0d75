"""What lies in a store, as a table and as data."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from kvgate.cli.formats.page import Page
from kvgate.cli.formats.privacy import Veil
from kvgate.cli.plain import short, visible
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.schemes import readings
from kvgate.stores.scanning.entries import Unread
from kvgate.stores.scanning.inventory import Counted, Inventory, Row

_SHOWN = 100  # rows where a person reads
_LONGEST = 300  # characters of a name
_SEVERAL = 3  # values that are listed one by one
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def inventory_data(found: Inventory, veil: Veil, deployment: Manifest | None) -> dict[str, Any]:
    """Return an inventory as plain data; times in UTC, or null where the store keeps none.

    Args:
        found: the inventory.
        veil: what hides whose entries they are.
        deployment: whose model's entries are marked; of no deployment where ``None``.

    """
    return {
        "location": found.location,
        "complete": found.complete,
        "rows": [
            {
                "connectors": list(row.connectors),
                "namespace": veil.namespace(row.namespace),
                "model": row.model,
                **({} if deployment is None else {"ofTheModel": row.of_the_model(deployment)}),
                "layout": dict(row.layout),
                "within": {name: sorted(values, key=str) for name, values in row.within.items()},
                **_counted(row),
            }
            for row in found.rows
        ],
        "beyond": _counted(found.beyond),
        "others": _counted(found.others),
        "strangers": {**_counted(found.strangers), "first": list(filter(None, map(veil.stranger, found.strange)))},
        "unread": {"count": found.unread, "first": [_unread(one, veil) for one in found.first_unread]},
        "notes": [*found.notes, *found.partial],
    }


def inventory_page(page: Page, found: Inventory, veil: Veil, deployment: Manifest | None) -> None:
    """Write an inventory as a table; the arguments are those of :func:`inventory_data`."""
    page.say(visible(found.location), style="bold")
    if not found.rows and found.complete:
        page.say("nothing lies there", indent=2)
    for row in found.rows[:_SHOWN]:
        page.gap()
        _row(page, row, veil, deployment)
    if len(found.rows) > _SHOWN:
        page.gap()
        page.say(f"and {len(found.rows) - _SHOWN:,} more rows (-o json has them)", indent=2)
    if found.beyond.entries:
        page.say(f"further namespaces and models: {_amount(found.beyond)}", indent=2)
    if found.others.entries:
        page.heading("OF ANOTHER CONNECTOR THAN THE ONE ASKED FOR")
        page.say(_amount(found.others), indent=2)
    if found.strangers.entries:
        page.heading("OF NO KNOWN SCHEME")
        page.say(_amount(found.strangers), indent=2)
        for name in filter(None, map(veil.stranger, found.strange)):
            page.say(short(visible(name), _LONGEST), indent=4, hang=2)
    if found.unread:
        page.heading("COULD NOT BE READ, SO IT IS NOT KNOWN WHAT IT HOLDS")
        page.say(f"{found.unread:,} {'thing' if found.unread == 1 else 'things'}", indent=2)
        for one in found.first_unread:
            told = _unread(one, veil)
            named = short(visible(told["name"] or "an entry"), _LONGEST)
            page.say(f"{named}: {visible(told['why'])}", indent=4, hang=2)
    if notes := [*found.notes, *found.partial]:
        page.gap()
        for note in notes:
            page.say(visible(note), hang=2)


_OF_THE_MODEL = {True: "  this deployment's model", False: "  another model", None: ""}


def _row(page: Page, row: Row, veil: Veil, deployment: Manifest | None) -> None:
    model = visible(row.model) if row.model is not None else "(names hold no model)"
    mark = "" if deployment is None else _OF_THE_MODEL[row.of_the_model(deployment)]
    page.parts([(model, "bold"), (f"  {' or '.join(row.connectors)}{mark}", "")], indent=2, hang=2)
    page.say(f"namespace: {visible(veil.namespace(row.namespace) or 'none')}", indent=4, hang=2)
    if said := _said(row):
        page.say(said, indent=4, hang=2)
    page.say(_amount(row), indent=4, hang=2)


def _said(row: Row) -> str:
    layout = [f"{name} {visible(str(value))}" for name, value in row.layout.items()]
    return ", ".join([*layout, *(f"{name} {_values(values)}" for name, values in row.within.items())])


def _values(values: set[str | int]) -> str:
    numbers = sorted(one for one in values if isinstance(one, int))
    if len(values) <= _SEVERAL:
        return ", ".join(visible(str(one)) for one in sorted(values, key=str))
    if len(numbers) == len(values) and numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"{numbers[0]} to {numbers[-1]}"
    return f"of {len(values)} kinds"


def _amount(counted: Counted) -> str:
    entries = "1 entry" if counted.entries == 1 else f"{counted.entries:,} entries"
    when = [_time(one) for one in (counted.oldest, counted.newest)]
    written = "" if when[0] is None else f", written {when[0]}" + ("" if when[0] == when[1] else f" to {when[1]}")
    return f"{entries}, {_size(counted.bytes)}{written}"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count:,} {_UNITS[0]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a file may bear any time
        return "at no time that a calendar holds"


def _counted(counted: Counted) -> dict[str, Any]:
    times = {"oldest": _time(counted.oldest), "newest": _time(counted.newest)}
    return {"entries": counted.entries, "bytes": counted.bytes, **times}


def _unread(one: Unread, veil: Veil) -> Mapping[str, Any]:
    """What could not be read, by name: a folder's, or an entry's without what isolates it."""
    if one.folder:
        return {"name": f"{one.name or '.'}/", "why": one.why}
    keys = readings(one.name)
    return {"name": veil.name(keys[0]) if keys else veil.stranger(one.name), "why": one.why}
