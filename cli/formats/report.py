"""A decision record as the readable formats need it: every string made harmless, findings in groups and in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvgate.cli.formats.baselines import Baseline, read_baseline
from kvgate.cli.formats.values import figure_text, place_text, side_text
from kvgate.cli.plain import harmless, short, short_digests
from kvgate.rules.catalogue import dimensions

if TYPE_CHECKING:
    from kvgate.corpora.divergence.figures import TokenFigures

Group = Literal["fault", "delete", "separate", "unverified", "met", "harmless"]

WORST_FIRST: tuple[Group, ...] = ("fault", "delete", "separate", "unverified", "met", "harmless")

# How kvgate.rules.profile.cover starts to say that there is no profile for what is known; all else it says is unknown.
_NO_PROFILE = ("the profile ", "there is no profile ")

# How kvgate.rules.alone says that a field is known, and what the connector's key does with it is not; the reason
# follows.
_KEY_UNKNOWN = "; whether the key holds it is not known"

_NAMED = 3  # of what shows that evidence is about other deployments
# Figures of token evidence that its corpora say one by one.
_SUMS = frozenset({"corpora", "conversations", "divergent", "blocks"})

_LAST = 1000  # the order of a dimension that this version's catalogue does not have


@dataclass(frozen=True)
class Shown:
    """One finding, its strings made harmless.

    Attributes:
        group: what the reader has to do with it; the heading that it stands under.
        order: how soon it is worth settling, from the catalogue; low is soon.
        old: the old value as text; ``None``: not known.
        new: the new value as text; ``None``: not known.
        answers: KV valid, tokens equal, keys separate.
        open: obligations that nothing meets.
        met: obligation and what meets it.

    """

    group: Group
    order: int
    rule: str
    title: str
    baseline: int | None
    path: str
    kind: str
    scope: str
    old: str | None
    new: str | None
    detail: str
    answers: tuple[str, str, str]
    open: tuple[str, ...]
    met: tuple[tuple[str, str], ...]
    may_be: str | None
    settled: str | None
    settle: str | None
    fix: str | None
    why: str
    links: tuple[str, ...]
    evidence: tuple[str, ...]

    @property
    def alone(self) -> bool:
        """Whether it is about the new deployment, or a piece of evidence that is not of the old one: no old value."""
        return self.baseline is None or (self.kind == "adverse" and self.old is None)

    @property
    def key_unknown(self) -> str | None:
        """Why it is not known what the connector's key does with a field that is known; ``None``: something else is."""
        _, found, why = self.detail.partition(_KEY_UNKNOWN)
        return why.removeprefix(": ") if found and self.kind == "unverified" else None

    @property
    def seen(self) -> str:
        """The detail without the reason that :attr:`key_unknown` gives."""
        return self.detail.partition(_KEY_UNKNOWN)[0] if self.key_unknown is not None else self.detail

    @property
    def change(self) -> str:
        """``old -> new`` where there are values to show, else what was seen."""
        if self.kind == "adverse" or (self.old is None and self.new is None):
            return self.detail
        stays = self.alone or (self.old == self.new and self.new is not None)
        sides = self.new or "?" if stays else f"{self.old or '(not known)'} -> {self.new or '(not known)'}"
        return f"{sides}  ({self.detail})" if self.detail else sides


@dataclass(frozen=True)
class Examined:
    """One piece of evidence; ``tokens``: of corpora that both sides rendered; ``swept``: of a sweep, a line each."""

    kind: str
    state: str
    digest: str
    reason: str
    scope: str
    examined: tuple[tuple[str, int], ...]
    missing: tuple[tuple[str, str], ...]
    figures: tuple[tuple[str, str], ...]
    tokens: tuple[TokenFigures, ...]
    swept: tuple[str, ...]
    command: str | None
    decided: str


@dataclass(frozen=True)
class Setting:
    """One way to put the derived namespace in force."""

    path: str
    value: str
    how: tuple[str, ...]


@dataclass(frozen=True)
class Clearing:
    """How the entries of one old deployment are deleted."""

    baseline: int
    command: str
    blast_radius: str
    owner: str | None


