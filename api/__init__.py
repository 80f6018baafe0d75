"""kvgate: the release gate for persistent KV caches.

``kvgate.check`` decides about a rollout and returns the decision as data; the command line is one caller of it.
``kvgate.fingerprint_module`` says what the weights of a torch module are, in the terms of ``kvgate fingerprint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.checking import Checked, check
    from kvgate.rules.errors import InputError, KvgateError, UsageError
    from kvgate.weights.device.module import fingerprint_module
    from kvgate.weights.fingerprint import Fingerprint

__version__ = "0.1.0"

__all__ = [
    "Checked",
    "Fingerprint",
    "InputError",
    "KvgateError",
    "UsageError",
    "__version__",
    "check",
    "fingerprint_module",
]

_HOMES = {
    "Checked": "kvgate.checking",
    "check": "kvgate.checking",
    "Fingerprint": "kvgate.weights.fingerprint",
    "InputError": "kvgate.rules.errors",
    "KvgateError": "kvgate.rules.errors",
    "UsageError": "kvgate.rules.errors",
    "fingerprint_module": "kvgate.weights.device.module",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``kvgate --help`` does not pay for the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvgate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
