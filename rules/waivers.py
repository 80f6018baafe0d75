"""Waivers: a person's signature under one finding, for the values it was written for, until a date."""

from __future__ import annotations

import datetime
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator

from kvgate.rules.canonical import canonical
from kvgate.rules.change import alike
from kvgate.rules.packaged import DataModel

SCHEMA_ID = "kvgate/waivers/v1"


class Waiver(DataModel):
    """It never covers a finding that is unverified, adverse, a self-fault, or that asks for deletion."""

    rule: str
    dimension: str
    path: str | None = Field(default=None, description="the manifest path; needed where values alone fit several")
    old: JsonValue
    new: JsonValue
    reason: str = Field(min_length=1)
    owner: str = Field(min_length=1)
    expires: str

    @field_validator("expires")
    @classmethod
    def _a_date(cls, value: str) -> str:
        # Python 3.11 reads 20260101 and 2026-W01-1 too; dates are compared as text, so there is one spelling.
        try:
            spelled = datetime.date.fromisoformat(value).isoformat()
        except ValueError:
            spelled = None
        if spelled != value:
            raise ValueError(f"{value[:40]!r} is not a date (YYYY-MM-DD)")
        return value

    def covers(self, rule: str, dimension: str, path: str, old: object, new: object) -> bool:
        """Whether it was written for this rule, dimension, path (where it names one) and these very values."""
        named = (self.rule, self.dimension, self.path or path)
        return named == (rule, dimension, path) and alike(canonical(self.old), old) and alike(canonical(self.new), new)

    def expired(self, as_of: str) -> bool:
        """Whether its last day lies before ``as_of`` (ISO date)."""
        return self.expires < as_of


class Waivers(DataModel):
    """The waivers file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title=SCHEMA_ID, validate_by_name=False)

    schema_: Literal["kvgate/waivers/v1"] = Field(alias="schema")
    waivers: list[Waiver]
