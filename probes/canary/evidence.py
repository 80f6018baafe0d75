"""Canaries and probes as evidence. It names no tenant and no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.probes.canary.echoes import Echoes
from kvgate.probes.canary.markers import Marker
from kvgate.probes.canary.probe import Isolation, State
from kvgate.probes.readiness.fitting import names_of
from kvgate.rules.evidence import Coverage, Evidence, subject_of
from kvgate.rules.evidence import State as EvidenceState
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import Pool
from kvgate.rules.values import Known

_STATES: dict[State, EvidenceState] = {"leaks": "refuted", "isolated": "proved", "cannot tell": "inconclusive"}


def state_of(found: Echoes, markers: Mapping[str, Marker], allowed: float) -> tuple[EvidenceState, str]:
    """Return what a stream of answers proves, and why.

    Args:
        found: the answers.
        markers: all tenants'.
        allowed: the share of answers that may lack a well-formed echo.
    """
    counts = found.counts
    if counts["foreign"]:
        answers = found.total - counts["unreadable"]
        return "refuted", f"{counts['foreign']} of {answers} answers hold another tenant's reference"
    if counts["unknown"] or counts["unreadable"]:
        what = "a reference of no known tenant" if counts["unknown"] else "no answer of a known tenant"
        return "inconclusive", f"{counts['unknown'] or counts['unreadable']} of {found.total} lines hold {what}"
    if not counts["own"]:
        return "inconclusive", "no answer holds a reference"
    without = counts["malformed"] + counts["missing"]
    if without > allowed * found.total:
        return "inconclusive", f"{without} of {found.total} answers do not echo their reference as they were told to"
    if len(found.tenants) < 2:
        return "inconclusive", "answers of one tenant alone show nothing of a boundary"
    if not all(markers[tenant].position for tenant in found.tenants):
        return "inconclusive", "nobody has looked whether the references stand in what is cached"
    if not all(_cached(markers[tenant]) for tenant in found.tenants):
        return "inconclusive", "a reference does not stand in what is cached"
    return "proved", f"{counts['own']} answers of {len(found.tenants)} tenants hold their own reference"


def _cached(marker: Marker) -> bool:
    return marker.position is not None and marker.position.cached


def echo_evidence(
    found: Echoes,
    markers: Mapping[str, Marker],
    allowed: float,
    new: Manifest,
    *,
    tools: dict[str, str],
    command: str,
) -> Evidence:
    """Return what a stream of answers held as evidence about a deployment."""
    state, why = state_of(found, markers, allowed)
    rest = {name: f"{found.counts[name]} answers" for name in ("malformed", "missing", "unknown", "unreadable")}
    figures: dict[str, Any] = {
        "answers": dict(found.counts),
        "tenants": len(found.tenants),
        "allowed_without_echo": allowed,
        "foreign_lines": [leak.line for leak in found.leaks],
    }
    return _about(
        state,
        why,
        new,
        Coverage(
            examined={"answers": found.counts["own"] + found.counts["foreign"]},
            missing={name: text for name, text in rest.items() if found.counts[name]},
        ),
        figures,
        tools,
        command,
    )


def isolation_evidence(
    found: Isolation,
    new: Manifest,
    *,
    asked: Sequence[Pool],
    missing: dict[str, str],
    tools: dict[str, str],
    command: str,
) -> Evidence:
    """Return what a probe found as evidence about a deployment.

    Args:
        found: the probe.
        new: the deployment.
        asked: its pools that the server may be of.
        missing: what else was not examined, and why.
        tools: name to version.
        command: what reproduces it.
    """
    figures: dict[str, Any] = {"by_tokens": found.tokens, "seed": found.seed}
    if named := names_of(asked):
        figures["pools"] = named
    if found.timing is not None:
        timing = found.timing
        figures["by_time"] = {
            "state": timing.state,
            "control": timing.warm,
            "other": timing.other,
            "power": timing.power,
            "seconds_saved": timing.saved,
            "seconds_gained": timing.gained,
        }
    if found.tokens is None:
        missing = {**missing, "cached tokens": "the server does not tell them"}
    missing = {**found.who.missing, **missing}
    state, why = _STATES[found.state], found.why
    if state == "refuted" and all(declares_no_boundary(pool.manifest) for pool in asked):
        state, why = "inconclusive", f"{why}; and cache.tenancy declares no boundary that it should not cross"
    return _about(
        state,
        why,
        new,
        Coverage(examined={"prefixes": len(found.samples)}, missing=missing),
        figures,
        tools,
        command,
    )


def declares_no_boundary(manifest: Manifest) -> bool:
    """Whether a deployment is known to keep no tenants apart."""
    tenancy = manifest.get("cache.tenancy")
    return isinstance(tenancy, Known) and (tenancy.value is None or tenancy.value.get("boundary") == "shared")


def _about(
    state: EvidenceState,
    why: str,
    new: Manifest,
    coverage: Coverage,
    figures: dict[str, Any],
    tools: dict[str, str],
    command: str,
) -> Evidence:
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="tenant-canary",
        state=state,
        new=subject_of(new, "tenant-canary"),
        coverage=coverage,
        tools=tools,
        figures=figures,
        reason=why,
        command=command,
    )
