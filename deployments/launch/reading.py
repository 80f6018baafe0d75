"""The files of ``--from``: which kind each is, and the one deployment that they describe together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from kvgate.deployments.launch.compose import compose_servers, is_compose
from kvgate.deployments.launch.dynamo import dynamo_facts
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.invocation import Invocation, find_invocation, servers_in_script
from kvgate.deployments.launch.known_secrets import without_known_secrets
from kvgate.deployments.launch.kubernetes import kubernetes_servers
from kvgate.deployments.launch.makers.charts import chart_objects, chart_of_values, is_chart
from kvgate.deployments.launch.named_files import NamedFiles
from kvgate.deployments.launch.objects import is_kubernetes
from kvgate.deployments.launch.pools import as_pools, pools_differ_in, with_workers
from kvgate.deployments.launch.servers import Server, chosen, named
from kvgate.deployments.launch.sglang import sglang_facts
from kvgate.deployments.launch.store_server import ENGINE, SAID_BY_SERVER, with_store
from kvgate.deployments.launch.trtllm import trtllm_facts
from kvgate.deployments.launch.vllm import vllm_facts
from kvgate.rules.errors import InputError

_ENGINES = {"vllm": vllm_facts, "sglang": sglang_facts, "tensorrt-llm": trtllm_facts}


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

    Kubernetes files are read together: one holds the ConfigMap that another names, and so do Helm values with the
    description of their chart. A YAML or JSON file that starts nothing is one that a server is told to read
    (``--config``, ``LMCACHE_CONFIG_FILE``).

    Raises:
        InputError: a file that cannot be read, that starts nothing, that starts several servers, or that no server
            is told to read.
    """
    kinds = {one.name: _kind(one) for one in files}
    objects, projects, lines, data, values, charts = (
        [one for one in files if kinds[one.name] == kind]
        for kind in ("kubernetes", "compose", "line", "data", "values", "chart")
    )
    handed = _Handed(data)
    started = [(servers_of_line(one), [one]) for one in lines]
    started += [(compose_servers(one.name, one.data), [one]) for one in projects]
    if charts and not values:
        raise InputError("describes a chart, and no values of it were given", where=charts[0].name)
    if objects or values:
        made = chart_objects([(one.name, one.data) for one in values], [(one.name, one.data) for one in charts])
        servers = kubernetes_servers([(one.name, one.data) for one in objects], made)
        started.append((servers, [*objects, *values, *charts]))
    stores = [one for servers, _ in started for one in servers if one.run.engine == ENGINE]
    engines = [([one for one in servers if one.run.engine != ENGINE], given) for servers, given in started]
    # A file that starts a store alone belongs to the others.
    engines = [(own, given) for (own, given), (all_, _) in zip(engines, started, strict=True) if own or not all_]
    if not engines and stores:
        raise InputError("starts a store and no engine", where=stores[0].source, hint="give the engine's file as well")
    found = [_deployment(own, given, handed) for own, given in engines]
    handed.refuse_unused()
    return [_connected(one, stores) for one in found]


def _connected(facts: LaunchFacts, stores: Sequence[Server]) -> LaunchFacts:
    """Return the facts with what the store's server says; with several that differ, nobody knows which one serves."""
    told = [with_store(facts, one.run, one.source) for one in stores]
    if not told:
        return facts
    other = next((at for at, one in enumerate(told) if replace(one, notes=()) != replace(told[0], notes=())), None)
    if other is None:
        return told[0]
    reason = f"{stores[0].source} and {stores[other].source} start stores that differ, and which one serves is not said"
    return replace(
        facts, unknown=tuple((path, reason if path in SAID_BY_SERVER else why) for path, why in facts.unknown)
    )


def bare_facts(engine: str) -> LaunchFacts:
    """Return what a server says that is started without any setting of its own: the engine's defaults.

    Of SGLang's the keys are set that keep strangers from changing it while it serves.
    """
    if engine == "sglang":
        text = "python -m sglang.launch_server --model-path model --admin-api-key given"
        return sglang_facts(find_invocation(text, "defaults"), "defaults", {})
    if engine == "tensorrt-llm":
        return trtllm_facts(find_invocation("trtllm-serve model", "defaults"), "defaults", {})
    return vllm_facts(find_invocation("vllm serve model", "defaults"), "defaults", {})


