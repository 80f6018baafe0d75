"""A deployment's model as names spell it, where connectors share the spelling."""

from __future__ import annotations

from kvgate.rules.manifest import Manifest


def as_started(manifest: Manifest) -> str | None:
    """Return what the engine was started with, verbatim; ``None`` where it is not known."""
    found = manifest.value("model.id")
    return found if isinstance(found, str) else None


def nameless(_manifest: Manifest) -> str | None:
    """Return that no name holds a model."""
    return None
