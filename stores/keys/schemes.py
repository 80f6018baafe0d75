"""Every scheme there is, by the id of the connector's profile."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.stores.keys.stored import Scheme

_SCHEMES: tuple[Scheme, ...] = ()

SCHEMES: Mapping[str, Scheme] = {scheme.connector: scheme for scheme in _SCHEMES}
