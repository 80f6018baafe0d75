"""The dimension catalogue: everything in which two deployments can differ (data: ``data/dimensions.yaml``)."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Literal

from pydantic import Field

from kvgate.rules.manifest import schema_leaves
from kvgate.rules.packaged import DataModel, packaged_bytes, parse_data

Comparison = Literal[
    "weights",
    "served",
    "config",
    "tokenizer",
    "renderer",
    "template",
    "exact",
    "scales",
    "adapters",
    "build",
    "max_model_len",
    "args",
    "features",
    "roles",
    "tenancy",
    "connector_version",
    "mutable",
    "address",
    "connector",
    "replicas",
    "label",
]


class Dimension(DataModel):
    """One thing in which two deployments can differ; the fields are described in the data file."""

    id: str
    title: str
    paths: list[str]
    compare: Comparison
    needs: Literal["measured", "declared"] = "declared"
    default_of: list[str] = Field(default_factory=list)
    never_unset: bool = False
    only_with: str | None = None
    identity: list[str]
    order: int
    settle: str = "capture the deployment again"

    def owns(self, path: str) -> bool:
        """Whether a manifest path belongs to this dimension."""
        return any(path == own or path.startswith(f"{own}.") for own in self.paths)


class _Catalogue(DataModel):
    source: str
    checked: str
    dimensions: list[Dimension]


@cache
def dimensions() -> tuple[Dimension, ...]:
    """Return the catalogue in its own order.

    Raises:
        AssertionError: if a schema leaf is owned by no dimension or by two (nothing may slip past the diff).

    """
    found = tuple(parse_data(packaged_bytes("data", "dimensions.yaml"), "dimensions.yaml", _Catalogue).dimensions)
    owners = [(path, dimension.id) for dimension in found for path in dimension.paths]
    for leaf in schema_leaves():
        above = {leaf, *(leaf[:end] for end, letter in enumerate(leaf) if letter == ".")}
        own = sorted({owner for path, owner in owners if path in above})
        if len(own) != 1:
            raise AssertionError(f"{leaf} is owned by {own or 'no dimension'}")
    return found


@lru_cache(maxsize=1024)
def owner_of(path: str) -> Dimension | None:
    """Return the dimension that owns a manifest path; ``None`` for a section whose parts have several owners."""
    return next((dimension for dimension in dimensions() if dimension.owns(path)), None)


@cache
def dimension(identifier: str) -> Dimension:
    """Return a dimension by its id.

    Raises:
        KeyError: if there is none.

    """
    for found in dimensions():
        if found.id == identifier:
            return found
    raise KeyError(identifier)
