"""The derived namespace id: a function of identity alone, so that equal deployments meet and unlike ones do not."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvgate.rules.canonical import canonical_json
from kvgate.rules.identity import identity, missing_identity
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import pools

PREFIX = "kvg1-"
_ID = re.compile(rf"{PREFIX}[a-z2-7]{{32}}")
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
    """Derive the namespace id of a deployment. Location, namespace and labels do not enter it.

    A deployment with pools is what its pools are, each by its own identity, whatever they are called: what counts is
    asked of the pool that has it. Where all are the same, it is the id of a deployment without pools. Where they file
    in several places, which of them files where enters too: in exchanged places they would find each other's entries.
    """
    members = [pool.manifest for pool in pools(manifest)]
    missing = {dimension.id: dimension for member in members for dimension in missing_identity(member)}
    if missing:
        ordered = sorted(missing.values(), key=lambda dimension: dimension.order)
        return Derived(None, tuple((dimension.id, dimension.settle) for dimension in ordered))
    whole = _together(members)
    hashed = hashlib.sha256(b"kvgate/namespace/v1\x00" + whole).digest()
    return Derived(PREFIX + base64.b32encode(hashed[:_BYTES]).decode("ascii").lower(), ())


def _together(members: Sequence[Manifest]) -> bytes:
    filed = {(canonical_json(identity(member)).decode(), _place(member)) for member in members}
    if len(what := {one for one, _ in filed}) == 1:
        return what.pop().encode()
    apart = len({place for _, place in filed}) > 1
    return canonical_json([[one, *place] if apart else [one] for one, place in sorted(filed)])


def _place(member: Manifest) -> tuple[str, str]:
    """Return where a pool files, apart from derived ids in it, which come after this one is known."""
    namespace = str(member.value("cache.namespace"))
    behind = _ID.split(namespace)
    return _ID.sub("", str(member.value("cache.location"))).rstrip("/"), behind[-1] if len(behind) > 1 else ""
