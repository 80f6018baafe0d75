"""What stands in a launch line that no manifest path holds: flags, and the settings of its connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.manifest import Manifest


def launch_flags(manifest: Manifest) -> Mapping[str, Any] | None:
    """Return ``engine.args``, empty where none is set; ``None`` where it is not known."""
    return manifest.value("engine.args") or {} if manifest.knows("engine.args") else None


def connector_settings(manifest: Manifest) -> Mapping[str, Any] | None:
    """Return ``kv_connector_extra_config`` of vLLM's ``--kv-transfer-config``, as far as no path holds it.

    Empty where there is none; ``None`` where the flags, or what stands in this one, are not known.
    """
    flags = launch_flags(manifest)
    transfer = None if flags is None else flags.get("kv-transfer-config", {})
    extra = transfer.get("kv_connector_extra_config", {}) if isinstance(transfer, Mapping) else None
    return extra if isinstance(extra, Mapping) else None
