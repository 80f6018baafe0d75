"""Every scheme there is, by the id of the connector's profile."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.stores.keys import (
    aibrix,
    lmcache,
    lmcache_mp,
    sglang_hicache,
    vllm_blocks,
    vllm_example,
    vllm_mooncake,
    vllm_offload,
)
from kvgate.stores.keys.stored import Scheme, StoredKey

_SCHEMES: tuple[Scheme, ...] = (
    aibrix.SCHEME,
    lmcache.SCHEME,
    lmcache_mp.SCHEME,
    sglang_hicache.FILES,
    sglang_hicache.OBJECTS,
    sglang_hicache.PIECES,
    vllm_blocks.SCHEME,
    vllm_example.SCHEME,
    vllm_mooncake.SCHEME,
    vllm_offload.FILES,
    vllm_offload.OBJECTS,
)

SCHEMES: Mapping[str, Scheme] = {scheme.connector: scheme for scheme in _SCHEMES}

STORED: Mapping[str, Scheme] = {name: scheme for name, scheme in SCHEMES.items() if scheme.lies_in_stores}
"""Those whose entries lie in stores."""

LONGEST = 4096
"""Characters of a name that is read: no path is longer, and no connector makes a longer key."""


def readings(name: str, connector: str | None = None) -> tuple[StoredKey, ...]:
    """Return every way in which a name can be read.

    Args:
        name: as it lies in the store.
        connector: the id of the connector that stored it; of any whose entries lie in stores where ``None``.

    Returns:
        Nothing where it is of no scheme. Several where connectors share a form: then nothing says which one it was.

    """
    if len(name) > LONGEST:
        return ()
    schemes = STORED.values() if connector is None else (SCHEMES[connector],)
    return tuple(found for scheme in schemes if (found := scheme.parse(name)) is not None)
