"""A Helm chart whose templates kvgate has read, and what is known of the version that is deployed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.objects import Made
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.document import parse_document


class Chart(BaseModel):
    """One chart; the head of ``data/charts.yaml`` says what the fields are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    source: str
    told_by: list[str]
    read: list[str]
    keys: dict[str, list[str]]

    def known(self, mapping: str) -> frozenset[str]:
        """Return the keys that its templates take in a mapping."""
        return frozenset(self.keys[mapping])

    def version(self, given: str | None) -> ChartVersion:
        """Return what is known of a version; ``None``: nobody said which it is."""
        return ChartVersion(self, given)


class _Charts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/charts/v1$")
    checked: str
    charts: dict[str, Chart]


@cache
def chart(name: str) -> Chart:
    """Return a chart whose templates were read."""
    file = "charts.yaml"
    document, _ = parse_document(resources.files("kvgate.deployments").joinpath("data", file).read_bytes(), file)
    return _Charts.model_validate(document).charts[name].model_copy(update={"name": name})


def unread(place: str) -> str:
    """Say why flags may be given that a file does not show: a key that nobody has read."""
    return f"{place} is no key that kvgate knows (misspelt, or of another version), and it may set this"


@dataclass(frozen=True)
class ChartVersion:
    """A chart in the version that is deployed.

    Attributes:
        chart: the chart.
        given: the version as given; ``None``: nobody said.
    """

    chart: Chart
    given: str | None

    @property
    def known(self) -> bool:
        """Whether the templates of this version were read."""
        return self.given in self.chart.read

    def since(self, version: str) -> bool:
        """Whether this is a version that was read, and the given one or a later."""
        return self.known and self.chart.read.index(self.given or "") >= self.chart.read.index(version)

    def made(self, strangers: Iterable[str], others: tuple[str, ...] = ()) -> Made:
        """Return how the chart makes pods: what its templates may add where this version was not read.

        Args:
            strangers: the places of values that no template reads which was read.
            others: why something else may start the pods in another way.
        """
        if self.known:
            named = f"the chart {self.chart.name} {self.given}"
            notes = tuple(f"{place} is no value of {named}, which leaves it out" for place in strangers)
            return Made(hidden=others, undisclosed=others, notes=notes)
        reasons = (*others, *(unread(place) for place in strangers), self._reason())
        return Made(hidden=reasons, undisclosed=reasons)

    def _reason(self) -> str:
        name = self.chart.name
        if self.given is None:
            return (
                f"which version of the chart {name} is deployed is not known: give its Chart.yaml, or what "
                "`helm show chart` prints, as one more --from"
            )
        shown = clean_text(self.given) or "..."
        read = f"{self.chart.read[0]} to {self.chart.read[-1]}"
        return f"kvgate has read the chart {name} {read}, and not {shown}, which may set this"
