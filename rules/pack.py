"""Rule packs: what each kind of change obliges to, and what discharges it. Data, no expression language."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from kvgate.rules.canonical import digest
from kvgate.rules.catalogue import Comparison, dimensions
from kvgate.rules.change import UNCLASSIFIED
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.evidence import Evidence, Kind
from kvgate.rules.packaged import DataModel, packaged_bytes, packaged_names, parse_data
from kvgate.rules.shown import Entries, Shown, Where

Obligation = Literal["separate", "delete"]
Answer = Literal["yes", "no", "unknown", "not affected"]

KINDS: Mapping[Comparison, tuple[str, ...]] = {
    "weights": ("kv-tensors", "tail-only", "layout", "unverified"),
    "served": ("differs", "unverified"),
    "config": ("counts", "harmless", "unclassified", "unverified"),
    "tokenizer": ("effective", "vocabulary", "special-tokens", "inert", "unverified"),
    "renderer": ("differs", "unverified"),
    "template": ("tree", "text", "clock", "unverified"),
    "exact": ("differs", "unverified"),
    "scales": ("differs", "dynamic", "fault", "unverified"),
    "adapters": ("replaced", "replaced-in-place", "added", "removed", "forgotten", "moved", "unverified"),
    "build": ("rebuilt", "differs", "unverified"),
    "max_model_len": ("rope-dependent", "inert", "unverified"),
    "args": ("harmless", "unclassified", "unverified"),
    "features": ("introduced", "dropped", "dropped-unseparated", "fault", "unverified"),
    "roles": ("differs", "fault", "unverified"),
    "tenancy": ("narrowed", "widened", "carrier", "fault", "unverified"),
    "mutable": ("was-mutable", "now-mutable", "fault", "unverified"),
    "connector_version": ("differs", "unverified"),
    "address": ("moved", "inert", "unverified"),
    "connector": ("moved", "detached", "first", "producer", "producer-unverified", "fault", "unverified"),
    "replicas": ("differs", "sharded", "unverified"),
    "label": (),
}
"""The kinds of change that each comparison can make; a pack must answer every one of them."""


class Discharge(DataModel):
    """One way in which a finding is settled as harmless; every condition that is given must hold.

    ``evidence``: proved evidence of that kind, bound to these deployments. ``key``: what the profile's cell
    says of the dimension on both sides. ``token_keyed``: keys are made of token ids. ``upgrade``: a sourced
    row of the profile says that keys and KV stay the same, and tokens are proved. ``harmless_cell``: the
    profile says that the format makes the difference harmless here.
    """

    evidence: Kind | None = None
    key: Literal["separates", "token-ids"] | None = None
    token_keyed: bool | None = None
    upgrade: bool | None = None
    harmless_cell: bool | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Discharge:
        if not self.model_fields_set:
            raise ValueError("an empty condition would discharge everything")
        return self


class Ruling(DataModel):
    """What every rule says: what its subject obliges to, and why."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str
    obligations: list[Obligation]
    kv_valid: Answer
    tokens_equal: Answer
    discharged_by: list[Discharge] = Field(default_factory=list)
    why: str
    self_fault: bool = False
    fix: str | None = None
    links: list[str] = Field(default_factory=list)


class Rule(Ruling):
    """What one sort of change obliges to."""

    watches: dict[str, list[str]] = Field(description="dimension to kinds of change")
    may_be: Literal["clear", "self-fault"] | None = Field(
        default=None, description="what an unknown of the new side, judged alone, could turn out to be"
    )
    may_be_against_old: Literal["clear"] | None = Field(
        default=None, description="what an unknown of either side could turn out to be where the two are compared"
    )
    asymmetric: str | None = Field(default=None, description="why the answer may differ with old and new swapped")


class When(DataModel):
    """Which refutations of its kind a rule answers: what one does not say of itself meets no condition."""

    where: Where | None = None
    only: list[Entries] | None = Field(default=None, description="nothing but these was read wrongly")

    def holds(self, shown: Shown | None) -> bool:
        """Whether a refutation that shows this is one of them."""
        said = shown or Shown()
        if self.only is not None and (not said.of or not set(said.of) <= set(self.only)):
            return False
        return self.where is None or self.where == said.where

    def includes(self, other: When) -> bool:
        """Whether everything that meets the other's conditions meets these."""
        wider = self.only is None or (other.only is not None and set(other.only) <= set(self.only))
        return wider and self.where in (None, other.where)


class AdverseRule(Ruling):
    """What a refutation of one kind obliges to.

    ``stands``: the boundary was seen not to hold, so nothing that a manifest says of it keeps entries apart.
    """

    evidence: Kind
    when: When = When()
    about: str = Field(description="the dimension whose cell says whether keys separate what was found")
    obligations: list[Obligation] = Field(min_length=1)
    stands: bool = False

    def no_milder(self, other: AdverseRule) -> bool:
        """Whether this asks for everything that the other does."""
        return (
            set(other.obligations) <= set(self.obligations)
            and self.self_fault >= other.self_fault
            and self.stands >= other.stands
        )


_AnyRule = TypeVar("_AnyRule", bound=Ruling)


class Override(DataModel):
    """What a pack that extends another changes in one rule: further ways to discharge it, with the reason."""

    rule: str
    discharged_by: list[Discharge]
    why: str


class _PackFile(DataModel):
    id: str
    title: str
    source: str
    checked: str
    extends: str | None = None
    rules: list[Rule] = Field(default_factory=list)
    adverse: list[AdverseRule] = Field(default_factory=list)
    overrides: list[Override] = Field(default_factory=list)


