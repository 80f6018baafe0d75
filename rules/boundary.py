"""The boundary between old and new state: what keeps them apart, and what would (design, obligations)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from kvgate.rules.catalogue import dimension
from kvgate.rules.change import UNCLASSIFIED, UNVERIFIED, Change, alike, same
from kvgate.rules.compare.sides import Sides
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import PREFIX, derive
from kvgate.rules.places import may_be_one_folder, named_apart, tiers
from kvgate.rules.profile import Coverer, Feature, Knob
from kvgate.rules.schema import Feature as Carried
from kvgate.rules.values import Known

KeysAnswer = Literal["yes", "no", "unknown", "through token ids", "no store"]

IN_WORKER = "entries live in the memory of the worker that made them, and end with it"
"""Why old entries are out of reach, and gone with their worker, where the new deployment reads its own memory."""


NOTHING_LEFT = "the old deployment had no persistent cache, so it left no entries"
"""Why nothing of an old deployment is within reach that filed nothing; what lies at the target is another question."""


@dataclass(frozen=True)
class Boundary:
    """How one old deployment's state and the new one's are kept apart.

    Attributes:
        separators: dimensions that every entry's key holds and whose values differ there; of labels the paths.
        knob: the isolation knob whose value moved to a name that is safe; ``None`` where none did.
        why_knob: how that name is known to be safe, or why a knob that moved does not count.
        target: why what lies where the new deployment will look is no stranger's, whether or not a knob moved; it
            settles that the address moved, and nothing that differs between old and new entries.
        detached: the new deployment reads no persistent store, so nothing old is within its reach.
        certain: both connectors have a profile that speaks for their version.
        silent_on: the side that no profile speaks for, the new one first; ``None`` where there is none.
        why_not: why not, where it is not certain.
        has_knob: whether the new side's profile names a knob; ``None`` where no profile speaks, or it does not know.

    """

    separators: tuple[str, ...]
    knob: Knob | None
    why_knob: str
    target: str | None
    detached: bool
    certain: bool
    silent_on: Literal["old", "new"] | None
    why_not: str
    has_knob: bool | None

    @property
    def may_be_clear(self) -> bool:
        """Whether, for all that is known, the store might offer no way to keep old entries out of reach."""
        return not self.detached and not self.certain

    @property
    def no_way_out(self) -> bool:
        """Whether a profile says positively that nothing but deletion keeps old entries out of reach."""
        return not self.detached and self.certain and self.has_knob is False and not self.separators


def find_boundary(sides: Sides, inventory: list[Evidence], *, filed_apart: bool = False) -> Boundary:
    """Work out what keeps old and new entries apart.

    Args:
        sides: both deployments with their profiles.
        inventory: proved inventories that are bound to the new deployment.
        filed_apart: whether both are pools that were given their locations together, so that other names of places
            stand for other places.

    """
    old, new = sides.old_cover, sides.new_cover
    certain = (old.profile is not None or old.absent) and new.profile is not None
    knob, why = _moved_knob(sides, inventory)
    silent: Literal["old", "new"] | None = None
    if new.profile is None and not new.absent:
        silent = "new"
    elif old.profile is None and not old.absent:
        silent = "old"
    return Boundary(
        separators=tuple(_separators(sides, filed_apart)),
        knob=knob,
        why_knob=why,
        target=target_shown(sides.new, new, sides.whole, inventory),
        detached=new.absent,
        certain=certain,
        silent_on=silent,
        why_not={"new": new.why, "old": old.why, None: ""}[silent],
        has_knob=None if new.knobs is None else bool(new.knobs),
    )


def met(change: Change, boundary: Boundary, sides: Sides) -> str | None:
    """Say what keeps the entries that one change concerns apart, or ``None`` where nothing does.

    A change of the address itself (kind ``moved``) is about what lies at the target, so only a safe name
    settles it: that old entries are out of reach is what the change says.
    """
    if ends_with_worker(change, sides):
        return IN_WORKER
    if boundary.knob is not None:
        return f"{boundary.knob.path} differs, and {boundary.why_knob}"
    if about_the_target(change):
        return boundary.target if change.kind == "moved" else None
    if left_nothing(change, sides):
        return NOTHING_LEFT
    if boundary.separators:
        parts = ", ".join(boundary.separators)
        return f"{parts}: part of every key, and not the same on both sides (it speaks of the deployments given only)"
    if change.kind == "narrowed" and (carrier := _newly_carried(sides)) is not None:
        return f"every request carries {carrier} now, its key holds that, and no old entry has any"
    if _another_path(change, sides):
        return "the adapter's path: part of every key of its entries, and another now (among the deployments given)"
    cells = [cover.cell(change.dimension) for cover in (sides.old_cover, sides.new_cover)]
    if all(cell.key == "token-ids" for cell in cells) and _same_store(sides):
        return "it enters every key through the token hash: other tokens are other keys"
    return None


def ends_with_worker(change: Change, sides: Sides) -> bool:
    """Whether what a change concerns ends when the old worker does: not so where the worker stays, or was seen to."""
    return sides.new_cover.in_worker and change.kind not in ("adverse", "replaced-in-place")


def left_nothing(change: Change, sides: Sides) -> bool:
    """Whether a change is about entries of an old deployment that is known to have filed none, and was seen in none."""
    return sides.old_cover.absent and change.kind != "adverse" and not about_the_target(change)


def keys_answer(change: Change, boundary: Boundary, sides: Sides) -> KeysAnswer:
    """Answer whether the connector's own key keeps old and new entries apart, as far as this change goes."""
    if boundary.detached or left_nothing(change, sides):
        return "no store"
    if boundary.separators or _another_path(change, sides):
        return "yes"
    if not boundary.certain:
        return "unknown"
    covers = (sides.old_cover, sides.new_cover)
    if change.kind != "adverse" and _newly_named(boundary, sides):
        return "yes"
    keys = {cover.cell(change.dimension).key for cover in covers}
    if keys == {"token-ids"}:
        return "through token ids"
    if sides.same(_PLACE) is not True and any(_PLACE in cover.in_every_key for cover in covers):
        return "unknown"  # another name of a place may be another place
    return "unknown" if "unknown" in keys else "no"


