"""KServe's own presets, recognised by their scripts: which fields of a service each passes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from kvgate.rules.document import parse_document


class Preset(BaseModel):
    """One script; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    release: str
    tensor: bool = False
    data: bool = False
    offload: bool = False


class _Presets(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/kserve-presets/v1$")
    source: str
    checked: str
    presets: dict[str, Preset]


@cache
def _table() -> _Presets:
    name = "kserve_presets.yaml"
    document, _ = parse_document(resources.files("kvgate.deployments").joinpath("data", name).read_bytes(), name)
    return _Presets.model_validate(document)


def preset_of(command: Sequence[str]) -> Preset | None:
    """Return the preset whose command this is, as it stands in its config; ``None``: none that was read."""
    return _table().presets.get(sha256("\0".join(command).encode("utf-8", "surrogatepass")).hexdigest())
