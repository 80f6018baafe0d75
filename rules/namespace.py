"""The derived namespace id: a function of identity alone, so that equal deployments meet and unlike ones do not."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import lru_cache

from kvgate.rules.canonical import canonical_json
from kvgate.rules.identity import identity, missing_identity
from kvgate.rules.manifest import Manifest

PREFIX = "kvg1-"
_BYTES = 20  # 160 bits in 32 characters: short enough for a path or a salt, long enough that nobody finds a twin


@dataclass(frozen=True)
class Derived:
    """The id of a deployment, or what is missing to derive one.

    Attributes:
        id: ``kvg1-`` and 32 characters of ``a-z2-7``; ``None`` while anything that counts is unknown, since
            two deployments that differ in what nobody knows would share it.
        missing: ``(dimension, what would settle it)``, most useful first.

    """

    id: str | None
    missing: tuple[tuple[str, str], ...]


@lru_cache(maxsize=256)
def derive(manifest: Manifest) -> Derived:
    """Derive the namespace id of a deployment. Location, namespace and labels do not enter it."""
    missing = missing_identity(manifest)
    if missing:
        return Derived(None, tuple((dimension.id, dimension.settle) for dimension in missing))
    hashed = hashlib.sha256(b"kvgate/namespace/v1\x00" + canonical_json(identity(manifest))).digest()
    return Derived(PREFIX + base64.b32encode(hashed[:_BYTES]).decode("ascii").lower(), ())
