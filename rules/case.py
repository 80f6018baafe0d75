"""What a decision is asked about, and how it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import Pack
from kvgate.rules.profile import Profile
from kvgate.rules.waivers import Waiver

Verdict = Literal["verified-compatible-reuse", "new-namespace", "clear"]
VERDICTS: tuple[Verdict, ...] = ("verified-compatible-reuse", "new-namespace", "clear")
Strategy = Literal["rolling", "recreate"]


@dataclass(frozen=True)
class Options:
    """How a decision is asked for.

    Attributes:
        strategy: ``recreate`` drains the old workers before the new ones start.
        declare_clear: the operator deletes the old deployments' entries as part of this change.
        accept: verdicts that the caller accepts.
        advisory: report, never refuse.
        as_of: the date against which waivers expire, ``YYYY-MM-DD``.

    """

    strategy: Strategy = "rolling"
    declare_clear: bool = False
    accept: frozenset[Verdict] = frozenset()
    advisory: bool = False
    as_of: str = "1970-01-01"


@dataclass(frozen=True)
class Case:
    """Everything a decision is made from.

    Attributes:
        old: every deployment that wrote into the namespace; empty for a first deployment.
        new: the deployment to be rolled out.
        profiles: connector profiles by id; the shipped ones where ``None``.

    """

    old: tuple[Manifest, ...]
    new: Manifest
    pack: Pack
    evidence: tuple[Evidence, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    options: Options = field(default_factory=Options)
    profiles: Mapping[str, Profile] | None = None