@dataclass(frozen=True)
class Report:
    """A whole decision, ready to be laid out."""

    verdict: str
    accepted: bool
    enforced: bool
    because: str
    exit_code: int
    tool: str
    new: str
    new_sha256: str
    first: bool
    strategy: str
    as_of: str
    accept: tuple[str, ...]
    declared_clear: bool
    pack: str
    baselines: tuple[Baseline, ...]
    findings: tuple[Shown, ...]
    settings: tuple[Setting, ...]
    isolation: str | None
    clearings: tuple[Clearing, ...]
    evidence: tuple[Examined, ...]
    derived: str | None
    missing: tuple[tuple[str, str], ...]
    namespace: str
    waived: tuple[str, ...]
    unused_waivers: tuple[str, ...]

    def group(self, name: Group) -> tuple[Shown, ...]:
        """Return the findings of one group, the most useful first."""
        return tuple(finding for finding in self.findings if finding.group == name)

    @property
    def silences(self) -> tuple[str, ...]:
        """Why no connector profile speaks for the new deployment, where no setting changes that."""
        said = [
            *(old.silent_because or "" for old in self.baselines if old.silent_on_new),
            *(one.key_unknown or "" for one in self.findings),
        ]
        return tuple(why for why in dict.fromkeys(said) if why.startswith(_NO_PROFILE))

    @property
    def outcome(self) -> str:
        """``accepted``, ``refused``, or that the decision is not enforced."""
        word = "accepted" if self.accepted else "refused"
        return word if self.enforced else f"{word}, not enforced (advisory)"

    def reached(self, finding: Shown) -> str | None:
        """Say what share of the old blocks the tokens of a finding's evidence still reach; ``None``: not counted."""
        from kvgate.cli.formats.tokens import shared_blocks

        counted = [
            found.blocks
            for one in self.evidence
            if one.digest in finding.evidence
            for found in one.tokens
            if found.blocks is not None
        ]
        if not counted:
            return None
        return shared_blocks(counted[0].size, sum(one.old for one in counted), sum(one.shared for one in counted))

    def old(self, baseline: int | None) -> str:
        """Say which old deployment a finding is about, where there are several."""
        if baseline is None or len(self.baselines) < 2:
            return ""
        return f"against {self.baselines[baseline].name}"


def read_report(record: Mapping[str, Any]) -> Report:
    """Lay a decision record open for reading.

    Args:
        record: a record in the shape of :class:`kvgate.rules.record.Record`.

    """
    shown = harmless(record)
    body = shown["predicate"]
    findings = [_finding(finding) for finding in body["findings"]]
    findings.sort(key=lambda one: (WORST_FIRST.index(one.group), one.order, one.path, one.baseline or 0))
    used = {digest for finding in findings for digest in finding.evidence}
    answered = {one["digest"] for one in body["evidence"] if one.get("answered")}
    options = body["options"]
    return Report(
        verdict=body["verdict"],
        accepted=body["accepted"],
        enforced=body["enforced"],
        because=body["acceptedBecause"],
        exit_code=body["exitCode"],
        tool=f"{body['tool'].get('name', '')} {body['tool'].get('version', '')}",
        new=shown["subject"][0]["name"],
        new_sha256=shown["subject"][0]["digest"]["sha256"],
        first=bool(options.get("first")),
        strategy=str(options.get("strategy")),
        as_of=str(options.get("asOf")),
        accept=tuple(options.get("accept", ())),
        declared_clear=bool(options.get("declareClear")),
        pack=str(body["policies"].get("pack", {}).get("id")),
        baselines=tuple(
            read_baseline(index, one, body["boundary"], findings) for index, one in enumerate(body["baseline"])
        ),
        findings=tuple(findings),
        settings=tuple(
            Setting(one["path"], one["value"], tuple(one["how"])) for one in body["action"].get("settings", ())
        ),
        isolation=body["action"].get("isolation"),
        clearings=tuple(
            Clearing(one["baseline"], one["command"], one["blastRadius"], one["owner"])
            for one in body["action"].get("clear", ())
        ),
        evidence=tuple(_evidence(one, used, answered) for one in body["evidence"]),
        derived=body["namespace"].get("derived"),
        missing=tuple((one["dimension"], one["settle"]) for one in body["namespace"].get("missing", ())),
        namespace=_namespace(body["namespace"].get("current", {})),
        waived=tuple(body["waivers"].get("used", ())),
        unused_waivers=tuple(
            f"{one['rule']} on {one['dimension']} (owner {one['owner']}, until {one['expires']}): {one['because']}"
            for one in body["waivers"].get("unused", ())
        ),
    )


