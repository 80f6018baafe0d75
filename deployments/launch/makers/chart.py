"""A Helm chart whose templates kvgate has read, and what is known of the version that is deployed."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.deployments.launch.objects import Made
from kvgate.deployments.launch.secrets import clean_text


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: its name.
        keys: top-level values by which a file is told to be values of it.
        read: the versions whose templates were read, oldest first.
        source: the repository and the tags.
    """

    name: str
    keys: tuple[str, ...]
    read: tuple[str, ...]
    source: str

    def version(self, given: str | None) -> ChartVersion:
        """Return what is known of a version; ``None``: nobody said which it is."""
        return ChartVersion(self, given)


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

    def made(self, strangers: tuple[str, ...]) -> Made:
        """Return how the chart makes pods: what its templates may add where this version was not read.

        Args:
            strangers: why keys that nobody has read may add something.
        """
        reasons = strangers
        if not self.known:
            reasons = (*strangers, self._reason())
        return Made(hidden=reasons, undisclosed=reasons)

    def _reason(self) -> str:
        name = self.chart.name
        if self.given is None:
            return f"which version of the chart {name} is deployed is not known (give what `helm show chart` prints)"
        shown = clean_text(self.given) or "..."
        read = f"{self.chart.read[0]} to {self.chart.read[-1]}"
        return f"kvgate has read the chart {name} {read}, and not {shown}, which may set this"