def _newly_named(boundary: Boundary, sides: Sides) -> bool:
    """Whether every key holds a namespace that moved to a name that is safe, which no default is."""
    if boundary.knob is None or boundary.knob.path == _PLACE or not _same_store(sides):
        return False
    return all(boundary.knob.path in cover.in_every_key for cover in (sides.old_cover, sides.new_cover))


def about_the_target(change: Change) -> bool:
    """Whether a change is about what lies where the new deployment will look, not about what the old one left."""
    address = (
        dimension(change.dimension).compare in ("address", "connector") if change.dimension != UNCLASSIFIED else False
    )
    seen = change.kind == "adverse" and change.path == _INVENTORY
    return address and (seen or change.kind in ("moved", "first", UNVERIFIED))


def _newly_carried(sides: Sides) -> str | None:
    """Return what carries the new tenant boundary into every key, where old requests are known to have had none."""
    old, new = sides.old_cover.profile, sides.new_cover.profile
    carrier = (sides.new.value("cache.tenancy") or {}).get("carried_by")
    features, tenancy = sides.old.get("request_features"), sides.old.get("cache.tenancy")
    if old is None or new is None or old.id != new.id or carrier not in get_args(Carried):
        return None
    if not isinstance(tenancy, Known) or (tenancy.value or {}).get("carried_by") == carrier:
        return None  # old requests are said to have carried it, whatever the list of features says
    if sides.old_cover.cell("cache.namespace").clashes_with == carrier and not sides.old.unset("cache.namespace"):
        return None  # the namespace stood where the carrier does: a tenant's value may be the very name
    cells = [cover.request(cast("Feature", carrier)) for cover in (sides.old_cover, sides.new_cover)]
    held = all(cell.key == "separates" and cell.scope == "tenant" for cell in cells)
    return carrier if held and isinstance(features, Known) and carrier not in (features.value or ()) else None


