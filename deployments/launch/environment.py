"""Which environment variables count, by engine."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from kvgate.rules.credentials import is_secret_name
from kvgate.rules.document import parse_document


class EnvironmentTable(BaseModel):
    """Which environment variables count; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/environment/v1$")
    engine: str
    source: str
    checked: str
    counts: list[str]
    harmless: list[str]
    read: list[str]
    plain: list[str] = Field(default_factory=list)
    kv_layouts: dict[str, str] = Field(default_factory=dict)

    def may_be_secret(self, name: str) -> bool:
        """Whether what a variable holds may be a credential, by its name."""
        return name not in self.plain and is_secret_name(name)

    def counted(self, name: str) -> bool:
        """Whether a variable that no manifest path stands for belongs into ``engine.args``."""
        if name in self.read or name.startswith(tuple(self.harmless)):
            return False
        return name.startswith(tuple(self.counts))


@cache
def environment_table(engine: str) -> EnvironmentTable:
    """Return the table of an engine's environment variables."""
    name = f"{engine}_environment.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return EnvironmentTable.model_validate(document)
