"""What stands between engines and scratch stores for a rehearsal, and which of it a deployment stores with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from kvgate.probes.engines.entries import Stretch
from kvgate.probes.engines.layout import Layout
from kvgate.probes.engines.places import Places
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.manifest import Manifest
from kvgate.rules.places import tiers
from kvgate.rules.profile import cover
from kvgate.stores.keys.stored import Request

Kind = Literal["example", "files", "redis"]
"""vLLM's example connector; LMCache's server in front of files, or of a Redis."""


class Connector(Protocol):
    """One connector, as engines of one side use it."""

    transfer: Mapping[str, Any]
    """The engine's ``--kv-transfer-config``, but for what a launch line has beside it."""

    places: Places

    def forget(self) -> None:
        """Have it forget what it remembers of the store that was in place before."""

    def settled(self, manifest: Manifest, request: Request) -> None:
        """Wait until all of a prompt that is ever written has been.

        Raises:
            CannotStageError: it does not come.

        """

    def held(self, manifest: Manifest, request: Request) -> int:
        """Return how many tokens of a prompt lie in the store that is in place."""

    def stored(self, manifest: Manifest, request: Request, layout: Layout) -> list[Stretch]:
        """Read what lies in the store that is in place for a prompt, as an engine of this layout understands it.

        Returns:
            Its leading stretches, in order; none where nothing lies there.

        Raises:
            UnlikeError: it is something that no such engine can have written.
            CannotStageError: under which names it lies is not known.

        """


def kind_of(manifest: Manifest) -> Kind:
    """Return what one deployment stores with.

    Raises:
        CannotStageError: nothing that is started here.

    """
    if manifest.unset("cache.connector"):
        raise CannotStageError("cache.connector is null: nothing outlives the engine, so that there is no old entry")
    covered = cover(manifest)
    name = covered.profile.id if covered.profile is not None else manifest.value("cache.connector")
    if name == "vllm-example":
        return "example"
    if name != "lmcache-mp":
        raise CannotStageError(f"cache.connector: {name} is not started here; vllm-example and lmcache-mp are")
    kinds = {
        tier.partition("://")[0] if "://" in tier else "file" for tier in tiers(str(manifest.value("cache.location")))
    }
    if len(kinds) != 1 or not kinds <= {"file", "fs", "redis", "rediss"}:
        raise CannotStageError(
            f"cache.location: LMCache is started here on files or on one Redis, not on {sorted(kinds)}"
        )
    if manifest.value("cache.chunk_size") is None:
        raise CannotStageError("cache.chunk_size is not known")
    return "files" if kinds <= {"file", "fs"} else "redis"


def redis_of(redis: Path | None) -> Path:
    """Return the program that a store in a Redis is staged with.

    Raises:
        CannotStageError: there is none.

    """
    if redis is None:
        raise CannotStageError("cache.location is a Redis, and there is no redis-server to start")
    return redis
