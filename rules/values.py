"""A manifest field as the law sees it: known with a basis, or unknown; never a default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Basis = Literal["computed", "observed", "declared"]


@dataclass(frozen=True, slots=True)
class Known:
    """A value somebody established. ``None`` is known to be unset: the engine's own default applies."""

    value: Any
    basis: Basis = "declared"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nothing is known. It equals nothing, another unknown included (design, the law, 1)."""


UNKNOWN = Unknown()
Field = Known | Unknown