class Pack:
    """A complete rule pack.

    Raises:
        InputError: when a kind of change is answered by no rule or by two, an id stands twice, or an
            override names no rule: a gap in a pack would be a gap in the gate.

    """

    def __init__(self, file: _PackFile, base: Pack | None, source: str) -> None:
        self._file = file
        self._source = source
        self.id = file.id
        self.title = file.title
        rules: list[Rule] = [*(base.rules if base else ()), *file.rules]
        adverse: list[AdverseRule] = [*(base.adverse if base else ()), *file.adverse]
        named = {override.rule for override in file.overrides}
        if unknown := sorted(named - {one.id for one in rules} - {one.id for one in adverse}):
            raise InputError(f"overrides: there is no rule {unknown[0]!r}", where=source)
        self.rules: tuple[Rule, ...] = tuple(_overridden(one, file.overrides) for one in rules)
        self.adverse: tuple[AdverseRule, ...] = tuple(_overridden(one, file.overrides) for one in adverse)
        self._by_kind = self._index()
        self._check_ids()

    def _index(self) -> dict[tuple[str, str], Rule]:
        index: dict[tuple[str, str], Rule] = {}
        for rule in self.rules:
            for dimension, kinds in rule.watches.items():
                for kind in kinds:
                    if (dimension, kind) in index:
                        raise InputError(
                            f"{dimension}: {kind} is answered by {index[dimension, kind].id} and {rule.id}",
                            where=self._source,
                        )
                    index[dimension, kind] = rule
        wanted = {(dimension.id, kind) for dimension in dimensions() for kind in KINDS[dimension.compare]} | {
            (UNCLASSIFIED, UNCLASSIFIED)
        }
        if missing := sorted(wanted - index.keys()):
            raise InputError(f"no rule answers {missing[0][0]}: {missing[0][1]}", where=self._source)
        if surplus := sorted(index.keys() - wanted):
            raise InputError(f"{surplus[0][0]}: {surplus[0][1]} is nothing that can change", where=self._source)
        return index

    def _check_ids(self) -> None:
        ids = [one.id for one in self.rules] + [one.id for one in self.adverse]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise InputError(f"the rule id {twice[0]!r} stands twice", where=self._source)
        known = {dimension.id for dimension in dimensions()}
        if unknown := sorted(one.about for one in self.adverse if one.about not in known):
            raise InputError(f"{unknown[0]!r} is not a dimension", where=self._source)

        for number, rule in enumerate(self.adverse):
            for earlier in self.adverse[:number]:
                if earlier.evidence != rule.evidence:
                    continue
                if earlier.when.includes(rule.when):
                    raise InputError(f"{rule.id} answers nothing that {earlier.id} does not", where=self._source)
                # Less is known of what only the later one answers; that must not be the milder answer.
                if rule.when.includes(earlier.when) and not rule.no_milder(earlier):
                    raise InputError(
                        f"{rule.id} is milder than {earlier.id}, and answers what says less", where=self._source
                    )
        kinds = {rule.evidence for rule in self.adverse}
        if partly := sorted(kinds - {rule.evidence for rule in self.adverse if rule.when == When()}):
            raise InputError(f"no rule answers every refutation of the kind {partly[0]}", where=self._source)

    def rule_for(self, dimension: str, kind: str) -> Rule:
        """Return the rule that answers one kind of change of one dimension."""
        return self._by_kind[dimension, kind]

    def adverse_rule(self, refutation: Evidence) -> AdverseRule | None:
        """Return the first rule that answers a refutation, ``None`` where its kind only ever supports."""
        return next(
            (rule for rule in self.adverse if rule.evidence == refutation.kind and rule.when.holds(refutation.shown)),
            None,
        )

    def adverse_rule_by_id(self, identifier: str) -> AdverseRule:
        """Return the rule for refutations with this id."""
        return next(rule for rule in self.adverse if rule.id == identifier)

    @property
    def digest(self) -> str:
        """The digest of everything that the pack decides by."""
        # As a file of them: its serializer was built to read it, a rule's own would have to be built.
        whole = self._file.model_copy(update={"rules": list(self.rules), "adverse": list(self.adverse)})
        dumped = whole.model_dump(mode="json", include={"rules", "adverse"})
        return digest([*dumped["rules"], *dumped["adverse"]])


def _overridden(rule: _AnyRule, overrides: list[Override]) -> _AnyRule:
    for override in overrides:
        if override.rule == rule.id:
            ways = [*rule.discharged_by, *override.discharged_by]
            rule = rule.model_copy(update={"discharged_by": ways, "why": f"{rule.why} {override.why}"})
    return rule


@cache
def shipped_pack(identifier: str) -> Pack:
    """Return a shipped pack by id.

    Raises:
        UsageError: if there is none.

    """
    if identifier not in packaged_names("packs"):
        raise UsageError(
            f"there is no rule pack {identifier!r}",
            hint=f"shipped: {', '.join(packaged_names('packs'))}; or give a file",
        )
    return parse_pack(packaged_bytes("packs", f"{identifier}.yaml"), f"{identifier}.yaml")


def parse_pack(data: bytes, source: str) -> Pack:
    """Parse a rule pack; what it ``extends`` must be a shipped one.

    Raises:
        InputError: for anything wrong with it, a kind of change without an answer included.

    """
    file = parse_data(data, source, _PackFile)
    return Pack(file, shipped_pack(file.extends) if file.extends else None, source)
