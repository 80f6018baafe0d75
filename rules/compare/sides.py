"""What every comparison is given."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvgate.rules.catalogue import Dimension, owner_of
from kvgate.rules.change import UNVERIFIED, Change, same
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import Coverer


@dataclass(frozen=True)
class Sides:
    """An old and a new deployment, each with what its connector's key covers.

    ``whole``: the whole new deployment, whose id tells a namespace of its own; ``None`` where none does. What either
    key covers is asked with the other deployment beside it: their entries lie in one store.
    """

    old: Manifest
    new: Manifest
    old_cover: Coverer
    new_cover: Coverer
    whole: Manifest | None = None

    def __post_init__(self) -> None:
        """Put each deployment beside the other one's key."""
        object.__setattr__(self, "old_cover", self.old_cover.next_to(self.new))
        object.__setattr__(self, "new_cover", self.new_cover.next_to(self.old))

    def same(self, path: str) -> bool | None:
        """Whether both sides hold the same at ``path``; ``None`` where either is unknown."""
        return same(self.old.get(path), self.new.get(path))

    def judged_alone(self, path: str) -> bool:
        """Whether what is unknown at ``path`` of the new side is said where the new deployment is judged alone."""
        return not self.new.knows(path) and not self.new_cover.absent

    def both_null(self, path: str) -> bool:
        """Whether both sides are known to be unset at ``path``."""
        return self.old.unset(path) and self.new.unset(path)

    def defaults_known_equal(self, dimension: Dimension) -> bool:
        """Whether everything that sets this dimension's default is known and equal on both sides."""
        return all(self._known_equal(path) for path in dimension.default_of)

    def _known_equal(self, path: str) -> bool:
        owner = owner_of(path)
        nameless = owner is not None and owner.never_unset and self.both_null(path)
        return self.same(path) is True and not nameless

    def change(self, dimension: Dimension, kind: str, path: str, *, scope: str = "all", detail: str = "") -> Change:
        """Make a change of the fields at ``path``."""
        return Change(dimension.id, kind, path, self.old.get(path), self.new.get(path), scope, detail)

    def unverified(self, dimension: Dimension, path: str, detail: str) -> Change:
        """Make the change that says that ``path`` could not be compared."""
        return self.change(dimension, UNVERIFIED, path, detail=detail)

    def default_unverified(self, dimension: Dimension, path: str) -> Change:
        """Make the change that says that two defaults were compared, and what would show them to be the same."""
        lacking = [anchor for anchor in dimension.default_of if not self._known_equal(anchor)]
        what = ", ".join(lacking) or "version, package set or image"
        detail = f"unset on both sides, and what sets the default is not known to be equal ({what})"
        unknown = next((anchor for anchor in lacking if self.same(anchor) is not False), None)
        return replace(self.unverified(dimension, path, detail), lacks=unknown)

    def unknown_sides(self, path: str) -> str:
        """Say on which side ``path`` is not known."""
        missing = [name for name, side in (("old", self.old), ("new", self.new)) if not side.knows(path)]
        return f"not known on the {' and the '.join(missing)} side"