def _another_path(change: Change, sides: Sides) -> bool:
    """Whether an adapter's entries are kept apart by the path that the engine loads it from, known on both sides."""
    if (change.dimension, change.kind) != (_ADAPTERS, "replaced") or not _same_store(sides):
        return False
    name = change.path.removeprefix(f"{_ADAPTERS}.")
    given = [(side.value(_ADAPTERS) or {}).get(name, {}).get("path") for side in (sides.old, sides.new)]
    held = all(
        cell.key == "separates" and cell.by_path
        for cell in (cover.cell(_ADAPTERS) for cover in (sides.old_cover, sides.new_cover))
    )
    return held and None not in given and given[0] != given[1]


def _same_store(sides: Sides) -> bool:
    return sides.same("cache.connector") is True


_ADAPTERS = "adapters"
_INVENTORY = "evidence.inventory"  # of all evidence it alone speaks of what lies where the new deployment will look
# Two names of places may name one place (an alias, a link, a slash at the end), or lists that share a tier.
_PLACE = "cache.location"
_NAMESPACE = "cache.namespace"


def _separators(sides: Sides, filed_apart: bool) -> list[str]:
    """Dimensions in which the keys of all entries differ; known on both sides, under one and the same profile."""
    old, new = sides.old_cover, sides.new_cover
    if old.profile is None or new.profile is None or old.profile.id != new.profile.id:
        return []
    found: dict[str, bool] = {}
    for dimension_id, paths in old.in_every_key.items():
        if dimension_id == _PLACE and not (
            filed_apart
            and named_apart(sides.old.value(_PLACE), sides.new.value(_PLACE), _prefixed(old) & _prefixed(new))
        ):
            continue
        others = new.in_every_key.get(dimension_id)
        if others is None:
            continue
        differing = sorted(path for path in {*paths, *others} if _part_differs(sides, dimension_id, path))
        if dimension(dimension_id).compare == "label":
            # Each for itself: that the store's own key holds one says nothing of others.
            found |= dict.fromkeys(differing, True)
        elif differing:
            found[dimension_id] = any(sides.same(path) is False for path in differing)
    # Several values may enter as one (a world size): what tells the keys apart are those that differ themselves.
    return [name for name, itself in found.items() if itself or not any(found.values())]


def _prefixed(cover: Coverer) -> set[str]:
    """Return the schemes of which a connector is known to read the path, so that it is a place of its own."""
    return {scheme for knob in cover.knobs or () if knob.path == _PLACE for scheme in (*knob.schemes, *knob.databases)}


def _part_differs(sides: Sides, dimension_id: str, path: str) -> bool:
    parts = [cover.part(dimension_id, path) for cover in (sides.old_cover, sides.new_cover)]
    if path == _NAMESPACE and may_be_one_folder(sides.old.value(path), sides.new.value(path)):
        return False
    # An unset side takes a default that may be the other side's very value, so it is not known to differ.
    return same(*parts) is False and all(isinstance(part, Known) and part.value is not None for part in parts)


def _moved_knob(sides: Sides, inventory: list[Evidence]) -> tuple[Knob | None, str]:
    moved = [
        knob
        for knob in sides.new_cover.knobs or ()
        if same(sides.old.get(knob.path), sides.new.get(knob.path)) is False
        and isinstance(sides.new.value(knob.path), str)
    ]
    if not moved:
        return None, ""
    derived = _derived(sides.whole)
    # In another spelling it may be the same name or place.
    moved = [knob for knob in moved if derived is None or derived not in str(sides.old.value(knob.path))]
    if not moved:
        return None, ""
    for knob in moved:
        if holds(knob, sides.new.value(knob.path), derived):
            return knob, f"{sides.new.value(knob.path)!r} holds the id derived from this identity"
    for item in inventory:
        if shown := inventory_shows(item, derived):
            return moved[0], shown
    target = sides.new.value(moved[-1].path)
    if derived is None:
        missing = "no id can be derived while parts of the identity are unknown"
    elif derived in target:
        missing = (
            "that only mentions the derived id: it must be a component of a path or name of its own "
            "(what follows the host of a Redis URL is a database number)"
        )
    else:
        missing = f"that does not hold the derived id {derived}"
    return None, f"{moved[-1].path} moved to {target!r}, but {missing} and no inventory shows what lies there"


