"""What the operator has to do: nothing, put settings in force, or clear; with the exact words for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvgate.rules.decide import Decision
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import PREFIX
from kvgate.rules.places import tiers
from kvgate.rules.pools import Pool, pools
from kvgate.rules.profile import Profile, cover

_GLOB = re.compile(r"[*?\[\]\\^]")
_DERIVED = re.compile(rf"{PREFIX}[a-z2-7]{{32}}")


@dataclass(frozen=True)
class Setting:
    """One way to put the derived namespace in force.

    Attributes:
        path: the manifest path that records it.
        value: what to write there.
        how: what to set in the deployment, one line each.

    """

    path: str
    value: str
    how: tuple[str, ...]


@dataclass(frozen=True)
class Clear:
    """How the old entries of one deployment, or of pools of it that file in one place, are deleted."""

    baseline: int
    command: str
    blast_radius: str
    owner: str | None


@dataclass(frozen=True)
class Action:
    """What is left to do.

    Attributes:
        kind: ``none``, ``set`` (one of ``settings``) or ``clear`` (all of ``clears``; settings too where a
            separation is open as well).
        isolation: what keeps entries apart where a separation is open and no setting that a manifest holds does.

    """

    kind: Literal["none", "set", "clear"]
    settings: tuple[Setting, ...] = ()
    clears: tuple[Clear, ...] = ()
    isolation: str | None = None

    def as_data(self) -> dict[str, Any]:
        """Return the action as plain JSON data."""
        return {
            "kind": self.kind,
            "settings": [{"path": one.path, "value": one.value, "how": list(one.how)} for one in self.settings],
            "clear": [
                {"baseline": one.baseline, "command": one.command, "blastRadius": one.blast_radius, "owner": one.owner}
                for one in self.clears
            ],
            **({} if self.isolation is None else {"isolation": self.isolation}),
        }


def stores(manifest: Manifest, profiles: Mapping[str, Profile] | None = None) -> tuple[Pool, ...]:
    """Return the pools of a deployment that have a persistent cache; all of them where none is known to have one."""
    found = pools(manifest)
    return tuple(pool for pool in found if not cover(pool.manifest, profiles).absent) or found


def settings_for(
    manifest: Manifest, derived: str | None, profiles: Mapping[str, Profile] | None = None
) -> tuple[Setting, ...]:
    """Return the settings that put a derived id in force in every pool, best first; none where no profile names a knob.

    Args:
        manifest: the deployment.
        derived: its id; ``None``: it has none.
        profiles: connector profiles by id; ``None``: those that are shipped.
    """
    if derived is None:
        return ()
    held = stores(manifest, profiles)
    each = [{one.path: one for one in _settings_of(pool, derived, profiles)} for pool in held]
    common = [path for path in each[0] if all(path in own for own in each)]
    if common or not all(each):
        return tuple(_joined(path, held, [own[path] for own in each]) for path in common)
    # Each of them has another way: all of these, and none alone.
    first = [next(iter(own.values())) for own in each]
    return (_by_pool("roles", held, [replace(one, value=f"{one.path}: {one.value}") for one in first]),)


def _settings_of(pool: Pool, derived: str, profiles: Mapping[str, Profile] | None) -> Iterator[Setting]:
    knobs = cover(pool.manifest, profiles).knobs or ()
    location = pool.manifest.value("cache.location")
    scheme = location.partition("://")[0].lower() if isinstance(location, str) and "://" in location else ""
    for knob in knobs:
        if knob.path == "cache.location" and scheme not in knob.schemes and len(knobs) > 1:
            continue  # no location of this kind is a name of its own: the other knob is the way
        located = _located(location, derived, knob.schemes)
        value = derived if knob.path == "cache.namespace" else located
        how = tuple(line.replace("{namespace}", derived).replace("{located}", located) for line in knob.how)
        yield Setting(knob.path, value, how)


def _joined(path: str, held: Sequence[Pool], own: Sequence[Setting]) -> Setting:
    """Return one setting of several pools as one."""
    if any(one != own[0] for one in own):
        return _by_pool(path, held, own)
    if setting := [str(pool.name) for pool in held if path in pool.overrides]:
        where = f"in the roles of the manifest, which set {path} themselves: {', '.join(setting)}"
        return replace(own[0], how=(*own[0].how, where))
    return own[0]


def _by_pool(path: str, held: Sequence[Pool], own: Sequence[Setting]) -> Setting:
    pairs = list(zip(held, own, strict=True))
    value = "; ".join(f"{pool.name}: {one.value}" for pool, one in pairs)
    return Setting(path, value, tuple(f"{pool.name}: {line}" for pool, one in pairs for line in one.how))


def _located(location: str | None, derived: str, schemes: list[str]) -> str:
    """Return a location of its own for an id: beside that of an earlier id, never inside it."""
    scheme = location.partition("://")[0].lower() if location and "://" in location else ""
    if not location or scheme not in schemes:
        return f"<folder or bucket>/{derived}"
    parts = location.rstrip("/").split("/")
    if _DERIVED.fullmatch(parts[-1]) and len(parts) > 1:
        parts.pop()
    return "/".join([*parts, derived])


def action_for(decision: Decision) -> Action:
    """Return what is left to do for one decision.

    Nothing is left where only evidence is missing, or where the deployment is unsafe by itself: a setting
    would not help.
    """
    case = decision.case
    if any(finding.self_fault for finding in decision.findings):
        return Action("none")
    # A first deployment's target is unknown, and a name of its own is exactly what settles that.
    separates = [
        f for f in decision.findings if "separate" in f.open and (not f.unverified or f.change.kind == "first")
    ]
    deletes = [f for f in decision.findings if "delete" in f.open or f.declared]
    settings = settings_for(case.new, decision.derived.id, case.profiles) if separates else ()
    isolation = _isolation(case.new, case.profiles) if separates and not settings else None
    if deletes:
        baselines = sorted({finding.baseline for finding in deletes if finding.baseline is not None})
        # What is deleted is what the old deployment left: that of each of its pools, wherever it filed.
        clears = [
            _clear(pool.manifest, index, case.profiles)
            for index in baselines
            for pool in stores(case.old[index], case.profiles)
        ]
        return Action("clear", settings, tuple(dict.fromkeys(clears)), isolation)
    return Action("set", settings) if settings else Action("none", isolation=isolation)


def _isolation(new: Manifest, profiles: Mapping[str, Profile] | None) -> str | None:
    """Return what keeps entries apart where no setting does, of the first pool of which that is known."""
    found = [cover(pool.manifest, profiles).profile for pool in stores(new, profiles)]
    return next((one.isolation for one in found if one is not None and one.isolation is not None), None)


def _clear(old: Manifest, index: int, profiles: Mapping[str, Profile] | None) -> Clear:
    profile = cover(old, profiles).profile
    owner = old.value("cache.cleanup_owner") or old.value("release.owner")
    if profile is None:
        return Clear(index, "no profile says how this store is cleared", "not known", owner)
    model = str(old.value("model.id"))
    # The command is for the first tier, the others are named.
    places = [tier.rstrip("/") for tier in tiers(str(old.value("cache.location") or "LOCATION"))]
    filled = {
        # Quoted: the command is there to be pasted, and a manifest must not be able to write it.
        "{pattern}": shlex.quote(_GLOB.sub(r"\\\g<0>", model) + "@*"),
        "{model_folder}": shlex.quote(model.replace("/", "_")),
        "{location}": shlex.quote(places[0]),
    }
    command = profile.clearing.command
    for placeholder, value in filled.items():
        command = command.replace(placeholder, value)
    if len(places) > 1:
        command += "   # and the same entries in " + " and ".join(shlex.quote(tier) for tier in places[1:])
    return Clear(index, command, profile.clearing.blast_radius, owner)
