"""A server found in a deployment file, and which of several is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvgate.deployments.launch.invocation import Invocation
from kvgate.rules.errors import InputError

_MAX_SHOWN = 6


@dataclass(frozen=True)
class Server:
    """One container that starts an engine.

    Attributes:
        names: what it can be told apart by: the object, its container, the part of the object.
        pool: what to call it among others of one deployment.
        source: what to call it.
        run: the server's command, and the files that are mounted for it.
        beside: the files of this machine that it may name.
    """

    names: frozenset[str]
    pool: str
    source: str
    run: Invocation
    beside: Mapping[str, bytes] = field(default_factory=dict)


def chosen(servers: Sequence[Server], only: Sequence[str], where: str) -> tuple[list[Server], list[Server]]:
    """Return the servers that are meant, and the workers that join them without answering requests (``--headless``).

    Args:
        servers: all that were found.
        only: names that each must have.
        where: what to call the files in errors.

    Raises:
        InputError: there is none.
    """
    meant = [server for server in servers if all(name in server.names for name in only)]
    leading = [one for one in meant if not any(word.text == "--headless" for word in one.run.arguments)]
    if not meant and servers:
        raise InputError(f"no server is called {only[0]!r}", where=where, hint=f"#NAME is one of: {_names(servers)}")
    if not meant:
        raise InputError(
            "no container starts a server that kvgate reads",
            where=where,
            hint="expected a command of vLLM or SGLang, or vLLM's own image; of a custom resource give the pods that "
            "its controller makes (`kubectl get pods -o yaml`), of compose files that lie over each other what "
            "`docker compose config` prints",
        )
    return (leading, [one for one in meant if one not in leading]) if leading else (meant, [])


def _names(servers: Sequence[Server]) -> str:
    """List the names that choose among servers; without any, what they are called in errors."""
    found = sorted(set().union(*(one.names for one in servers)))
    return ", ".join(found[:_MAX_SHOWN]) or named(servers)


def named(servers: Sequence[Server]) -> str:
    """Name servers for an error."""
    return "; ".join(one.source for one in servers[:_MAX_SHOWN])
