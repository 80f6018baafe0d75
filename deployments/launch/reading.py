"""The files of ``--from``: which kind each is, and the one deployment that they describe together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.invocation import find_invocation
from kvgate.deployments.launch.kubernetes import Server, kubernetes_servers
from kvgate.deployments.launch.objects import is_kubernetes
from kvgate.deployments.launch.pools import as_pools, pools_differ_in
from kvgate.deployments.launch.vllm import vllm_facts
from kvgate.rules.errors import InputError

_MAX_SHOWN = 6


@dataclass(frozen=True)
class LaunchFile:
    """One file of ``--from``.

    Attributes:
        name: what to call it.
        data: its content.
        beside: the files that it may name, by the name in it.
        only: which of the servers in it is meant, by the name of its object, pool or container.
    """

    name: str
    data: bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)
    only: str | None = None

    def text(self) -> str:
        """Return its content as text.

        Raises:
            InputError: it is not UTF-8.
        """
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {error.start})", where=self.name) from None


def read_launch(files: Sequence[LaunchFile]) -> list[LaunchFacts]:
    """Return the deployments that the files start; a capture takes one.

    Kubernetes files are read together: one holds the ConfigMap that another names.

    Raises:
        InputError: a file that cannot be read, that starts nothing, or that starts several servers.
    """
    objects = [one for one in files if is_kubernetes(one.text())]
    found = [_line(one) for one in files if one not in objects]
    if objects:
        servers = kubernetes_servers([(one.name, one.data) for one in objects])
        found.append(_deployment(_chosen(servers, objects), objects))
    return found


def _line(file: LaunchFile) -> LaunchFacts:
    if file.only is not None:
        raise InputError("is one launch line: there is nothing to choose from", where=f"{file.name}#{file.only}")
    return vllm_facts(find_invocation(file.text(), file.name), file.name, file.beside)


def _chosen(servers: Sequence[Server], files: Sequence[LaunchFile]) -> list[Server]:
    """Return the servers that are meant.

    Workers that join another's server without answering requests (``--headless``) are part of it.
    """
    only = [one.only for one in files if one.only is not None]
    chosen = [server for server in servers if all(name in server.names for name in only)]
    leading = [one for one in chosen if not any(word.text == "--headless" for word in one.run.arguments)]
    if not chosen and servers:
        raise InputError(f"no server is called {only[0]!r}", where=_where(files), hint=_named(servers))
    if not chosen:
        raise InputError(
            "no container starts a server that kvgate reads",
            where=_where(files),
            hint="expected a command or arguments of vLLM, or its own image",
        )
    return leading or chosen


def _deployment(servers: Sequence[Server], files: Sequence[LaunchFile]) -> LaunchFacts:
    """Return what the servers are together: one, or the pools of one deployment.

    Raises:
        InputError: they are servers of different models.
    """
    facts = [vllm_facts(one.run, one.source, one.run.files) for one in servers]
    different = [one for at, one in enumerate(facts) if all(_bare(one) != _bare(other) for other in facts[:at])]
    if len(different) == 1:
        return facts[0]
    names = [one.pool for one in servers]
    if (why := pools_differ_in(facts)) is None and len(set(names)) == len(names):
        return as_pools(dict(zip(names, facts, strict=True)), _where(files))
    reason = f"which differ in their {why}" if why else "of one name"
    message = f"{len(servers)} containers start a server each, {reason}: {_named(servers)}"
    raise InputError(message, where=_where(files), hint="choose one: add #NAME to the file, of its object or container")


def _bare(facts: LaunchFacts) -> LaunchFacts:
    return replace(facts, source="")


def _where(files: Sequence[LaunchFile]) -> str:
    return " and ".join(one.name for one in files[:2])


def _named(servers: Sequence[Server]) -> str:
    return "; ".join(one.source for one in servers[:_MAX_SHOWN])
