"""Who answers at a URL: one process, or several behind a balancer.

Each replica has a cache in its memory, and in the midst of a rollout perhaps other weights. What one of them answers
says nothing of the others, and what is compared must have been answered by one and the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvgate.corpora.endpoints.client import Client

LOOKS = 4  # on a connection each: two that take turns are seen both, two that are drawn in seven of eight cases
SEVERAL = "several processes answer there: ask each replica by its own address"
NOT_TOLD = "whether it was one process is not told: behind a balancer this speaks of one replica or another"

_STARTED = re.compile(r"^process_start_time_seconds (\S{1,40})$", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """Who answered.

    Attributes:
        processes: a mark for each process that was seen.
        certain: equal marks are one process, and it has one cache. Otherwise only different ones say something.
        configurations: what answers name as the configuration that made them (``system_fingerprint``).

    """

    processes: frozenset[str] = frozenset()
    certain: bool = False
    configurations: frozenset[str] = frozenset()

    @property
    def several(self) -> bool:
        """Whether more than one was seen."""
        return len(self.processes) > 1 or len(self.configurations) > 1

    @property
    def one(self) -> bool:
        """Whether it was one each time: a balancer that leads everybody to a replica of its own is not noticed."""
        return self.certain and len(self.processes) == 1 and not self.several

    @property
    def missing(self) -> dict[str, str]:
        """What evidence does not know of it."""
        return {} if self.one else {"replicas": SEVERAL if self.several else NOT_TOLD}


def look(client: Client, engine: str | None, times: int = LOOKS) -> Seen:
    """Ask a server which process answers, each time over another connection.

    vLLM: when it started, which Python's metrics tell (``process_start_time_seconds`` at ``/metrics`` where one process
    serves the API; 0.32.0). SGLang: its seed, which is drawn where none is given (``random_seed`` at ``/server_info``;
    ``ServerArgs``, 0.5.23, read and not run): different ones are two processes, and equal ones may have been given.

    Args:
        client: of it; its connection is another one afterwards.
        engine: what it is; ``None``: nothing is known to be asked.
        times: how often.

    Raises:
        InputError: it cannot be reached.

    """
    if engine not in ("vllm", "sglang"):
        return Seen()
    marks: set[str] = set()
    certain = engine == "vllm"
    for _ in range(times):
        client.hang_up()
        mark, alone = _started(client) if engine == "vllm" else (_seed(client), False)
        if mark is None:
            return Seen(frozenset(marks))
        marks.add(mark)
        certain &= alone
    return Seen(frozenset(marks), certain)


def together(seen: Iterable[Seen]) -> Seen:
    """Return who answered at any of several times; a time at which it was not told leaves nothing certain."""
    times = list(seen)
    return Seen(
        frozenset().union(*(one.processes for one in times)),
        bool(times) and all(one.certain for one in times),
        frozenset().union(*(one.configurations for one in times)),
    )


def _started(client: Client) -> tuple[str | None, bool]:
    """Return when a vLLM started, and whether it has one cache.

    Several engines take turns, with a cache each. A router has metrics of its own, and tells of no cache.
    """
    text = client.get("/metrics").text or ""
    found = _STARTED.search(text)
    return (found[1], len(_CACHE.findall(text)) == 1) if found is not None else (None, False)


def _seed(client: Client) -> str | None:
    for path in ("/server_info", "/get_server_info"):
        answer = client.get(path)
        if answer.ok and isinstance(answer.data, dict):
            seed = answer.data.get("random_seed")
            return str(seed) if type(seed) is int else None
    return None
