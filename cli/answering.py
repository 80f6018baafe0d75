"""Evidence that answers what was refuted before: which it may, and whether it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.rules.evidence import Evidence, Kind
    from kvgate.rules.manifest import Manifest


@dataclass(frozen=True)
class Earlier:
    """A refutation that was made before, and where it was read."""

    file: str
    evidence: Evidence


def earlier_refutations(
    files: Iterable[Path], kinds: Sequence[Kind], old: Manifest | None, new: Manifest
) -> list[Earlier]:
    """Read the refutations that new evidence is to answer.

    Args:
        files: that hold them.
        kinds: of the new evidence.
        old: the deployments that it is about.
        new: likewise.

    Raises:
        InputError: one cannot be read, is no refutation of such a kind, or is about other deployments.

    """
    from kvgate.inputs import load_evidence
    from kvgate.rules.errors import InputError

    found = []
    for evidence, file, _ in load_evidence(files):
        if evidence.state != "refuted" or evidence.kind not in kinds:
            raise InputError(
                f"is {evidence.kind} evidence that is {evidence.state}: nothing that this can answer",
                where=file,
                hint="name the evidence that was refuted",
            )
        if not evidence.speaks_against(old, new):
            sides = " and ".join(side.source for side in (old, new) if side is not None)
            raise InputError(
                f"is about other deployments than {sides}: nothing of theirs is refuted by it",
                where=file,
                hint="leave it out",
            )
        found.append(Earlier(file, evidence))
    return found


def answers(found: Sequence[Evidence], earlier: Iterable[Earlier]) -> list[tuple[str, str | None]]:
    """Say of each earlier refutation, by its file, why it is not answered; ``None`` where it is."""
    of_kind = {one.kind: one for one in found}
    return [(one.file, of_kind[one.evidence.kind].why_no_answer(one.evidence)) for one in earlier]
