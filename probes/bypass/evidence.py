"""A bypass diff as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgate.probes.bypass.diff import BypassDiff, Verdict
from kvgate.probes.bypass.judging import Row
from kvgate.probes.readiness.fitting import listed, names_of
from kvgate.rules.evidence import Coverage, Evidence, State, subject_of
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import Pool

_NAMED = 20
_STATES: dict[Verdict, State] = {
    "cache implicated": "refuted",
    "cache not implicated": "proved",
    "cannot tell": "inconclusive",
}


def bypass_evidence(
    found: BypassDiff,
    new: Manifest,
    old: Manifest | None,
    *,
    asked: Sequence[Pool],
    missing: dict[str, str],
    tools: dict[str, str],
    command: str,
) -> Evidence:
    """Return what a bypass diff found as evidence about a deployment.

    It holds no text of a prompt or an answer, and no name of a request: lines of the file stand for them.

    Args:
        found: the bypass diff.
        new: what was asked.
        old: what filled the store before it; ``None``: nothing did, or nobody says.
        asked: the pools that the server may be of.
        missing: what else was not examined, and why.
        tools: name to version.
        command: what reproduces it.
    """
    counts = found.counts
    examined = {name: counts[name] for name in ("match", "near-tie", "differs") if counts[name]}
    rest = {name: f"{number} requests" for name, number in sorted(counts.items()) if name not in examined}
    if found.not_sent:
        rest["not sent"] = f"{found.not_sent} requests: the server had stopped answering"
    differing = [row for row in found.rows if row.outcome == "differs"]
    differences = [row.difference for row in found.rows if row.difference is not None]
    figures: dict[str, Any] = {
        "method": found.method,
        "tolerance": found.tolerance,
        "own_noise": found.noise,
        "largest_difference": max(differences, default=None),
        "differ": {"count": len(differing), "first": [_figures(row) for row in differing[:_NAMED]]},
        "cached_tokens": sum(row.cached or 0 for row in found.rows),
        "in_the_cache_before": sum(row.there for row in found.rows),
    }
    if named := names_of(asked):
        figures["pools"] = named
    return Evidence(
        schema="kvgate/evidence/v1",
        kind="bypass-diff",
        state=_STATES[found.verdict],
        old=None if old is None else subject_of(old, "bypass-diff"),
        new=subject_of(new, "bypass-diff"),
        coverage=Coverage(examined=examined, missing=rest | found.who.missing | missing),
        tools=tools,
        figures=figures,
        reason=f"{found.verdict}: {found.why}" if counts["differs"] else found.verdict,
        command=command,
    )


def why_no_answer(evidence: Evidence, refutation: Evidence) -> str | None:
    """Say why a bypass does not answer one that implicated the cache; ``None`` where it does.

    What one pool reads is nothing that another one does.
    """
    now, then = _pools(evidence), _pools(refutation)
    if len(now) > 1:
        return "which pool was asked is not known: --pool NAME says it"
    if now != then:
        return f"it is of pool {listed(now or ['none'])}, and that is of {listed(then or ['none'])}"
    return evidence.why_no_answer(refutation)


def _pools(evidence: Evidence) -> list[str]:
    named = evidence.figures.get("pools")
    return [str(name) for name in named] if isinstance(named, list) else []


def _figures(row: Row) -> dict[str, Any]:
    return {
        "line": row.line,
        "prompt_tokens": row.prompt,
        "cached_tokens": row.cached,
        "divergence": row.divergence,
        "unit": row.unit,
        "difference": row.difference,
    }
