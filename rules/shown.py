"""What a test with running models looked at: so that a proof answers no refutation of what it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field

from kvgate.rules.packaged import DataModel

Entries = Literal["old-entries", "own-entries", "old-entries-of-tenants", "own-entries-of-tenants"]
"""What was read: of the old deployment or the new one's own; by any request, or by another tenant's."""

ENTRIES: tuple[Entries, ...] = get_args(Entries)
OF_OLD: tuple[Entries, ...] = ("old-entries", "old-entries-of-tenants")

Where = Literal["scratch", "service"]
Model = Literal["stand-in", "real"]
Ran = Literal["model", "engine", "launch-files", "servers"]


class Shown(DataModel):
    """Where something was seen, of which entries, and with what. Absent is unknown, which never helps."""

    where: Where | None = Field(
        default=None, description="scratch: in a store made for the test; service: where customers are served"
    )
    of: list[Entries] | None = Field(default=None, description="which entries were read wrongly, or all rightly")
    model: Model | None = Field(default=None, description="tiny stand-ins answered, or the deployments' own weights")
    ran: Ran | None = Field(
        default=None,
        description="the model under the connector's names, the engine with its connector, the engine as launch files "
        "start it, or the servers that an operator started",
    )
    differences: list[str] | None = Field(default=None, description="dimensions whose difference was really there")
    prompts: int | None = Field(default=None, description="how many were asked")
    tokens: int | None = Field(default=None, description="how long the longest of them was")


def lacks(proof: Shown | None, refutation: Shown | None) -> str | None:
    """Say what a proof did not look at, of what a refutation was found by; ``None`` where it looked at all of it.

    What a refutation does not say may be anything, so that only a proof of everything answers it.
    """
    has, wanted = proof or Shown(), refutation or Shown()
    if has.where != (wanted.where or "service"):
        return "where it was seen is another place, or not said"
    if unseen := [one for one in wanted.of or ENTRIES if one not in (has.of or ())]:
        return f"it shows nothing of {', '.join(unseen)}"
    if _rank(get_args(Model), has.model) < _rank(get_args(Model), wanted.model or "real"):
        return "stand-ins answered, and the refutation is one by the deployments' own weights, or does not say"
    if _rank(get_args(Ran), has.ran) < _rank(get_args(Ran), wanted.ran or "servers"):
        return f"{_WHAT_RAN[has.ran]} ran, and for the refutation {_WHAT_RAN[wanted.ran]}"
    if wanted.differences is None or wanted.prompts is None or wanted.tokens is None:
        return "the refutation does not say what differed and how much was asked"
    if missing := sorted(set(wanted.differences) - set(has.differences or ())):
        return f"{', '.join(missing)} did not differ in it"
    if (has.prompts or 0) < wanted.prompts:
        return f"{has.prompts or 0} prompts were asked, and {wanted.prompts} for the refutation"
    if (has.tokens or 0) < wanted.tokens:
        return f"prompts had {has.tokens or 0:,} tokens, and {wanted.tokens:,} for the refutation (--prompt-tokens)"
    return None


_WHAT_RAN = {
    None: "what is not said",
    "model": "the model alone",
    "engine": "the engine",
    "launch-files": "the engine by its launch files",
    "servers": "servers",
}


def _rank(order: Sequence[str], value: str | None) -> int:
    return -1 if value is None else order.index(value)