_BEFORE, _AFTER = r"(?:[\w.:@-]*[.:@_-])?", r"(?:[.:@_-][\w.:@-]*)?"
_VOLUME = "volume:"  # a folder in a volume, as a capture of a container's mounts names it: volume:NAME/rest
_HOST = re.compile(r"[\w.-]*(?::[0-9]+)?")
_ONE_PLACE = re.compile(r"[\w.:@/~-]*")  # whatever else a value holds may be a list, a query or an expansion


def holds(knob: Knob, value: object, derived: str | None) -> bool:
    """Whether a knob's value is a name of its own for a derived id.

    The id must be a component of the name, whole (``prod-ID`` and ``/kv/ID/a`` will do), with no ``..`` that
    leads out of it and no query or fragment that nobody may read; and the scheme must be one whose path
    names a place of its own: in ``redis://host/0/ID`` clients read database 0. In a list of places all are
    read: of tiers as capture writes them (``[/a/ID + /kv/ID]``) each must hold it, another list (``/a,/kv/ID``,
    ``/a:/kv/ID``) is no name.
    """
    if derived is None or not isinstance(value, str):
        return False
    named = re.compile(_BEFORE + re.escape(derived) + _AFTER)
    return all(_names_one_place(knob, tier, named) for tier in tiers(value))


def _names_one_place(knob: Knob, value: str, named: re.Pattern[str]) -> bool:
    scheme, mark, rest = value.partition("://")
    if not mark:
        scheme, rest = "", value.removeprefix(_VOLUME)
    first, *path = rest.split("/")
    # A colon in a path parts the places of a list; it belongs to a host and its port, or to a name that is no path.
    name = knob.path == "cache.namespace" and not path
    plain = _HOST.fullmatch(first) is not None if mark else name or ":" not in first
    # Two hosts may serve one folder; a bucket is a place of its own.
    parts = path if scheme.lower() in ("file", "fs") else [first, *path]
    parts = [first] if scheme.lower() in knob.whole_hosts else parts
    return (
        scheme.lower() in (*knob.schemes, *knob.whole_hosts)
        and _ONE_PLACE.fullmatch(rest) is not None
        and plain
        and not any(":" in part for part in path)
        and ".." not in (first, *path)
        and any(named.fullmatch(part) for part in parts)
    )


def _derived(whole: Manifest | None) -> str | None:
    return None if whole is None else derive(whole).id


def target_shown(new: Manifest, cover: Coverer, whole: Manifest | None, inventory: Iterable[Evidence]) -> str | None:
    """Say how the entries that a deployment will find are known to be its own or none; ``None`` where nothing says."""
    if cover.in_worker:
        return IN_WORKER
    for knob in cover.knobs or ():
        value = new.value(knob.path)
        if PREFIX in str(value) and holds(knob, value, _derived(whole)):
            return f"{knob.path} holds the id derived from this identity"
    return next((shown for item in inventory if (shown := inventory_shows(item, _derived(whole)))), None)


def inventory_shows(item: Evidence, derived: str | None) -> str | None:
    """Say how an inventory shows a target to be safe: empty, or written only under the derived id; else ``None``."""
    if alike(item.figures.get("entries"), 0):  # not False, which equals 0
        return "an inventory shows the target empty"
    namespaces = item.figures.get("namespaces")
    if (
        derived is not None
        and isinstance(namespaces, list)
        and namespaces
        and all(name == derived for name in namespaces)
    ):
        return "an inventory shows only entries under the derived id"
    return None
