"""What the manifests alone ask for: reuse or separation, and for what reasons."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.probes.rehearsal.seen import Claim
from kvgate.rules.boundary import about_the_target
from kvgate.rules.case import Case
from kvgate.rules.decide import decide
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack

_ALONE = " (of the new one alone)"


@dataclass(frozen=True)
class Asks:
    """What two manifests ask for.

    Attributes:
        claim: reuse where nothing in them demands anything else.
        because: dimensions that make them ask for separation, in order.
        reachable: those of them whose difference is in the entries, and not in where they lie.
        unknown: dimensions that ask for separation because they are not known.
        touched: all dimensions in which they differ, or cannot be compared.

    """

    claim: Claim
    because: tuple[str, ...]
    reachable: tuple[str, ...]
    unknown: frozenset[str]
    touched: frozenset[str]


def asks_of(old: Manifest, new: Manifest) -> Asks:
    """Say what the manifests alone ask for."""
    decision = decide(Case(old=(old,), new=new, pack=shipped_pack("default")))
    demanding = [one for one in decision.findings if one.obligations]
    between = [one for one in demanding if one.baseline is not None]
    return Asks(
        "reuse" if decision.verdict == "verified-compatible-reuse" else "separate",
        tuple(
            dict.fromkeys(one.change.dimension + ("" if one in between else _ALONE) for one in (*between, *demanding))
        ),
        tuple(dict.fromkeys(one.change.dimension for one in between if not about_the_target(one.change))),
        frozenset(one.change.dimension for one in between if one.unverified),
        frozenset(one.change.dimension for one in decision.findings),
    )
