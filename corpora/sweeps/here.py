"""The job of the bounded child that sweeps two tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvgate.corpora.limits import Limits

if TYPE_CHECKING:
    from kvgate.corpora.worker import Allowance, Channel


def sweep_here(arguments: Mapping[str, Any], limits: Limits, channel: Channel, allowance: Allowance) -> dict[str, Any]:
    """Placeholder."""
    raise NotImplementedError
