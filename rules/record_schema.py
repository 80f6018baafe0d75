"""The published schema of the decision record; the record itself is made in :mod:`kvgate.rules.record`."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from kvgate.rules.packaged import DataModel
from kvgate.rules.record import PREDICATE_TYPE


class _SubjectModel(DataModel):
    name: str
    digest: dict[Literal["sha256"], str]


class Predicate(DataModel):
    """What was decided, from what, and why; field names are camelCase as in-toto predicates are."""

    tool: dict[str, str]
    verdict: Literal["verified-compatible-reuse", "new-namespace", "clear"]
    accepted: bool
    enforced: bool
    acceptedBecause: str  # noqa: N815
    exitCode: int  # noqa: N815
    action: dict[str, JsonValue]
    options: dict[str, JsonValue]
    baseline: list[dict[str, JsonValue]]
    namespace: dict[str, JsonValue]
    changes: list[dict[str, JsonValue]]
    findings: list[dict[str, JsonValue]]
    boundary: list[dict[str, JsonValue]]
    tokens: list[dict[str, JsonValue]]
    evidence: list[dict[str, JsonValue]]
    waivers: dict[str, JsonValue]
    policies: dict[str, JsonValue]
    sources: dict[str, JsonValue]


class Record(DataModel):
    """An in-toto Statement v1 whose predicate is a kvgate decision."""

    model_config = ConfigDict(extra="forbid", frozen=True, title=PREDICATE_TYPE, validate_by_name=False)

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[_SubjectModel]
    predicateType: Literal["urn:kvgate:decision:v1"]  # noqa: N815
    predicate: Predicate
