"""The old deployments of a decision, and what keeps their entries from the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.cli.formats.values import place_text

if TYPE_CHECKING:
    from kvgate.cli.formats.report import Shown


@dataclass(frozen=True)
class Apart:
    """What keeps one old deployment, or one of its pools, apart from the new one.

    Attributes:
        pool: which pools, where there are several; else ``None``.
        demands: whether anything about the deployment demands something.
        met: whether all that is demanded is met.
    """

    pool: str | None
    separated_by: tuple[str, ...]
    knob: str | None
    knob_because: str
    detached: bool
    silent_because: str | None
    demands: bool
    met: bool

    def said(self) -> Iterator[str]:
        """Yield it line by line; nothing where nothing is demanded."""
        if self.detached:
            yield "the new deployment has no persistent cache: nothing old is within its reach"
        elif self.demands:
            if self.silent_because is not None:
                yield f"no connector profile speaks here: {self.silent_because}"
            if self.separated_by:
                yield f"every key differs in {', '.join(self.separated_by)}"
            if self.knob_because:
                yield self.knob_because if self.knob is None else f"{self.knob}: {self.knob_because}"
            elif self.met and not self.separated_by:
                yield "what is demanded is met as each finding says"
            elif not self.separated_by and self.silent_because is None:
                yield "nothing in the connector's own key keeps old and new entries apart"


@dataclass(frozen=True)
class Baseline:
    """One old deployment."""

    name: str
    sha256: str
    label: str
    connector: str
    location: str
    namespace: str
    apart: tuple[Apart, ...]
    silent_on_new: bool
    build_by_version: bool

    @property
    def silent_because(self) -> str | None:
        """Why no connector profile speaks; ``None`` where one does for every pool."""
        return next((one.silent_because for one in self.apart if one.silent_because is not None), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps its entries from the new deployment, what does not, and what was compared by version alone."""
        pools: dict[str, list[str]] = {}
        for one in self.apart:
            for line in one.said():
                pools.setdefault(line, []).append(f"pool {one.pool}")
        said = [
            line if len(names) == len(self.apart) else f"{', '.join(names)}: {line}" for line, names in pools.items()
        ]
        if self.build_by_version:
            said.append(
                "engine builds are compared by version alone: neither side has a digest of its image or packages"
            )
        return tuple(said)


def read_baseline(
    index: int, data: Mapping[str, Any], boundaries: Sequence[Mapping[str, Any]], findings: Sequence[Shown]
) -> Baseline:
    """Read one old deployment of a record.

    Args:
        index: its place among the old ones.
        data: its entry of the record's ``baseline``.
        boundaries: the record's ``boundary``.
        findings: all findings.
    """
    own = [one for one in boundaries if one["baseline"] == index]
    about = [one for one in findings if one.baseline == index]
    return Baseline(
        name=data["name"],
        sha256=data["sha256"],
        label=" ".join(str(data["release"][key]) for key in ("name", "version") if data["release"].get(key)),
        connector=_of_all(own, "connector"),
        location=_of_all(own, "location"),
        namespace=_of_all(own, "namespace"),
        apart=tuple(_apart(one, about) for one in own),
        silent_on_new=any(one["profileSilentOn"] == "new" for one in own),
        build_by_version=data.get("buildComparedBy") == "version",
    )


def _of_all(boundaries: Sequence[Mapping[str, Any]], part: str) -> str:
    """Return a part of the addresses of all pools, each once."""
    return ", ".join(dict.fromkeys(place_text(one["old"][part]) for one in boundaries))


def _apart(boundary: Mapping[str, Any], findings: Sequence[Shown]) -> Apart:
    return Apart(
        pool=boundary["pool"],
        separated_by=tuple(boundary["separatedBy"]),
        knob=boundary["knob"],
        knob_because=boundary["knobBecause"],
        detached=boundary["detached"],
        silent_because=None if boundary["profileSpeaks"] else boundary["profileSilentBecause"],
        # Of the whole deployment: what pools have in common is found once, for the first of them.
        demands=any(one.open or one.met for one in findings),
        met=all(not one.open for one in findings),
    )
