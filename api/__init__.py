"""kvgate: the release gate for persistent KV caches.

``kvgate.check`` decides about a rollout and returns the decision as data; the command line is one caller of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.checking import Checked, check
    from kvgate.rules.errors import InputError, KvgateError, UsageError

__version__ = "0.1.0"

__all__ = ["Checked", "InputError", "KvgateError", "UsageError", "__version__", "check"]

_HOMES = {
    "Checked": "kvgate.checking",
    "check": "kvgate.checking",
    "InputError": "kvgate.rules.errors",
    "KvgateError": "kvgate.rules.errors",
    "UsageError": "kvgate.rules.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``kvgate --help`` does not pay for the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvgate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
