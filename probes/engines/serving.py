"""Whether what runs here is what serves: only then numbers that are measured here say something of the deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known

_CPU = "cpu"
_BACKENDS = (None, "CPU_ATTN")  # all that vLLM 0.32.0 has there, MLA aside
_ONE = (None, 1)
CONNECTORS = ("kv-transfer-config", "lmcache-server")
"""What of ``engine.args`` is of the connector, which is started with settings of its own."""

_ADDRESSES = frozenset({"lmcache.mp.host", "lmcache.mp.port", "lmcache.mp.mq_timeout"})
_ROOM = ("l1-", "eviction-", "http-", "prometheus-", "host", "port", "max-workers")
"""How settings of LMCache's server begin that decide where it listens and how much it keeps in memory."""


@dataclass(frozen=True)
class Ran:
    """What one side was run with.

    Attributes:
        vllm: its version.
        lmcache: LMCache's; ``None`` where it is not installed.
        device: vLLM's name for the kind of device.
        launched: a launch file's flags and variables were used, not what a manifest amounts to.
        ranks: that shared the tensors.

    """

    vllm: str
    lmcache: str | None
    device: str
    launched: bool
    ranks: int = 1


def ran_with(told: Mapping[str, str], *, launched: bool, ranks: int) -> Ran:
    """Return what a process with vLLM in it runs engines with.

    Args:
        told: its versions.
        launched: see :class:`Ran`.
        ranks: see :class:`Ran`.

    """
    return Ran(str(told["vllm"]).partition("+")[0], told.get("lmcache"), str(told["device"]), launched, ranks)


def unlike_serving(deployment: Manifest, other: Manifest, ran: Ran) -> Iterator[tuple[str, str]]:
    """Yield what of a deployment did not run, by its path in the manifest, and why.

    What is not known did not run: nothing says that it is the same.

    Args:
        deployment: that is said to serve.
        other: the one that it is compared with.
        ran: what ran for it.

    """
    value = deployment.value
    if value("engine.name") != "vllm":
        yield "engine.name", "vLLM ran"
    if value("engine.version") != ran.vllm:
        yield "engine.version", f"vLLM {ran.vllm} ran, and {value('engine.version') or 'an unknown one'} serves"
    for path in ("engine.image", "engine.packages"):
        # Of two builds of one version this one may be either, or neither.
        if not (isinstance(deployment.get(path), Known) and value(path) == other.value(path) and other.knows(path)):
            yield path, "not known to be the same on both sides, and what ran is not known to be either"
    if ran.device != _CPU or str(value("engine.accelerator")).lower() != _CPU:
        yield "engine.accelerator", f"it ran on a {ran.device}, and {value('engine.accelerator') or 'it'} serves"
    if not deployment.knows("engine.attention_backend") or value("engine.attention_backend") not in _BACKENDS:
        yield "engine.attention_backend", "another one ran"
    if not deployment.unset("engine.speculative"):
        yield "engine.speculative", "no draft ran"
    if not deployment.knows("engine.args") or not (ran.launched or not value("engine.args")):
        yield "engine.args", "no launch file was given, so these flags were not used"
    elif unused := sorted(_unused(value("engine.args") or {})):
        yield "engine.args", f"the connector that was started has settings of its own: {', '.join(unused)} not used"
    if deployment.value("cache.connector") != "vllm-example" and value("cache.version") != ran.lmcache:
        yield "cache.version", f"LMCache {ran.lmcache} ran, and {value('cache.version') or 'an unknown one'} serves"
    if value("cache.serde") not in (None, "naive") or not deployment.knows("cache.serde"):
        yield "cache.serde", "entries were stored as they are"
    sizes = value("parallelism")
    if not sizes or (sizes.get("tensor") or 1) != ran.ranks or not alone(sizes, but=("data", "tensor")):
        yield "parallelism", f"{ran.ranks} {'rank' if ran.ranks == 1 else 'ranks'} ran"


def alone(sizes: Mapping[str, int | None], *, but: tuple[str, ...]) -> bool:
    """Whether nothing is shared out in any way but these."""
    return all(size in _ONE for name, size in sizes.items() if name not in but)


def _unused(flags: Mapping[str, Any]) -> set[str]:
    """Return settings of a connector that may decide what an entry holds."""
    transfer = flags.get(CONNECTORS[0]) or {}
    extra = transfer.get("kv_connector_extra_config") or {}
    found = {*(transfer.keys() - {"kv_connector_extra_config"}), *(extra.keys() - _ADDRESSES)}
    return found | {name for name in flags.get(CONNECTORS[1]) or {} if not name.startswith(_ROOM)}
