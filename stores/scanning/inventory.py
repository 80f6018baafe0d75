"""Counting what lies in a store by connector, namespace, model and layout; in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvgate.rules.manifest import Manifest
from kvgate.rules.progress import Progress, silent
from kvgate.stores.keys.schemes import LONGEST, SCHEMES, readings
from kvgate.stores.keys.stored import StoredKey
from kvgate.stores.scanning.entries import Entry, Store, Unread

MOST_ROWS = 10_000
"""Rows that are told apart; what further namespaces and models hold is counted together."""

_MOST_VALUES = 64
_NAMED = 20
_EVERY = 1000


@dataclass
class Counted:
    """Some entries together.

    Attributes:
        entries: how many.
        bytes: of their values.
        oldest: when the first of them was written, in seconds since 1970; ``None`` where the store keeps no times.
        newest: likewise the last.

    """

    entries: int = 0
    bytes: int = 0
    oldest: float | None = None
    newest: float | None = None

    def add(self, entry: Entry) -> None:
        """Count one more."""
        self.entries += 1
        self.bytes += entry.bytes
        if entry.written is not None:
            self.oldest = entry.written if self.oldest is None else min(self.oldest, entry.written)
            self.newest = entry.written if self.newest is None else max(self.newest, entry.written)


@dataclass
class Row(Counted):
    """The entries that one deployment, or several which share its names, stored.

    Attributes:
        connectors: whose names these are; several where nothing says which of them it was.
        namespace: what isolates them.
        model: as the connector writes it.
        layout: what else their names have in common.
        within: what differs among them (ranks, layers), up to 64 values each.

    """

    connectors: tuple[str, ...] = ()
    namespace: str | None = None
    model: str | None = None
    layout: Mapping[str, str | int] = field(default_factory=dict)
    within: dict[str, set[str | int]] = field(default_factory=dict)

    def of_the_model(self, manifest: Manifest) -> bool | None:
        """Whether these are entries of a deployment's model, as its connector spells it in names.

        Args:
            manifest: the deployment.

        Returns:
            ``None`` where these names hold no model, or where it is not known how the deployment's is spelled.

        """
        spelled = SCHEMES[self.connectors[0]].model(manifest)
        return None if spelled is None or self.model is None else spelled == self.model


@dataclass
class Inventory:
    """What lies in a store.

    Attributes:
        location: the store, without credentials.
        rows: by connector, namespace, model and layout; most entries first.
        beyond: entries of further rows than are told apart.
        others: entries of another connector's than the one that was asked for.
        strangers: entries whose names are of no known scheme.
        strange: the first of their names, cut where they are longer than any that is read.
        unread: how many things could not be read. Each may be an entry, and a folder any number of them.
        first_unread: the first of these.
        notes: what is to be known of these numbers, a sentence each.
        partial: why they may not be all that lies there, a sentence each.

    """

    location: str
    rows: list[Row] = field(default_factory=list)
    beyond: Counted = field(default_factory=Counted)
    others: Counted = field(default_factory=Counted)
    strangers: Counted = field(default_factory=Counted)
    strange: list[str] = field(default_factory=list)
    unread: int = 0
    first_unread: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everything that lies there was read and is of a scheme that was asked for."""
        return not self.unread and not self.others.entries and not self.strangers.entries


def take_inventory(store: Store, connector: str | None = None, progress: Progress = silent) -> Inventory:
    """Read a store through and count its entries.

    Args:
        store: what to read.
        connector: whose names to look for; those of all connectors where ``None``.
        progress: told how many entries were read.

    Raises:
        InputError: the store cannot be read to its end.

    """
    found = Inventory(store.location)
    rows: dict[object, Row] = {}
    for number, item in enumerate(store.entries(), 1):
        if number % _EVERY == 0:
            progress("reading the store", number, None, "entries")
        if isinstance(item, Unread):
            found.unread += 1
            if len(found.first_unread) < _NAMED:
                found.first_unread.append(replace(item, name=item.name[:LONGEST]))
            continue
        keys = readings(item.name, connector)
        if not keys and connector is not None and readings(item.name):
            found.others.add(item)
            continue
        if not keys:
            found.strangers.add(item)
            if len(found.strange) < _NAMED:
                found.strange.append(item.name[:LONGEST])
            continue
        row = _row(rows, keys)
        (found.beyond if row is None else row).add(item)
    found.rows = sorted(
        rows.values(), key=lambda row: (-row.entries, row.connectors, row.model or "", row.namespace or "")
    )
    found.notes, found.partial = store.notes(), store.partial()
    return found


def _row(rows: dict[object, Row], keys: tuple[StoredKey, ...]) -> Row | None:
    """Return the row of an entry, a new one where there is none yet; ``None`` where there are too many."""
    key, within = keys[0], SCHEMES[keys[0].connector].within
    connectors = tuple(one.connector for one in keys)
    layout = {name: value for name, value in key.fields.items() if name not in within}
    identity = (connectors, key.namespace, key.model, tuple(layout.items()))
    row = rows.get(identity)
    if row is None:
        if len(rows) >= MOST_ROWS:
            return None
        row = rows[identity] = Row(connectors=connectors, namespace=key.namespace, model=key.model, layout=layout)
    _note(row.within, ((name, value) for name, value in key.fields.items() if name in within))
    return row


def _note(within: dict[str, set[str | int]], values: Iterable[tuple[str, str | int]]) -> None:
    for name, value in values:
        known = within.setdefault(name, set())
        if len(known) < _MOST_VALUES:
            known.add(value)
