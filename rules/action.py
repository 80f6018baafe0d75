"""What the operator has to do: nothing, put settings in force, or clear; with the exact words for it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from kvgate.rules.decide import Decision
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import PREFIX
from kvgate.rules.places import tiers
from kvgate.rules.profile import Coverer, cover

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
    """How the old entries of one deployment are deleted."""

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


def settings_for(manifest: Manifest, derived: str | None, coverer: Coverer) -> tuple[Setting, ...]:
    """Return the settings that put a derived id in force, best first; none where no profile names a knob."""
    if derived is None:
        return ()
    settings = []
    location = manifest.value("cache.location")
    scheme = location.partition("://")[0].lower() if isinstance(location, str) and "://" in location else ""
    for knob in coverer.knobs or ():
        if knob.path == "cache.location" and scheme not in knob.schemes and len(coverer.knobs or ()) > 1:
            continue  # no location of this kind is a name of its own: the other knob is the way
        located = _located(location, derived, knob.schemes)
        value = derived if knob.path == "cache.namespace" else located
        how = tuple(line.replace("{namespace}", derived).replace("{located}", located) for line in knob.how)
        settings.append(Setting(knob.path, value, how))
    return tuple(settings)


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
    settings = settings_for(case.new, decision.derived.id, decision.cover) if separates else ()
    profile = decision.cover.profile
    isolation = profile.isolation if profile is not None and separates and not settings else None
    if deletes:
        baselines = sorted({finding.baseline for finding in deletes if finding.baseline is not None})
        clears = tuple(_clear(case.old[index], index, decision) for index in baselines)
        return Action("clear", settings, clears, isolation)
    return Action("set", settings) if settings else Action("none", isolation=isolation)


def _clear(old: Manifest, index: int, decision: Decision) -> Clear:
    profile = cover(old, decision.case.profiles).profile
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
