"""Where entries are filed: a difference here moves the key space, and says nothing of what lies at the target."""

from __future__ import annotations

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, same
from kvgate.rules.compare.sides import Sides


def compare_address(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare one part of the address (kinds: ``moved``, ``inert``, ``unverified``).

    ``inert``: the connector's key does not hold it. What does not enter the key need not be known; what
    enters it, or may enter it because no profile speaks, must be.
    """
    if sides.old_cover.absent or sides.new_cover.absent:
        return [sides.change(dimension, "inert", path) for path in dimension.paths if sides.same(path) is False]
    if sides.same("cache.connector") is not True:
        return []  # the connector itself moved: said there
    covers = (sides.old_cover, sides.new_cover)
    cells = {cover.cell(dimension.id).key for cover in covers}
    one_form = len({(cover.cell(dimension.id).form, *cover.cell(dimension.id).paths) for cover in covers}) == 1
    changes = []
    for path in dimension.paths:
        if cells == {"no"}:
            if sides.same(path) is False:
                changes.append(sides.change(dimension, "inert", path, detail="not part of this connector's key"))
            continue
        # A part of it that neither key is made of has a default that decides nothing.
        enters = any(path in (cover.cell(dimension.id).paths or dimension.paths) for cover in covers)
        # Where one side's profile speaks and the other's does not, their forms do not compare: the values do.
        parts = [cover.part(dimension.id, path) for cover in covers]
        equal = same(*parts) if one_form else sides.same(path)
        if equal is None:
            changes.append(sides.unverified(dimension, path, sides.unknown_sides(path)))
        elif not equal:
            changes.append(sides.change(dimension, "moved", path))
        elif sides.same(path) is False:
            changes.append(sides.change(dimension, "inert", path, detail="enters the key in the same form"))
        elif enters and sides.both_null(path) and not sides.defaults_known_equal(dimension):
            changes.append(sides.default_unverified(dimension, path))
    return changes


def compare_connector(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare the connector itself (kinds: ``moved``, ``detached``, ``unverified``)."""
    path = dimension.paths[0]
    equal = sides.same(path)
    if equal is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    if equal:
        return []
    if sides.new_cover.absent:
        return [sides.change(dimension, "detached", path, detail="the new deployment has no persistent cache")]
    return [sides.change(dimension, "moved", path)]
