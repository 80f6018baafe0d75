"""What a producer in this package found about a pair of deployments, as evidence bound to both."""

from __future__ import annotations

from typing import Any

from kvgate.rules.evidence import Coverage, Evidence, Kind, State, subject_of
from kvgate.rules.manifest import Manifest

NAMED = 20
"""How many tensors or conversations are named in figures; all are counted."""


def about(
    kind: Kind, state: State, old: Manifest, new: Manifest, reason: str, figures: dict[str, Any], coverage: Coverage
) -> Evidence:
    """Return evidence of one kind, bound to the sections of both deployments that its kind names.

    Args:
        kind: what was examined.
        state: what came of it.
        old: the old deployment.
        new: the new one.
        reason: one clause: what was found, or why it is not proved.
        figures: numbers and names, as JSON.
        coverage: what was examined, what was not, and why.
    """
    from kvgate import __version__

    return Evidence(
        schema="kvgate/evidence/v1",
        kind=kind,
        state=state,
        old=subject_of(old, kind),
        new=subject_of(new, kind),
        coverage=coverage,
        tools={"kvgate": __version__},
        figures=figures,
        reason=reason,
    )
