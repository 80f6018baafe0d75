"""Gathering: what the files at hand say about a pair of deployments, as evidence. Impure; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from kvgate.inputs import sidecar_path
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.token_evidence import Asked, token_evidence
from kvgate.weight_evidence import weight_evidence
from kvgate.weight_maps import tensor_map


def gather(old: Sequence[Manifest], new: Manifest, asked: Asked) -> list[Evidence]:
    """Compare what lies beside the manifests, or where their tokenizers can be loaded from.

    Args:
        old: the old deployments.
        new: the new one.
        asked: what there is to compare beside what lies there.

    Returns:
        ``weights-identity`` and ``token-identity`` evidence for each old deployment, where there was
        something to compare; what could not be compared is said in its coverage.

    Raises:
        InputError: a sidecar that is missing, exchanged, or contradicts its manifest or the other side's.

    """
    *old_maps, new_map = [tensor_map(manifest) for manifest in (*old, new)]
    # By position: what is given as plain data has no name, and two manifests may have one.
    *old_snapshots, new_snapshot = [sidecar_path(manifest, "tokenizer.snapshot") for manifest in (*old, new)]
    evidence: list[Evidence] = []
    for number, (one, old_map, snapshot) in enumerate(zip(old, old_maps, old_snapshots, strict=True)):
        asked.progress("comparing deployments", number, len(old), "deployments")
        evidence += weight_evidence(one, new, old_map, new_map)
        evidence += token_evidence(one, new, snapshot, new_snapshot, asked)
    return evidence