def _kind(file: LaunchFile) -> Literal["kubernetes", "compose", "line", "data", "values", "chart"]:
    text = file.text()
    if is_kubernetes(text):
        return "kubernetes"
    if is_compose(text):
        return "compose"
    if is_chart(text):
        return "chart"
    if chart_of_values(text) is not None:
        return "values"
    return "data" if PurePosixPath(file.name).suffix.lower() in (".yaml", ".yml", ".json") else "line"


class _Handed:
    """The files that were handed in for servers to read, and whether any does."""

    def __init__(self, files: Sequence[LaunchFile]) -> None:
        self._files: dict[str, LaunchFile] = {}
        for one in files:
            last = PurePosixPath(one.name).name
            if last in self._files:
                message = f"has the name of {self._files[last].name}: which of them is read is not known"
                raise InputError(message, where=one.name, hint="give one of them")
            self._files[last] = one
        self._used: set[str] = set()

    def facts(self, run: Invocation, source: str, beside: Mapping[str, bytes]) -> LaunchFacts:
        files = NamedFiles(run, beside, {name: one.data for name, one in self._files.items()})
        engine = _ENGINES[run.engine]
        facts = dynamo_facts(run, source, files, engine) if run.worker else engine(run, source, files)
        self._used |= files.used
        return without_known_secrets(facts, run)

    def refuse_unused(self) -> None:
        for name, one in self._files.items():
            if name not in self._used:
                raise InputError(
                    "starts no server, and no launch file given with it names it",
                    where=one.name,
                    hint="give the file that starts the server: a script, Kubernetes objects, or what `helm template` "
                    "makes of values",
                )


def servers_of_line(file: LaunchFile) -> list[Server]:
    """Find the servers that a script starts: an engine's, and the store's that it is connected to.

    Raises:
        InputError: none, or two of a kind.
    """
    found = servers_in_script(file.text(), file.name)
    for store in (True, False):
        same = [one for one in found if (one.engine == ENGINE) == store]
        if len(same) > 1:
            raise InputError(
                f"starts {len(same)} servers", where=file.name, hint="give the line that starts one server"
            )
    return [Server(frozenset(), file.name, file.name, one, file.beside) for one in found]


def _deployment(servers: Sequence[Server], files: Sequence[LaunchFile], handed: _Handed) -> LaunchFacts:
    """Return what the servers that are meant are together: one, or the pools of one deployment.

    Args:
        servers: all that the files start.
        files: the files.
        handed: what the servers may be told to read.

    Raises:
        InputError: there is none, or they are servers of different models.
    """
    only = [one.only for one in files if one.only is not None]
    all_ = servers
    servers, joining = chosen(all_, only, _where(files))
    neighbours = tuple(_neighbours([one for one in all_ if one not in servers], handed))
    workers = [handed.facts(one.run, one.source, one.beside) for one in joining]
    facts = [with_workers(handed.facts(one.run, one.source, one.beside), workers) for one in servers]
    bare = [replace(one, source="") for one in facts]
    if all(one == bare[0] for one in bare[1:]):
        return replace(facts[0], neighbours=neighbours)
    names = [one.pool for one in servers]
    if (why := pools_differ_in(facts)) is None and len(set(names)) == len(names):
        return replace(as_pools(dict(zip(names, facts, strict=True)), _where(files)), neighbours=neighbours)
    reason = f"which differ in their {why}" if why else "of one name"
    message = f"{len(servers)} containers start a server each, {reason}: {named(servers)}"
    raise InputError(message, where=_where(files), hint="choose one: add #NAME to the file, of its object or container")


def _neighbours(servers: Sequence[Server], handed: _Handed) -> Iterator[LaunchFacts]:
    """Yield what servers that are not meant are; one that cannot be read is nobody's business."""
    for one in servers:
        with suppress(InputError):
            yield handed.facts(one.run, one.source, one.beside)


def _where(files: Sequence[LaunchFile]) -> str:
    return " and ".join(one.name for one in files[:2])
