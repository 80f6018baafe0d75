"""The entries of one prompt among all that lie in a scratch store: by the connector's own scheme of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvgate.probes.engines.places import Places
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Request, Scheme, StoredKey

Entry = tuple[str | None, str | None]
"""Namespace and hash of an entry: the model is another path where a stand-in answers, and layers are fewer."""

Stretch = Any
"""KV of tokens that are stored together, as an array (layer, plane, token, number) of the stored number format."""


def foretold(scheme_id: str, manifest: Manifest, request: Request) -> list[Entry]:
    """Return what a prompt's entries are called, in the order of the prompt.

    Raises:
        CannotStageError: something is unknown that names depend on.

    """
    scheme = SCHEMES[scheme_id]
    found = scheme.predict(manifest, request)
    if found.names is None:
        raise CannotStageError(f"under which names entries lie is not known: {'; '.join(found.unknown)}")
    return list(dict.fromkeys(_entry(key) for key in _parsed(scheme, found.names)))


def stored(scheme_id: str, places: Places) -> dict[Entry, list[StoredKey]]:
    """Return what lies in the store that is in place; what one entry is made of, in no order."""
    found: dict[Entry, list[StoredKey]] = {}
    for key in _parsed(SCHEMES[scheme_id], places.names()):
        found.setdefault(_entry(key), []).append(key)
    return found


def _parsed(scheme: Scheme, names: Iterable[str]) -> Iterator[StoredKey]:
    for name in names:
        if (found := scheme.parse(name)) is not None:
            yield found


def _entry(key: StoredKey) -> Entry:
    return key.namespace, key.hash
