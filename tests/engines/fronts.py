"""Several deployments on one real vLLM: each has an address, weights and a store of its own, and is there when asked.

An engine takes half a minute to start and a gigabyte of memory. This one loads the weights of whichever deployment is
asked, and finds the store of that one under the only path that it knows. What an engine keeps in its own memory is kept
apart by a salt, which the names of vLLM's example connector do not hold.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.corpora.endpoints.client import Client
from tests.corpora.engine_server import Answer, Engine, metrics, serving


@dataclass(frozen=True)
class Deployed:
    """A deployment: the folder of its weights, and the folder of its store."""

    weights: Path
    store: Path


@contextmanager
def fronts(engine: str, store: Path, deployments: Sequence[Deployed]) -> Iterator[list[str]]:
    """Serve deployments on one engine, and yield where each answers.

    Args:
        engine: where the engine answers; its development mode is on.
        store: the path at which it keeps its entries; a symbolic link.
        deployments: each gets an address.

    """
    one = threading.Lock()  # the engine is one deployment at a time
    loaded: list[Path] = []

    def front(number: int, deployed: Deployed) -> Engine:
        def answer(method: str, path: str, body: Any) -> Answer:
            if path == "/metrics":
                return 200, metrics(number)
            with one, Client(engine, seconds=120) as client:
                if method == "GET":
                    found = client.get(path)
                    return found.status, found.data if found.text is None else found.text
                if loaded != [deployed.weights]:
                    told = {"method": "reload_weights", "kwargs": {"weights_path": str(deployed.weights)}}
                    assert client.post("/collective_rpc", told).ok
                    loaded[:] = [deployed.weights]
                store.unlink()
                store.symlink_to(deployed.store)
                found = client.post(path, {**body, "cache_salt": f"{number} {body.get('cache_salt', '')}"})
                return found.status, found.data

        return Engine(answer)

    with ExitStack() as stack:
        yield [stack.enter_context(serving(front(*one))).url for one in enumerate(deployments, 1)]
