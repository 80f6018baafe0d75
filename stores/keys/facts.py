"""What a manifest tells of a name, gathered so that nothing that is missing is passed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import cover
from kvgate.rules.values import Known
from kvgate.stores.keys.stored import Prediction

_COVERED_BY = ("cache.version", "engine.version")  # what decides whether a profile speaks for a deployment


class Facts:
    """One deployment, asked for the parts of a name; what could not be answered stays behind.

    Args:
        manifest: the deployment.
        connector: the id of the profile under which its entries must lie; another one, or a version that the
            profile was not read for, is the first thing that is not known.

    Attributes:
        assumed: what was taken for granted, a sentence each.
        unknown: what would have to be known, a sentence each, with the manifest path.

    """

    def __init__(self, manifest: Manifest, connector: str) -> None:
        self.manifest = manifest
        self.assumed: list[str] = []
        self.unknown: list[str] = []
        found = cover(manifest)
        if found.profile is None:
            asked = next((path for path in _COVERED_BY if manifest.value(path) is None and path in found.why), None)
            self.lacks("cache.connector", found.why + ("" if asked is None else f": capture with --set {asked}=VALUE"))
        elif found.profile.id != connector:
            self.lacks("cache.connector", f"it is {found.profile.id}, not {connector}")

    def lacks(self, path: str, why: str) -> None:
        """Write down that a part of the name is not known."""
        self.unknown.append(f"{path}: {why}")

    def set(self, path: str) -> Any:
        """Return what is set at a path; where nothing is, that is a part which is not known."""
        found = self.manifest.get(path)
        if not isinstance(found, Known):
            self.lacks(path, f"not known: capture with --set {path}=VALUE")
            return None
        if found.value is None:
            self.lacks(path, f"not set, and the default is not known here: capture with --set {path}=VALUE")
        return found.value

    def set_or(self, path: str, default: Any) -> Any:
        """Return what is set at a path, and the default that applies where it is known that nothing is."""
        return default if self.manifest.unset(path) else self.set(path)

    def predict(self, names: Iterable[str] | None) -> Prediction:
        """Return the names, or what they would take."""
        known = names is not None and not self.unknown
        return Prediction(
            names=tuple(names) if names is not None and known else None,
            assumed=tuple(dict.fromkeys(self.assumed)),
            unknown=tuple(dict.fromkeys(self.unknown)),
        )