def _namespace(current: Mapping[str, Any]) -> str:
    own = current.get("pools")
    return place_text(current) if own is None else "; ".join(f"{name}: {place_text(own[name])}" for name in sorted(own))


def _finding(data: Mapping[str, Any]) -> Shown:
    open_ = tuple(one for one in data["obligations"] if one not in data["met"])
    answers = data["answers"]
    orders = {one.id: one.order for one in dimensions()}
    return Shown(
        group=_group(data, open_),
        order=orders.get(data["dimension"], _LAST),
        rule=data["rule"],
        title=data["title"],
        baseline=data["baseline"],
        path=data["path"],
        kind=data["kind"],
        scope=data["scope"],
        old=side_text(data["old"]),
        new=side_text(data["new"]),
        detail=short(short_digests(data["detail"]), 400),
        answers=(answers["kvValid"], answers["tokensEqual"], answers["keysSeparate"]),
        open=open_,
        met=tuple(data["met"].items()),
        may_be=data["mayBe"],
        settled=f"waived by {data['waived']}" if data["waived"] else data["discharged"],
        settle=data["settle"],
        fix=data["fix"],
        why=data["why"],
        links=tuple(data["links"]),
        evidence=tuple(data["evidence"]),
    )


def _group(data: Mapping[str, Any], open_: Sequence[str]) -> Group:
    if data["selfFault"]:
        return "fault"
    if "delete" in open_:
        return "delete"
    if open_:
        return "unverified" if data["unverified"] else "separate"
    return "met" if data["obligations"] else "harmless"


def _decided(data: Mapping[str, Any], used: set[str], answered: set[str]) -> str:
    if data["digest"] in used:
        return "decided a finding"
    if data["digest"] in answered:
        return "a proof answers it"
    if data["state"] == "proved" and answered & set(data.get("supersedes", ())):
        return "answers what was refuted"
    if others := data.get("others"):
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return f"about other deployments ({', '.join(others[:_NAMED])}{more}), and decided nothing"
    return "decided nothing"


def _evidence(data: Mapping[str, Any], used: set[str], answered: set[str]) -> Examined:
    coverage = data["coverage"]
    tokens, swept = _tokens(data), _swept(data)
    return Examined(
        kind=data["kind"],
        state=data["state"],
        digest=data["digest"],
        reason=data["reason"],
        scope=data["scope"],
        # In one order, whether the record is at hand or was read back.
        examined=tuple(sorted(coverage["examined"].items())),
        missing=tuple(sorted(coverage["missing"].items())),
        figures=tuple(
            (name, figure_text(value))
            for name, value in sorted(data["figures"].items())
            if _says(value, data) and not (tokens and name in _SUMS) and not (swept and name == "sweep")
        ),
        tokens=tokens,
        swept=swept,
        command=data["command"],
        decided=_decided(data, used, answered),
    )


def _tokens(data: Mapping[str, Any]) -> tuple[TokenFigures, ...]:
    """Return what token evidence says of each corpus; nothing where it was made by something else than kvgate."""
    if data["kind"] != "token-identity" or not data["figures"].get("corpora"):
        return ()
    from kvgate.cli.formats.tokens import read_tokens

    try:
        return tuple(read_tokens(one) for one in data["figures"]["corpora"])
    except (TypeError, ValueError):
        return ()


def _swept(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a sweep of the two tokenizers showed; nothing where there was none, or something else made it."""
    if data["kind"] != "token-identity" or not data["figures"].get("sweep"):
        return ()
    from kvgate.cli.formats.sweeps import sweep_lines

    try:
        return tuple(sweep_lines(data["figures"]["sweep"]))
    except (KeyError, TypeError, ValueError):
        return ()


def _says(figure: Any, evidence: Mapping[str, Any]) -> bool:
    """Whether a figure tells the reader anything: nothing was counted where nothing was run."""
    if isinstance(figure, (int, float)) and not isinstance(figure, bool):
        return figure != 0 or evidence["state"] != "not-run"
    return figure not in (None, "", [], {})
